"""Settings, versions and fingerprints: what it takes to reproduce a result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo._version import __version__
from octavo.reporting.html.report_parts import Side
from octavo.reporting.plan_tables import method_words
from octavo.reporting.text import many

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
