"""Checks of the paths on a command line, before any work is done: a wrong one must not cost a calibration."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.cli.verb import as_json_text
from octavo.errors import OutputError, RecipeError

REPORT_SUFFIXES = (".html", ".json", ".md", ".txt")


def model_outputs(options: argparse.Namespace) -> dict[str, str | None]:
    """Return the files that a run may write, by what they are called on the command line."""
    output = options.output
    found = {"-o": output, "--report": getattr(options, "report", None)}
    if output is not None:
        found["the weights beside -o,"] = f"{output}.data"
    if getattr(options, "manifest", False):
        found["--manifest"] = f"{output}.manifest.json"
    return found


def default_output(model: str, kind: str, suffix: str = ".onnx") -> str:
    """Return where a result goes where no output is named: ``model.int8.onnx`` beside the model."""
    path = Path(model)
    return str(path.with_name(f"{path.stem}.{kind}{suffix}" if kind else f"{path.stem}{suffix}"))


def make_folder(name: str, flag: str) -> None:
    """Make the folder that files are written into, unless it is there."""
    try:
        Path(name).mkdir(exist_ok=True)
    except OSError as error:
        raise OutputError(f"{flag} {name}: the folder can't be made: {error.strerror or error}.") from error


_POSITIONAL = ("model", "models", "quantized", "others", "files", "results", "graph")
_INPUTS = (
    *_POSITIONAL, "data", "evaluate_data", "recipe", "plan", "stats", "table",
    "labels", "classes", "annotations", "tokenizer", "evaluate", "task", "preprocess",
)  # fmt: skip
_TEXTS = ("--report", "--card", "--manifest", "--propose")  # what writes a text
_FUNCTIONS = ("evaluate", "task", "preprocess")  # a name, or FILE.py:FUNCTION


def check_outputs(
    options: argparse.Namespace, outputs: Mapping[str, str | None], *, texts: bool = False
) -> None:
    """Refuse outputs (by flag) that the command reads, that are one file twice, or that can't be written.

    ``texts`` says that all of them are texts, and not only those of :data:`_TEXTS`.
    """
    from octavo.core.files import refuse_binary
    from octavo.core.outputs import refuse_inputs, refuse_special

    seen: dict[Path, str] = {}
    try:
        refuse_inputs(outputs, _inputs(options))
        for flag, name in outputs.items():
            if name is not None:
                refuse_special(Path(name), flag)
            if name is not None and (texts or flag in _TEXTS):
                refuse_binary(Path(name), flag)
    except OutputError as error:
        raise RecipeError(str(error)) from error
    for flag, name in outputs.items():
        if name is None:
            continue
        if name == "-":
            raise RecipeError(
                f"{flag} - would be standard output, which this is not written to; give a path."
            )
        path = Path(name)
        place = path.resolve()
        if place in seen:
            raise RecipeError(
                f"{flag} and {seen[place]} both say {name}; choose another name for one of them."
            )
        seen[place] = flag
        if not path.parent.is_dir():
            raise OutputError(
                f"{flag} {name} can't be written: there is no folder {path.parent}; create it first."
            )
        if not os.access(path.parent, os.W_OK):  # nor on a file system that is read-only
            raise OutputError(
                f"{flag} {name} can't be written: {path.parent} takes no new files; choose another folder."
            )


def _inputs(options: argparse.Namespace) -> dict[str, Any]:
    """Return the files and folders that a command line says to read, by what it calls them."""
    from octavo.core.outputs import Lazy

    found: dict[str, Any] = {}
    for name in _INPUTS:
        value = getattr(options, name, None)
        if value is None or (name in _FUNCTIONS and ":" not in value):
            continue
        if name == "recipe" and Path(value).is_dir():  # the name of a preset, and of some folder
            continue
        if name not in _POSITIONAL:
            found[f"--{name.replace('_', '-')}"] = value
            continue
        named = value if isinstance(value, list | tuple) else [value]
        found[f"{name.upper()}"] = named
        found[f"the weights of {name.upper()},"] = Lazy(_weights, named)
    return found


def _weights(models: Sequence[str]) -> list[Path]:
    """Return the files that hold the weights of models; other files have none."""
    from octavo.model.files.io import read_files

    return [path for model in models for path in read_files(model).paths()]


def check_report(name: str | None) -> None:
    """Refuse a report of a kind that can't be written."""
    if name is None:
        return
    suffix = Path(name).suffix.lower()
    if suffix not in REPORT_SUFFIXES:
        raise RecipeError(
            f"--report {name}: the suffix says what to write; choose {', '.join(REPORT_SUFFIXES)}."
        )


def shown(path: str | Path) -> str:
    """Return a path as people would type it: from the working folder where it lies below it."""
    whole, here = Path(path).absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)


# ---- ``--report FILE``: a result in the form that the suffix names, the same for every verb


def write_report(
    path: str,
    data: Mapping[str, Any],
    *,
    page: Callable[[], str],
    markdown: Callable[[], str],
    text: Callable[[], str],
) -> None:
    """Write a report as a page, as JSON, as Markdown or as text; only the requested form is made."""
    from octavo.core.files import write_text

    match Path(path).suffix.lower():
        case ".html":
            content = page()
        case ".json":
            content = as_json_text(data)
        case ".md":
            content = markdown()
        case _:
            content = text()
    write_text(path, content.rstrip("\n") + "\n")
