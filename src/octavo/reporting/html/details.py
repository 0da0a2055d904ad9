"""What a page shows beyond a result's own JSON: the graph, histograms, ranges, and how to reproduce it."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Constant, Derived, Dynamic, Key, Measured, Plan
from octavo.core.qparams import QParams
from octavo.core.stats import Stats
from octavo.emission.names import QUANTIZED
from octavo.reporting.html import histogram, operator_graph
from octavo.reporting.plan_tables import origin_text
from octavo.reporting.summary import Outcome

SCHEMA = 1  # version of the data that a page is made from


class Quantization(Outcome, Protocol):
    """The part of a result that details are made of."""

    @property
    def model(self) -> ir.Model:
        """Return the quantized model."""

    @property
    def stats(self) -> Stats | None:
        """Return what calibration measured."""

    @property
    def source(self) -> Any:
        """Return the float model."""

    def manifest(self) -> dict[str, Any]:
        """Return versions, recipe and fingerprints."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""


def full(result: Quantization, name: str | None = None) -> dict[str, Any]:
    """Return a result's plain data with its details: all that a page needs."""
    return {**result.to_dict(), "details": details(result, name)}


def details(result: Quantization, name: str | None = None) -> dict[str, Any]:
    """Return the graph, the tensors of the plan, and the manifest; ``name`` is the quantized model's."""
    plan = result.plan
    known = {*plan.nodes, *plan.fused, *(skipped.node for skipped in plan.skipped)}
    source = result.source if isinstance(result.source, str) or hasattr(result.source, "__fspath__") else None
    return {
        "schema": SCHEMA,
        "name": name,
        "source": None if source is None else str(source),
        "graph": operator_graph.operators(result.model, known, _consumers(plan)).to_dict(),
        "tensors": tensors(result),
        "manifest": result.manifest(),
    }


def _consumers(plan: Plan) -> dict[str, str]:
    """Return the node that reads a quantized weight, where only one does."""
    found: dict[str, set[str]] = {}
    for key, entry in plan.entries.items():
        if isinstance(entry, Constant) and key.consumer is not None:
            found.setdefault(key.tensor + QUANTIZED, set()).add(key.consumer)
    return {name: min(nodes) for name, nodes in found.items() if len(nodes) == 1}


def tensors(result: Quantization) -> list[dict[str, Any]]:
    """Return each entry of the plan with its parameters and its histogram."""
    return [_tensor(result, key) for key in result.plan.entries]


def _tensor(result: Quantization, key: Key) -> dict[str, Any]:
    plan, params = result.plan, result.params.get(key)
    entry, root = plan.entries[key], plan.entries.get(plan.root(key))
    weight = isinstance(root, Constant)
    kind = "bias" if isinstance(root, Derived) else "weight" if weight else "activation"
    found: dict[str, Any] = {
        "tensor": key.tensor,
        "reader": key.consumer,
        "kind": kind,
        "how": origin_text(entry),
    }
    if isinstance(entry, Dynamic):
        found["type"] = str(entry.qtype)
    if params is not None:
        found |= numbers(params)
    measured = entry.of if isinstance(entry, Measured) and entry.of is not None else key.tensor
    state = result.stats.get(measured) if result.stats is not None else None
    if state is not None and state.count:
        found["seen"] = [state.low, state.high]
        found["histogram"] = histogram.of_state(state)
    elif kind != "activation" and params is not None:
        found["histogram"] = _weight_histogram(result.model, key.tensor, params)
    return found


def numbers(params: QParams) -> dict[str, Any]:
    """Return the type, scales, zero points and range of parameters; of many scales, the extremes."""
    scale = params.scale.astype(np.float64)
    zero = np.zeros(1) if params.qtype.is_float else params.zero_point.astype(np.int64)
    low, high = params.real_range
    return {
        "type": params.qtype.name,
        "granularity": str(params.granularity),
        "scales": int(scale.size),
        "scale": [float(scale.min(initial=np.inf)), float(scale.max(initial=-np.inf))]
        if scale.size
        else None,
        "zero_point": [int(zero.min()), int(zero.max())] if zero.size else None,
        "range": [low, high],
    }


def _weight_histogram(model: ir.Model, name: str, params: QParams) -> histogram.Histogram | None:
    """Return the histogram of a quantized weight, where the model holds it in its own shape."""
    value = model.graph.initializers.get(name + QUANTIZED)
    tensor = value.const_value if value is not None else None
    if tensor is None:
        return None
    try:
        return histogram.of_weight(tensor.numpy(), params)
    except (IndexError, ValueError):  # another layout: transposed, packed or in blocks
        return None
