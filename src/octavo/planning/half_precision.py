"""16-bit floats for what is not quantized: which constants can be stored in them.

A float16 has 11 significant bits between 6·10⁻⁵ and 65504 and fewer below; a bfloat16 has 8 bits and the
range of float32. A constant stays float32 where it would overflow, or lose more than
:data:`MIN_SQNR_DB` by rounding. What is computed in 16 bits: :mod:`octavo.planning.half_compute`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.plan import HalfStorage, Plan
from octavo.core.recipe import FloatType
from octavo.model.graph import query
from octavo.ops.half_precision import CARRIES_MASKS
from octavo.ops.patterns import MAKE_PROBABILITIES

FLOAT = ir.DataType.FLOAT
NUMPY_TYPES: Mapping[FloatType, npt.DTypeLike] = {
    FloatType.FLOAT16: np.float16,
    FloatType.BFLOAT16: ml_dtypes.bfloat16,
}
DATA_TYPES: Mapping[FloatType, ir.DataType] = {
    FloatType.FLOAT16: ir.DataType.FLOAT16,
    FloatType.BFLOAT16: ir.DataType.BFLOAT16,
}
# Rounding normal numbers leaves 74 dB in float16 and 56 dB in bfloat16: with less, something else was lost.
MIN_SQNR_DB: Mapping[FloatType, float] = {FloatType.FLOAT16: 50.0, FloatType.BFLOAT16: 40.0}
MIN_STORED_VALUES = 1024  # a smaller weight saves less than the Cast that restores it costs
MIN_EXACT_VALUES = 1 << 16  # below, the bytes saved are not worth a Cast that nobody requested
_AT_ONCE = 1 << 20  # values that are compared at a time
_MASK_DEPTH = 64  # nodes that are followed from a constant to the Softmax that its mask is for


def with_half_storage(plan: Plan, model: ir.Model, float_type: FloatType) -> Plan:
    """Return the plan with the large float weights that nothing quantizes stored in 16 bits."""
    weights: list[str] = []
    kept: dict[str, str] = {}
    for name, tensor in _in_float(plan, model, MIN_STORED_VALUES):
        reason = lossy(np.asarray(tensor.numpy()), float_type)
        if reason is None:
            weights.append(name)
        else:
            kept[name] = reason
    return replace(plan, half=HalfStorage(float_type, tuple(weights), kept))


def with_exact_storage(plan: Plan, model: ir.Model) -> Plan:
    """Return the plan with those float constants stored in float16 that lose nothing by it.

    These are masks, and the tables of models whose weights were float16 before they were exported.
    """
    found = _in_float(plan, model, MIN_EXACT_VALUES)
    exact = tuple(name for name, tensor in found if is_exact(np.asarray(tensor.numpy())))
    return replace(plan, half=HalfStorage(FloatType.FLOAT16, exact)) if exact else plan


def _in_float(plan: Plan, model: ir.Model, least: int) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """Yield the float32 constants of at least so many values that nothing quantizes."""
    for name, value in query.initializers(model.graph).items():
        if query.element_type(value) is not FLOAT or name in plan.compressed or value.is_graph_output():
            continue
        readers, tensor = query.readers(value), value.const_value
        if not readers or all(plan.lookup(name, node.name or "") is not None for node in readers):
            continue
        if tensor is not None and tensor.size >= least:
            yield name, tensor


def is_exact(content: npt.NDArray[np.generic]) -> bool:
    """Whether float16 holds every value of a constant."""
    values = content.reshape(-1)
    for start in range(0, values.size, _AT_ONCE):
        part = values[start : start + _AT_ONCE]
        with np.errstate(over="ignore"):
            if not np.array_equal(part.astype(np.float16).astype(np.float32), part):
                return False
    return True


def lossy(content: npt.NDArray[np.generic], float_type: FloatType) -> str | None:
    """Why a constant can't be stored in 16 bits, or None."""
    values = content.astype(np.float64)
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    with np.errstate(over="ignore"):
        rounded = finite.astype(np.float32).astype(NUMPY_TYPES[float_type]).astype(np.float64)
    if not np.all(np.isfinite(rounded)):
        return f"it holds {finite[np.argmax(np.abs(finite))]:.3g}, beyond the range of {float_type.value}"
    signal, noise = float(np.sum(finite**2)), float(np.sum((finite - rounded) ** 2))
    if noise and 10 * np.log10(signal / noise) < MIN_SQNR_DB[float_type]:
        return f"its values are too small for {float_type.value} (the largest is {np.abs(finite).max():.3g})"
    return None


def reaches_softmax(node: ir.Node) -> bool:
    """Whether a value of this node ends in a Softmax by way of operators that carry masks."""
    todo, seen = [node], {node}
    while todo and len(seen) < _MASK_DEPTH:
        one = todo.pop()
        if one.op_type in MAKE_PROBABILITIES:
            return True
        if one.op_type not in CARRIES_MASKS:
            continue
        for reader in (reader for value in one.outputs for reader in query.readers(value)):
            if reader not in seen:
                seen.add(reader)
                todo.append(reader)
    return False
