"""One self-contained page: data, styles, scripts and the charting library in a single file.

What a model calls its tensors is data, never markup: it is embedded as JSON in which nothing can end the
script element, and scripts put it on the page as text. The policy in the page's head names the digests of
its own styles and scripts, so that nothing else could run or be fetched.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from functools import cache
from importlib import resources
from typing import Any

from octavo.reporting.pareto import NARROW, front_svg
from octavo.reporting.text import clean

ECHARTS = "6.1.0"
_SCRIPTS = ("dom.js", "tables.js", "charts.js", "drawing.js", "sections.js", "report.js")
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@cache
def asset(name: str) -> str:
    """Return the text of a file in ``assets``."""
    return (resources.files(__package__) / "assets" / name).read_text(encoding="utf-8")


def embedded(data: Any) -> str:
    """Return JSON that can stand in a script element, whatever the names in it are."""
    text = json.dumps(_finite(data), ensure_ascii=False, separators=(",", ":"), default=str, allow_nan=False)
    for character, escape in _UNSAFE.items():
        text = text.replace(character, escape)
    return text.encode("utf-8", "replace").decode("utf-8")


def _finite(data: Any) -> Any:
    """Return data in which numbers that JSON does not have are None."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {str(key): _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def policy(style: str, scripts: list[str]) -> str:
    """Return what the page may do: run its own scripts, use its own styles, and nothing else."""
    allowed = " ".join(_digest(script) for script in scripts)
    return (
        f"default-src 'none'; script-src {allowed}; style-src {_digest(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _front(number: int, side: dict[str, Any]) -> str:
    """Return the drawing of trials, for a window and for a phone; a script moves it to its section."""
    drawing = front_svg(side["tuning"]) if side.get("tuning") else ""
    if not drawing:
        return ""
    narrow = front_svg(side["tuning"], NARROW)
    return (
        f'<template id="front-{number}"><div class="wide-only">{drawing}</div>'
        f'<div class="narrow-only">{narrow}</div></template>'
    )


def render(data: dict[str, Any]) -> str:
    """Return the page."""
    style = asset("report.css")
    own = "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in _SCRIPTS) + "\n})();"
    library = asset("echarts.common.min.js")
    parts = {
        "title": html.escape(clean(f"{data['title']} – Octavo report")),
        "policy": policy(style, [library, own]),
        "style": style,
        "data": embedded(data),
        "fronts": "".join(_front(number, side) for number, side in enumerate(data["sides"])),
        "library": library,
        "script": own,
    }
    return _PLACE.sub(lambda found: parts[found[1]], asset("page.html"))
