"""Quantized nodes that a target computes faster as another operator, which becomes their form in the plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from octavo.core.plan import Entry, Key, Quantized
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.planning import shuffles
from octavo.targets import Target


def respelled(
    nodes: Sequence[ir.Node],
    quantized: Mapping[str, Quantized],
    entries: Mapping[Key, Entry],
    recipe: Recipe,
    target: Target,
) -> Iterator[tuple[str, Quantized]]:
    """The nodes, by name, that get another form; so far all of them in static QDQ."""
    if not recipe.is_static or recipe.style is not Style.QDQ:
        return
    scheme = recipe.activations
    if target.hard_swish_gated and isinstance(scheme, Scheme) and scheme.qtype in (UINT8, INT8):
        for name, one in quantized.items():
            if one == Quantized("HardSwish", "HardSwish"):
                yield name, Quantized("HardSwish", "Mul")
    if target.shuffles_gathered:
        for name in shuffles.find(nodes, quantized, entries):
            yield name, Quantized("Transpose", "Gather")
