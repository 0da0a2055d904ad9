"""What the file of a quantized model of any tool shows without running it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo.core.files import read_json
from octavo.core.qparams import QParams
from octavo.model.fake_quant.forms import linear_parameters
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.operators import CONVERSIONS
from octavo.reporting import inspection as inspect
from octavo.reporting.html import histogram, operator_graph
from octavo.reporting.html.details import SCHEMA, numbers

_MAX_WEIGHT_VALUES = 1 << 26  # a larger weight has no histogram
_MAX_MANIFEST_BYTES = 1 << 26  # a larger file beside a model is not its manifest


def facts(path: str | Path) -> dict[str, Any]:
    """Return the model's graph, ranges and weights, and its manifest where there is one beside it."""
    model = io.load(path)
    manifest = _manifest(Path(path))
    found = inspect.inspect(model)
    return {
        "schema": 1,
        "kind": "model",
        "inspection": found.to_dict(),
        "bytes": found.bytes,
        "float_bytes": int(manifest.get("float_bytes") or 0),
        "notes": list(manifest.get("notes") or ()),
        "recipe": manifest.get("recipe"),
        "details": {
            "schema": SCHEMA,
            "name": str(path),
            "source": None,
            "graph": operator_graph.operators(model).to_dict(),
            "tensors": list(_tensors(model)),
            "manifest": manifest,
        },
    }


def _manifest(path: Path) -> dict[str, Any]:
    beside = Path(f"{path}.manifest.json")
    try:
        found = read_json(beside, _MAX_MANIFEST_BYTES)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _tensors(model: ir.Model) -> Iterator[dict[str, Any]]:
    """Yield each tensor that is quantized or dequantized with its own parameters, once."""
    seen: set[str] = set()
    for node in query.nodes(model):
        if node.op_type not in CONVERSIONS or len(node.inputs) < 2:
            continue
        value = node.inputs[0]
        weight = node.op_type == "DequantizeLinear" and query.constant(value) is not None
        params = linear_parameters(node)
        if value is None or params is None or (node.op_type == "DequantizeLinear" and not weight):
            continue
        name = (value.name or "").removesuffix("_quantized")
        if name in seen:
            continue
        seen.add(name)
        kind = "activation" if not weight else "bias" if params.qtype.bits == 32 else "weight"
        found = {"tensor": name, "reader": None, "kind": kind, "how": "as in the file", **numbers(params)}
        if weight:
            found["histogram"] = _histogram(value, params)
        yield found


def _histogram(value: ir.Value, params: QParams) -> histogram.Histogram | None:
    stored = query.array(value, limit=_MAX_WEIGHT_VALUES)
    if stored is None:
        return None
    try:
        return histogram.of_weight(stored, params)
    except (IndexError, ValueError):
        return None
