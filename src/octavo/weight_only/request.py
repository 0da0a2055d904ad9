"""What weight-only quantization is asked for, and what it hands back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.algorithms import Algorithm, BlockScheme, Default
from octavo.emission.block_weights import PLAIN, BlockNames


@dataclass(frozen=True)
class Selection:
    """Which nodes: op types, and names that are asked for (None: all) or left out."""

    ops: tuple[str, ...] = ("MatMul",)
    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()

    def refusal(self, name: str) -> str | None:
        """Why a node is not chosen, or None."""
        if name in self.exclude:
            return "excluded"
        if self.include is not None and name not in self.include:
            return "not included"
        return None


@dataclass(frozen=True)
class WeightOnly:
    """What is wanted. ``special`` has schemes by node name, None for a node that stays float."""

    algorithm: Algorithm = field(default_factory=Default)
    scheme: BlockScheme = field(default_factory=BlockScheme)
    selection: Selection = field(default_factory=Selection)
    qdq: bool = False
    per_channel: bool = False  # QDQ: a block is a whole column
    accuracy_level: int | None = None
    special: Mapping[str, BlockScheme | None] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)  # of ranges, by node name, for Rtn
    gather_axis: int = 1  # along which blocks of a table run
    called: BlockNames = PLAIN
    samples: int = 128
    providers: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Outcome:
    """The model, what was quantized, and what was not and why."""

    model: ir.Model
    quantized: tuple[str, ...]
    skipped: Mapping[str, str]
