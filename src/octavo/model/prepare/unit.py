"""A composition that was recognised: which nodes, and which one operator says the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir


@dataclass(frozen=True)
class Unit:
    """Nodes, the last of which makes the result, and the operator that they compute."""

    op_type: str
    since: int  # the first opset that has the operator
    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
