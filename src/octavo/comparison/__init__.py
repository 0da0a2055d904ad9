"""Comparing a float model with its quantized twin, and looking at a model before it is quantized.

:mod:`.view` and :mod:`.spelling` give both models one shape, :mod:`.match` pairs them, :mod:`.run` goes
through the data once, :mod:`.blame` and :mod:`.causes` say what is to blame and why, :mod:`.proposal` what to
change. :mod:`.diagnosis` looks at a float model alone.
"""

from octavo.comparison.diagnosis import Diagnosis, doctor
from octavo.comparison.result import Change, Comparison, Culprit, TensorError
from octavo.comparison.steps import compare

__all__ = ["Change", "Comparison", "Culprit", "Diagnosis", "TensorError", "compare", "doctor"]
