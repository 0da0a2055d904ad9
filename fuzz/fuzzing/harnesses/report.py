"""Results in JSON: put on a page, as ``octavo report`` does it."""

from __future__ import annotations

import functools
import json
from html.parser import HTMLParser
from random import Random
from typing import Any

import numpy as np

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import tree
from octavo.comparison.comparing import compare
from octavo.errors import OctavoError
from octavo.evaluation import bench
from octavo.reporting.html import details, report, sides, verdict

SCOPE = ("reporting/html/report_parts.py", "reporting/html/page_data.py", "reporting/html/verdict.py",
         "reporting/html/page_data.py", "reporting/html/page.py", "reporting/pareto.py")  # fmt: skip
SECONDS = 10.0
_SCRIPTS = 3  # of a page: its data and two of ours

_WORDS = ("kind", "quantization", "model", "comparison", "evaluation", "bench", "tuning", "plan", "params",
          "details", "graph", "tensors", "nodes", "trials", "front", "best", "speed", "sqnr_db", "inf", "nan",
          "<script>", "</script>", "__proto__", "name", "bytes", "notes", "recipe", "manifest")  # fmt: skip


@functools.cache
def seeds() -> list[bytes]:
    """A result of each kind, about the small dense model."""
    model = made.models()[0]
    data = [{"x": np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)} for _ in range(4)]
    result = octavo.quantize(model, data, threads=1, engine="serial", histograms=True)
    found = [
        details.full(result, "m.onnx"),
        result.to_dict(),
        compare(model, result, data, threads=1).to_dict(),
        bench(model, result, seconds=0.02, threads=1, memory=False, profile=False).to_dict(),
        {**details.full(result, "m.onnx"), "tuning": _tuning()},
    ]
    return [json.dumps(one, default=str).encode() for one in found]


def _tuning() -> dict[str, Any]:
    """What a search tells, in small."""
    trial = {
        "name": "static", "speed": {"value": 1.5, "low": 1.4, "high": 1.6}, "sqnr_db": 30.0,
        "agreement": 1.0, "score": None, "bytes": 1000, "error": None, "seconds": 0.1,
    }  # fmt: skip
    return {
        "trials": [trial, {**trial, "name": "dynamic", "sqnr_db": "inf"}], "best": "static", "met": True,
        "reason": "the fastest", "front": ["static"], "float_bytes": 4000, "held_back": 1, "notes": [],
        "layers": [{"node": "n", "op_type": "MatMul", "sqnr_db": 20.0}],
    }  # fmt: skip


def mutate(data: bytes, chance: Random) -> bytes:
    """A changed tree."""
    return tree.mutate_json(data, chance, _WORDS)


def one(data: bytes) -> None:
    """A page or a sentence; nothing in the results becomes a part of the page that runs."""
    path = guard.folder() / "result.json"
    path.write_bytes(data)
    try:
        page = report(path)
        for side in sides([path]):
            verdict.verdict(side)
    except OctavoError:
        return
    found = _Parts()
    found.feed(page)
    if found.scripts != _SCRIPTS or found.handlers:
        raise guard.FindingError("markup", f"{found.scripts} scripts and the handlers {found.handlers[:3]}")


class _Parts(HTMLParser):
    """What would run in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
