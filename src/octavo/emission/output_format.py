"""What an output format is: how its plans are made, and the function that writes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from octavo.core.plan import Plan
from octavo.core.recipe import Style
from octavo.planning.resolve import Params


@dataclass(frozen=True)
class OutputFormat:
    """A way to write quantized operators; ``style`` is how the planner plans for it."""

    name: str
    style: Style
    emit: Callable[[ir.Model, Plan, Params], None]
