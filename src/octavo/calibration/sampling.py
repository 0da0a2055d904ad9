"""Which values of a tensor its histogram counts, and which samples are looked at closely.

Counting takes longer than everything else that calibration does besides running the model, and the maps of
convolutions hold nearly all the values: hundreds of thousands in each sample, most of them much like their
neighbours. So of a large map a lattice of places is counted, each with all its channels, and the rest of it
never leaves the runtime. Which places they are depends on the shape of the map alone, so that any split of
the data still gives the same bits. Extremes are those of all values.

A ``stride`` says it otherwise: with 1 every value is counted, with N every N-th.

What is an average over all values of a sample is as good from 64 samples as from any more
(:attr:`Need.some <octavo.core.stats.Need>`). Which ones follows from their index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from octavo.core.stats import Need
from octavo.errors import RecipeError
from octavo.model import query

_PLACES = 7  # along height and width, at least
_VALUES = 1 << 13  # of one sample, at least
_CLOSELY = 64  # samples, where it is known how many there are
_FIRST, _THEN = 32, 8  # where it is not: the first, and every so many-th
_FILTERS = ("Conv", "ConvTranspose")
_ALIKE = frozenset(
    (
        "Add", "AveragePool", "BatchNormalization", "Clip", "Concat", "Div", "Elu", "Erf", "Gelu",
        "HardSigmoid", "HardSwish", "Identity", "InstanceNormalization", "LeakyRelu", "Max", "MaxPool", "Min",
        "Mish", "Mul", "PRelu", "Pad", "Relu", "Resize", "Sigmoid", "Softplus", "Sub", "Sum", "Tanh"
    )
)  # fmt: skip


def sampled(model: ir.Model, needs: Mapping[str, Need], stride: int | None) -> dict[str, Need]:
    """The same needs with histograms that count a lattice of large maps, or what the stride says."""
    if stride is not None:
        return strided(needs, stride)
    steps = lattices(model)
    return {
        tensor: replace(need, lattice=steps[tensor]) if tensor in steps and _is_plain(need) else need
        for tensor, need in needs.items()
    }


def strided(needs: Mapping[str, Need], stride: int | None) -> dict[str, Need]:
    """The same needs with histograms that count every so many-th value."""
    if stride is None:
        return dict(needs)
    if stride < 1:
        raise RecipeError(f"A stride of {stride} counts nothing; use 1 for every value, 2 for every other.")
    return {t: replace(need, stride=stride) if need.histogram else need for t, need in needs.items()}


def number_of(index: int, total: int | None) -> int | None:
    """The number of a sample among those that are looked at closely; None for the others."""
    if total is None:
        more, rest = divmod(max(index - _FIRST, 0), _THEN)
        return None if rest else min(index, _FIRST) + more
    if total <= _CLOSELY:
        return index
    number, rest = divmod(index * _CLOSELY, total)
    return number if rest < _CLOSELY else None


def all_closely(total: int | None) -> bool:
    """Whether so many samples are all looked at closely."""
    return total is not None and total <= _CLOSELY


def _is_plain(need: Need) -> bool:
    """Whether nothing but extremes and a histogram is asked for."""
    more = need.channels is not None or need.moments or need.gram or need.totals
    return need.histogram and need.stride is None and not more


def lattices(model: ir.Model) -> dict[str, int]:
    """The maps that are large, and the step of their lattices."""
    found = {value.name or "": _step(query.shape(value)) for value in _maps(model)}
    return {name: step for name, step in found.items() if step > 1}


def _step(dims: tuple[int | None, ...] | None) -> int:
    """The distance of the places that are counted, for a map of this shape; 1 for all of them."""
    if dims is None or len(dims) != 4 or not all(dims[1:]):
        return 1
    channels, height, width = (dim or 1 for dim in dims[1:])
    by_values = math.isqrt(channels * height * width // _VALUES)
    return max(1, min(height // _PLACES, width // _PLACES, by_values))


def _maps(model: ir.Model) -> list[ir.Value]:
    """Images of features in the main graph: what convolutions read and give, and what is made of it."""
    found: dict[ir.Value, None] = {}
    for value in model.graph.inputs:
        if any(use.node.op_type in _FILTERS and use.idx == 0 for use in value.uses()):
            found[value] = None
    for node in model.graph:
        if node.domain not in ("", "ai.onnx") or not node.outputs:
            continue
        if node.op_type in _FILTERS or (node.op_type in _ALIKE and any(v in found for v in node.inputs)):
            found[node.outputs[0]] = None
    return list(found)
