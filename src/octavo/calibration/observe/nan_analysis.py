"""NaN analysis: which tensors can't hold NaN as long as nothing overflows.

Samples are finite. Most operators (``CANNOT_MAKE_NAN``) make no NaN from finite numbers, unless they overflow
on the way, which the extremes around them show. Tensors behind any other operator, or behind a constant
that is not finite, are checked for NaN.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.model.graph import query
from octavo.ops import Kind, names_of
from octavo.ops.patterns import CANNOT_MAKE_NAN

MAY_OVERFLOW = 1e30  # magnitude of extremes beyond which a value near them may have overflowed
_READ_WEIGHTS = names_of(lambda rule: rule.is_linear or rule.kind is Kind.LOOKUP)


def without_nan(model: ir.Model) -> set[str]:
    """Return the tensors of the main graph that hold no NaN as long as nothing overflows."""
    found = {value.name or "" for value in model.graph.inputs}
    found |= {name for name, value in model.graph.initializers.items() if _is_finite(value)}
    found.add("")
    for node in model.graph:
        if node.op_type not in CANNOT_MAKE_NAN or node.domain not in ("", "ai.onnx"):
            continue
        if all(value is None or (value.name or "") in found for value in node.inputs):
            found.update(value.name or "" for value in node.outputs)
    return found


def _is_finite(value: ir.Value) -> bool:
    """Return whether a constant holds finite numbers; weights of layers are taken to, and not read."""
    tensor = value.const_value
    if tensor is None or not query.is_float(value):
        return True
    if all(use.node.op_type in _READ_WEIGHTS for use in value.uses()):
        return True
    return bool(np.all(np.isfinite(np.asarray(tensor.numpy(), np.float32))))
