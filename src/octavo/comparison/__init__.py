"""Comparing a float model with its quantized version, and examining a model before it is quantized.

:mod:`.signals` and :mod:`.lowered_operators` describe both models in the same terms, :mod:`.match` pairs
them, :mod:`.data_pass` runs both on the data once, :mod:`.blame` and :mod:`.causes` find the tensor to blame
and the reason, which lists the changes of a recipe that may help (:mod:`octavo.tuning.proposals`
carries them out).
:mod:`.comparing` is the verb; :mod:`.diagnosis` checks a float model alone.
"""
