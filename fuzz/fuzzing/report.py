"""What a run has done, as a table and as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import re
from pathlib import Path
from typing import Any

from fuzzing.campaign import Found
from fuzzing.driver import Tally, findings
from fuzzing.harnesses import load
from fuzzing.lines import files_in, in_file

NATIVE = ("crash", "native hang")  # in the runtime: running a model is trusting it
_RUN_MODELS = ("quantize", "lint", "choose", "compare", "weight_only")
_PACKAGES = (
    "numpy",
    "onnx",
    "onnx-ir",
    "onnxruntime",
    "protobuf",
    "pillow",
    "pyyaml",
    "atheris",
    "hypothesis",
)


def coverage(name: str, tally: Tally) -> tuple[int, int, int]:
    """Lines reached in the harness's own scope, lines there, and lines reached in all of Octavo."""
    reached = there = 0
    for file in files_in(load(name).SCOPE):
        lines = in_file(file)
        reached += len(lines & tally.lines.get(file, set()))
        there += len(lines)
    total = sum(len(found & in_file(file)) for file, found in tally.lines.items())
    return reached, there, total


def rows(tallies: dict[str, Tally]) -> list[dict[str, Any]]:
    """A row for each harness."""
    made = []
    for name, tally in tallies.items():
        reached, there, total = coverage(name, tally)
        kinds = [found.kind for found, _ in tally.found.values()]
        native = sum(kind in NATIVE for kind in kinds) if name in _RUN_MODELS else 0
        made.append({
            "harness": name,
            "executions": tally.executions,
            "per second": round(tally.executions / max(tally.given, 1e-9), 1),
            "CPU s": round(tally.cpu, 1),
            "scope lines": f"{reached}/{there}",
            "scope %": round(100 * reached / max(there, 1), 1),
            "lines": total,
            "starts": tally.starts,
            "findings": len(kinds) - native,
            "native": native,
        })  # fmt: skip
    return made


def table(tallies: dict[str, Tally]) -> str:
    """The rows as text."""
    found = rows(tallies)
    heads = list(found[0])
    cells = [heads, *([str(row[head]) for head in heads] for row in found)]
    widths = [max(len(line[at]) for line in cells) for at in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(lines)


def whole(tallies: dict[str, Tally]) -> str:
    """The lines of the whole package that any harness reached."""
    reached = there = 0
    for file in files_in(("",)):
        lines = in_file(file)
        there += len(lines)
        reached += len(lines & set().union(*(tally.lines.get(file, set()) for tally in tallies.values())))
    return f"whole package: {reached} of {there} lines of functions, {100 * reached / there:.1f} %"


def plain(tallies: dict[str, Tally], **about: Any) -> dict[str, Any]:
    """All of it for JSON."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {**about, "coverage": whole(tallies), "python": platform.python_version(), "versions": versions,
            "harnesses": rows(tallies), "findings": list(findings(tallies))}  # fmt: skip


def write_findings(tallies: dict[str, Tally], folder: Path) -> list[Path]:
    """The input and the trace of each finding, as files."""
    return [write_finding(found, folder) for tally in tallies.values() for found, _ in tally.found.values()]


def write_finding(found: Found, folder: Path) -> Path:
    """The input and the trace of a finding, as files; returns that of the input."""
    folder.mkdir(parents=True, exist_ok=True)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", found.signature)[:120]
    (folder / f"{name}.bin").write_bytes(found.content)
    (folder / f"{name}.txt").write_text(json.dumps(found.signature) + "\n" + found.trace)
    return folder / f"{name}.bin"
