"""Fake quantization, as training leaves it in a model: found in all its spellings, and taken out.

::

    pairs       QuantizeLinear → (Clip) → DequantizeLinear, and stored integers → DequantizeLinear
    operators   FakeQuant and its kin, of other domains
    chains      Div, Round, Clip, Mul in their many orders
    peel        the float model without them, and the parameters that they had
"""

from octavo.model.fake_quant.found import FakeQuant
from octavo.model.fake_quant.peel import Peeled, peel

__all__ = ["FakeQuant", "Peeled", "peel"]
