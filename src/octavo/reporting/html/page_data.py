"""The page's data: all that is known of each side, joined by name and ready to be drawn.

Names stay what they are in the model; the page shows them as text only. Numbers are rounded to what can be
seen, and an SQNR without noise is ``EXACT`` dB, since JSON has no infinity.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo._version import __version__
from octavo.core import codec
from octavo.core.plan import Skipped
from octavo.reporting.figures import number
from octavo.reporting.html import verdict
from octavo.reporting.html.graph_drawing import drawing
from octavo.reporting.html.report_parts import LETTERS, Side
from octavo.reporting.plan_tables import method_words
from octavo.reporting.proposal_tables import gain_text
from octavo.reporting.summary import kept_in_float
from octavo.reporting.text import many

VERSION = 1  # of the data in a page, which its script checks
EXACT = 200.0  # dB, more than any measured SQNR
_LONGEST_NAME = 400  # characters of a name on the page; longer ones lose their middle


def rounded(value: Any, digits: int = 5) -> float | None:
    """Return a number with as many digits as can be read off a chart; None for NaN."""
    found = number(value)
    if found is None or math.isnan(found):
        return None
    if math.isinf(found):
        return math.copysign(EXACT, found)
    return float(f"{found:.{digits}g}")


def page_data(sides: list[Side], title: str | None = None) -> dict[str, Any]:
    """Return everything on the page."""
    made = [side_data(side, index, len(sides)) for index, side in enumerate(sides)]
    *first, last = dict.fromkeys(side["name"] for side in made)
    return {
        "octavo_report": VERSION,
        "title": title or " and ".join(filter(None, [", ".join(first), last])),
        "sides": made,
    }


def side_data(side: Side, index: int = 0, of: int = 1) -> dict[str, Any]:
    """Return the data of one quantized model."""
    comparison = side.part("comparison")
    data = {
        "letter": LETTERS[index] if of > 1 else "",
        "name": side.label or side.name or _source_name(side) or "quantized model",
        "verdict": verdict.verdict(side),
        "figures": verdict.tiles(side),
        "kept": _kept(side),
        "depth": [_depth(tensor) for tensor in comparison.get("tensors") or ()],
        "outputs": [_output(output) for output in comparison.get("outputs") or ()],
        "culprits": [
            _culprit(culprit, comparison.get("proposal") or {})
            for culprit in comparison.get("culprits") or ()
        ],
        "unmatched": list(comparison.get("unmatched") or ()),
        "samples": comparison.get("samples"),
        "tensors": _tensors(side, comparison),
        "graph": drawing(side),
        "evaluation": side.parts.get("evaluation"),
        "bench": _bench(side.parts.get("bench")),
        "tuning": side.part("quantization").get("tuning"),
        "settings": settings(side),
        "notes": _notes(side),
    }
    cut: dict[str, Any] = shortened(data)
    return cut


def shortened(data: Any) -> Any:
    """Return the same data with very long names shortened in the middle."""
    if isinstance(data, str) and len(data) > _LONGEST_NAME:
        half = _LONGEST_NAME // 2
        return f"{data[:half]}…{data[-half:]}"
    if isinstance(data, dict):
        return {key: shortened(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [shortened(value) for value in data]
    return data


def _source_name(side: Side) -> str | None:
    name = side.details.get("source")
    return f"{Path(name).name}, quantized" if name else None


def _kept(side: Side) -> list[dict[str, Any]]:
    """Return what was kept in float, by reason."""
    skipped = side.part("quantization").get("skipped") or ()
    groups = kept_in_float([codec.decode(Skipped, dict(one)) for one in skipped])
    return [
        {"reason": group.reason, "ops": dict(group.op_types), "nodes": list(group.nodes)} for group in groups
    ]


def _errors(errors: Mapping[str, Any] | None) -> dict[str, float | None] | None:
    if errors is None:
        return None
    return {name: rounded(errors.get(name)) for name in ("sqnr", "cosine", "max_error")}


def _depth(tensor: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "tensor": tensor["name"],
        "node": tensor.get("node"),
        "op": tensor["op_type"],
        "local": _errors(tensor.get("local")),
        "total": _errors(tensor.get("accumulated")),
        "clipped": rounded(tensor.get("clipped")),
        "rounding": rounded(tensor.get("rounding")),
        "used": rounded(tensor.get("used")),
    }


def _output(output: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": output["name"],
        "errors": _errors(output.get("errors")),
        "execution": _errors(output.get("execution")),
    }


def _culprit(culprit: Mapping[str, Any], proposal: Mapping[str, Any]) -> dict[str, Any]:
    """Return a culprit with what was tried for it, or with what to try."""
    names = ("tensor", "kind", "node", "op_type", "cause", "text")
    tried = [one for one in proposal.get("tried") or () if one["tensor"] == culprit["tensor"]]
    tests = [f"{one['change']['text']}: {gain_text(one)}{', kept' if one['kept'] else ''}" for one in tried]
    change = "; ".join(tests) or (culprit.get("change") or {}).get("text", "")
    return {
        **{name: culprit.get(name) for name in names},
        "sqnr": rounded(culprit.get("sqnr")),
        "label": "Tried" if tests else "Try",
        "change": change,
    }


def _tensors(side: Side, comparison: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the plan's tensors, or those of the comparison where there is no plan."""
    weights = {one["name"]: one for one in comparison.get("weights") or ()}
    values = {one["name"]: one for one in comparison.get("tensors") or ()}
    rows = list(side.details.get("tensors") or ()) or _planned(side.made)
    if not rows:
        rows = [{"tensor": name, "reader": None, "kind": "weight", "type": one["qtype"], "how": ""}
                for name, one in weights.items()]  # fmt: skip
        rows += [{"tensor": name, "reader": None, "kind": "activation", "how": ""} for name in values]
    return [_tensor(row, weights, values) for row in rows]


def _planned(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tensors of a result that was written without details."""
    kinds = {"Constant": "weight", "Derived": "bias"}
    params = made.get("params") or {}
    found = []
    for tensor, reader, entry in (made.get("plan") or {}).get("entries") or ():
        numbers = params.get(tensor if reader is None else f"{tensor} → {reader}") or {}
        scale, zero = numbers.get("scale"), numbers.get("zero_point")
        found.append(
            {
                "tensor": tensor,
                "reader": reader,
                "kind": kinds.get(entry.get("kind"), "activation"),
                "how": str(entry.get("kind", "")).lower(),
                "type": numbers.get("type"),
                "scales": numbers.get("count", 1),
                "scale": scale if isinstance(scale, list) else [scale, scale] if scale is not None else None,
                "zero_point": zero if isinstance(zero, list) else [zero, zero] if zero is not None else None,
            }
        )
    return found


def _tensor(row: Mapping[str, Any], weights: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        key: row.get(key) for key in ("tensor", "reader", "kind", "how", "type", "granularity", "scales")
    }
    for key in ("scale", "zero_point", "range", "seen"):
        pair = row.get(key)
        found[key] = None if pair is None else [rounded(value, 6) for value in pair]
    found["histogram"] = row.get("histogram")
    error = weights.get(row["tensor"]) if row["kind"] != "activation" else values.get(row["tensor"])
    if error is not None:
        distance = error.get("errors") if row["kind"] != "activation" else error.get("local")
        found["sqnr"] = rounded((distance or {}).get("sqnr"))
        found["clipped"], found["used"] = rounded(error.get("clipped")), rounded(error.get("used"))
        if found["seen"] is None and number(error.get("low")) is not None:
            found["seen"] = [rounded(error["low"], 6), rounded(error["high"], 6)]
    return {key: value for key, value in found.items() if value is not None}


def _bench(bench: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the measurements without the times of single nodes, which are in the graph."""
    if bench is None:
        return None
    models = [{k: v for k, v in model.items() if k != "nodes"} for model in bench["models"]]
    return {**bench, "models": models}


def _notes(side: Side) -> list[str]:
    found: dict[str, None] = {}
    for part in side.parts.values():
        for note in (*((part.get("plan") or {}).get("notes") or ()), *(part.get("notes") or ())):
            found[str(note)] = None
    return list(found)


# ---- Settings, versions and fingerprints: what it takes to reproduce a result

Rows = list[list[str]]


def settings(side: Side) -> list[dict[str, Any]]:
    """Return groups of names and values."""
    made, manifest = side.made, side.details.get("manifest") or {}
    groups = [
        ("Models", _models(side)),
        ("Recipe", _flat(made.get("recipe") or manifest.get("recipe") or {})),
        ("Fingerprints", _flat(manifest.get("fingerprints") or {})),
        ("Versions", _versions(manifest)),
        ("Comparison", _comparison(side)),
        ("Evaluation", _evaluation(side)),
        ("Measurement", _measurement(side)),
    ]
    return [{"title": title, "rows": rows} for title, rows in groups if rows]


def _models(side: Side) -> Rows:
    comparison, details = side.part("comparison"), side.details
    float_model = details.get("source") or comparison.get("float_model")
    quantized = details.get("name") or comparison.get("quantized")
    rows = (("float model", float_model), ("quantized model", quantized))
    return [[name, str(value)] for name, value in rows if value]


def _versions(manifest: Mapping[str, Any]) -> Rows:
    rows = [["octavo", str(manifest.get("octavo") or __version__)]]
    rows += [[name, str(version)] for name, version in (manifest.get("versions") or {}).items()]
    if manifest.get("machine"):
        rows.append(["machine", str(manifest["machine"])])
    if manifest.get("samples"):
        rows.append(["calibrated on", many(int(manifest["samples"]), "sample")])
    return rows


def _comparison(side: Side) -> Rows:
    found = side.part("comparison")
    if not found:
        return []
    return [
        ["samples", f"{found['samples']}, {found['looked']} of them tensor by tensor"],
        ["operators matched", str(found["matched"])],
        ["float model matched as", str(found.get("form", ""))],
    ]


def _evaluation(side: Side) -> Rows:
    found = side.part("evaluation")
    if not found:
        return []
    rows = [["task", str(found["task"])], ["samples", str(found["samples"])]]
    return rows + _flat(found.get("settings") or {})


def _measurement(side: Side) -> Rows:
    found = side.part("bench")
    if not found:
        return []
    threads = found["threads"] if found["threads"] is not None else "the runtime's choice"
    rows = [["rounds", found["rounds"]], ["batch", found["batch"]], ["threads", threads]]
    rows += [["data", found["data"]], ["clock", found.get("clock", "wall")]]
    return [[str(name), str(value)] for name, value in rows]


def _flat(data: Mapping[str, Any], prefix: str = "") -> Rows:
    """Return nested settings as names with dots."""
    rows: Rows = []
    for name, value in data.items():
        if name == "method" and value:
            rows.append([f"{prefix}{name}", method_words(value)])
        elif isinstance(value, Mapping) and value:
            rows += _flat(value, f"{prefix}{name}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
            rows.append([f"{prefix}{name}", text])
    return rows
