"""Which values of a tensor its histogram counts, and which samples all statistics are collected from.

Counting takes longer than everything else that calibration does besides running the model, and the feature
maps of convolutions hold nearly all the values: hundreds of thousands in each sample, most of them much like
their neighbours. So of a large map a lattice of positions is counted, each with all its channels, and the
rest of it never leaves the runtime. Which positions they are depends on the shape of the map alone, so that
any split of the data still gives the same bits. Extremes are those of all values.

A ``stride`` overrides this: with 1 every value is counted, with N every N-th.

An average over all values of a sample is as good from 64 samples as from any more
(:attr:`Request.some_samples <octavo.core.requests.Request>`). Which ones follows from their index.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import onnx_ir as ir

from octavo.core.requests import EveryNth, Histogram, Lattice, Request
from octavo.errors import RecipeError
from octavo.model.graph import query
from octavo.ops import CONVOLUTIONS
from octavo.ops.patterns import KEEP_FEATURE_MAPS

_MIN_POSITIONS = 4  # of a lattice along height and width
_MIN_VALUES = 1 << 12  # of a lattice in one sample: a quarter of a million in 64 samples
_SOME_SAMPLES = 64  # that all statistics are collected from, where the number of samples is known
_FIRST_SAMPLES, _THEN_EVERY = 32, 8  # where it is not known: the first 32, and every eighth after them


def sampled(model: ir.Model, requests: Mapping[str, Request], stride: int | None) -> dict[str, Request]:
    """Return the requests with histograms that count a lattice of large maps, or every N-th value."""
    if stride is not None:
        return strided(requests, stride)
    steps = lattices(model)
    return {
        tensor: _counting(request, Lattice(steps[tensor]))
        if tensor in steps and not request.has_parts and request.subset is None
        else request
        for tensor, request in requests.items()
    }


def strided(requests: Mapping[str, Request], stride: int | None) -> dict[str, Request]:
    """Return the requests with histograms that count every N-th value."""
    if stride is None:
        return dict(requests)
    if stride < 1:
        raise RecipeError(f"A stride of {stride} counts nothing; use 1 for every value, 2 for every other.")
    return {tensor: _counting(request, EveryNth(stride)) for tensor, request in requests.items()}


def _counting(request: Request, subset: EveryNth | Lattice) -> Request:
    """Return the request with a histogram that counts this subset, where it has a histogram."""
    kept = request.kept
    return replace(request, kept=replace(kept, subset=subset)) if isinstance(kept, Histogram) else request


def number_among_some(index: int, total: int | None) -> int | None:
    """Return the number of a sample among those that all statistics are collected from, None for others."""
    if total is None:
        more, rest = divmod(max(index - _FIRST_SAMPLES, 0), _THEN_EVERY)
        return None if rest else min(index, _FIRST_SAMPLES) + more
    if total <= _SOME_SAMPLES:
        return index
    number, rest = divmod(index * _SOME_SAMPLES, total)
    return number if rest < _SOME_SAMPLES else None


def are_all_some(total: int | None) -> bool:
    """Return whether all statistics are collected from each of so many samples."""
    return total is not None and total <= _SOME_SAMPLES


def lattices(model: ir.Model) -> dict[str, int]:
    """Return the large feature maps of the main graph, and the step of their lattices."""
    found = {value.name or "": _step(query.shape(value)) for value in _feature_maps(model)}
    return {name: step for name, step in found.items() if step > 1}


def _step(dims: tuple[int | None, ...] | None) -> int:
    """Return the distance of the positions that are counted in a map of this shape; 1 for all of them."""
    if dims is None or len(dims) != 4 or not all(dims[1:]):
        return 1
    channels, height, width = (dim or 1 for dim in dims[1:])
    by_values = math.isqrt(channels * height * width // _MIN_VALUES)
    by_positions = (min(height, width) - 1) // (_MIN_POSITIONS - 1)
    return max(1, min(by_positions, by_values))


def _feature_maps(model: ir.Model) -> list[ir.Value]:
    """Return the feature maps: what convolutions read and give, and what is computed from it."""
    found: dict[ir.Value, None] = {}
    for value in model.graph.inputs:
        if any(use.node.op_type in CONVOLUTIONS and use.idx == 0 for use in value.uses()):
            found[value] = None
    for node in model.graph:
        if node.domain not in ("", "ai.onnx") or not node.outputs:
            continue
        if node.op_type in CONVOLUTIONS or (
            node.op_type in KEEP_FEATURE_MAPS and any(value in found for value in node.inputs)
        ):
            found[node.outputs[0]] = None
    return list(found)
