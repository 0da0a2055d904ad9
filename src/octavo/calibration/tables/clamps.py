"""What a model lets through: a table of magnitudes does not know that a Relu makes nothing negative."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.core.stats import Range
from octavo.model import io, query
from octavo.model.normalize import normalize
from octavo.ops.hooks import clamp_bounds


def within_clamps(ranges: Mapping[str, Range], model: io.ModelSource) -> dict[str, Range]:
    """The ranges, those of what a Relu or Clip makes cut to what it lets through."""
    loaded = io.load(model)
    normalize(loaded)
    found = dict(ranges)
    for node in query.nodes(loaded):
        name = node.outputs[0].name or "" if node.outputs else ""
        if name not in found or node.domain or node.op_type not in ("Relu", "Clip"):
            continue
        bounds = clamp_bounds(node)
        if bounds is not None and bounds[0] <= bounds[1]:
            low, high = (min(max(end, bounds[0]), bounds[1]) for end in found[name][:2])
            found[name] = found[name]._replace(low=low, high=high)
    return found
