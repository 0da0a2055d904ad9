"""What a page shows beyond a result's own JSON: the graph, histograms, ranges, and how to make it again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import onnx_ir as ir

from octavo.core.plan import Constant, Derived, Key, Measured, Plan
from octavo.core.qparams import QParams
from octavo.core.stats import Stats
from octavo.emission.names import QUANTIZED
from octavo.reporting.html import graph, histogram
from octavo.reporting.plans import entry_text

SCHEMA = 1


class Quantization(Protocol):
    """The part of a result that details are made of."""

    @property
    def model(self) -> ir.Model:
        """The quantized model."""
        ...

    @property
    def plan(self) -> Plan:
        """What was decided."""
        ...

    @property
    def params(self) -> Mapping[Key, QParams]:
        """Scales and zero points."""
        ...

    @property
    def stats(self) -> Stats | None:
        """What calibration saw."""
        ...

    @property
    def source(self) -> Any:
        """The float model."""
        ...

    def manifest(self) -> dict[str, Any]:
        """Versions, recipe and fingerprints."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        ...


def full(result: Quantization, name: str | None = None) -> dict[str, Any]:
    """A result's plain data and its details: what a file needs to hold so that a page can be made of it."""
    return {**result.to_dict(), "details": details(result, name)}


def details(result: Quantization, name: str | None = None) -> dict[str, Any]:
    """The graph, the tensors of the plan, and the manifest; ``name`` is that of the quantized model."""
    plan = result.plan
    known = {*plan.nodes, *plan.absorbed, *(skipped.node for skipped in plan.skipped)}
    source = result.source if isinstance(result.source, str) or hasattr(result.source, "__fspath__") else None
    return {
        "schema": SCHEMA,
        "name": name,
        "source": None if source is None else str(source),
        "graph": graph.operators(result.model, known, _readers(plan)).to_dict(),
        "tensors": tensors(result),
        "manifest": result.manifest(),
    }


def _readers(plan: Plan) -> dict[str, str]:
    """The node that reads a stored weight, where it is one alone."""
    found: dict[str, set[str]] = {}
    for key, entry in plan.entries.items():
        if isinstance(entry, Constant) and key.reader is not None:
            found.setdefault(key.tensor + QUANTIZED, set()).add(key.reader)
    return {name: min(readers) for name, readers in found.items() if len(readers) == 1}


def tensors(result: Quantization) -> list[dict[str, Any]]:
    """An entry of the plan each, with its numbers and its histogram."""
    return [_tensor(result, key) for key in result.plan.entries]


def _tensor(result: Quantization, key: Key) -> dict[str, Any]:
    plan, params = result.plan, result.params.get(key)
    entry, root = plan.entries[key], plan.entries.get(plan.root(key))
    weight = isinstance(root, Constant)
    kind = "bias" if isinstance(root, Derived) else "weight" if weight else "activation"
    found: dict[str, Any] = {
        "tensor": key.tensor,
        "reader": key.reader,
        "kind": kind,
        "how": entry_text(entry),
    }
    if params is not None:
        found |= numbers(params)
    measured = entry.of if isinstance(entry, Measured) and entry.of is not None else key.tensor
    state = result.stats.get(measured) if result.stats is not None else None
    if state is not None and state.count:
        found["seen"] = [state.low, state.high]
        found["histogram"] = histogram.of_state(state)
    elif kind != "activation" and params is not None:
        found["histogram"] = _stored(result.model, key.tensor, params)
    return found


def numbers(params: QParams) -> dict[str, Any]:
    """The type, scales, zero points and range of parameters; of many, the extremes."""
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


def _stored(model: ir.Model, name: str, params: QParams) -> histogram.Histogram | None:
    """The histogram of a weight as it is stored, where it lies in the model in its own shape."""
    value = model.graph.initializers.get(name + QUANTIZED)
    tensor = value.const_value if value is not None else None
    if tensor is None:
        return None
    try:
        return histogram.of_weight(tensor.numpy(), params)
    except (IndexError, ValueError):  # stored in another layout: turned, packed or in blocks
        return None
