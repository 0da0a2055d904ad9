"""The page of public names, from ``octavo.__all__`` and the stability marks in ``octavo/__init__.py``."""

from __future__ import annotations

import inspect

import octavo

_INTRO = """\
# Public names

Everything that programs may rely on. Names that are not on this page may change in any release.

- **stable**: keeps its meaning and its arguments; a change comes with a deprecation of at least two releases.
- **provisional**: useful today, and may still change between minor releases; the changelog says so.

`octavo.quantization` has the names of `onnxruntime.quantization` and is as stable as they are
([migrating](migrate.md)). `octavo.evaluation` has the reader and evaluator classes of ONNX Runtime's
examples, provisionally ([evaluate](evaluate.md)). The command line is stable: verbs, flags, exit codes
and the keys of `--json` ([command line](cli.md)).

The files are stable too: recipes, plans, statistics and manifests of this version can be read by later ones.
"""


def page() -> str:
    """Return the page: a table for each kind of name."""
    groups: dict[str, list[str]] = {}
    for name in octavo.__all__:
        if name != "__version__":
            groups.setdefault(_kind(getattr(octavo, name)), []).append(name)
    parts = [_INTRO]
    for title, names in groups.items():
        rows = [f"| `{name}` | {octavo.stability(name)} | {_summary(name)} |" for name in names]
        parts.append("\n".join([f"## {title}", "", "| name | stability | |", "|---|---|---|", *rows, ""]))
    return "\n".join(parts)


def _kind(value: object) -> str:
    if isinstance(value, type) and issubclass(value, Exception):
        return "Errors"
    if isinstance(value, type):
        return "Classes"
    return "Functions" if callable(value) else "Presets of recipes"


def _summary(name: str) -> str:
    value = getattr(octavo, name)
    if not callable(value):
        return f"weights {value.weights}, activations {value.activations or 'float'}".replace("|", "\\|")
    first = (inspect.getdoc(value) or "").split("\n\n", 1)[0]
    return " ".join(first.split()).replace("|", "\\|")
