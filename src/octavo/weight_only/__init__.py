"""Weight-only quantization: matrices in blocks of 2, 4 or 8 bits, activations in float.

::

    load → choose nodes → (run the samples, where the algorithm wants inputs) → write → hand over

A node that stays float is in the outcome, with the reason.
"""

from octavo.weight_only.request import Outcome, Selection, WeightOnly
from octavo.weight_only.run import quantize, quantize_bnb4
from octavo.weight_only.single import quantize_in_stack, quantize_node, stored_parts

__all__ = [
    "Outcome",
    "Selection",
    "WeightOnly",
    "quantize",
    "quantize_bnb4",
    "quantize_in_stack",
    "quantize_node",
    "stored_parts",
]
