"""Algorithms on weights: arrays in, arrays out; one file each.

::

    rtn      round to nearest, also as ONNX Runtime's own quantizer does it
    hqq      zero points moved so that few weights carry the error
    kquant   scale and zero point by weighted least squares
    gptq     errors made up for by the columns that follow; needs the layer's inputs
    bnb4     FP4 and NF4

Steps change a whole model to win back accuracy (:mod:`.steps`)::

    smoothquant, equalize         scale channels of the float model
    mixed_precision               takes layers out of what 8 bits hold
    clip                          chooses ranges of activations
    rounding, bias_correction     choose integers and biases when scales are known

They see a model as :mod:`.layers` with statistics of their :mod:`.inputs`; :mod:`.noise` expects errors, and
:mod:`.local` measures them.
"""

from octavo.algorithms.blocks import Algorithm, Blocks, BlockScheme
from octavo.algorithms.gptq import Gptq
from octavo.algorithms.hqq import Hqq
from octavo.algorithms.kquant import KQuant
from octavo.algorithms.rtn import Default, Given, Rtn

__all__ = ["Algorithm", "BlockScheme", "Blocks", "Default", "Given", "Gptq", "Hqq", "KQuant", "Rtn"]
