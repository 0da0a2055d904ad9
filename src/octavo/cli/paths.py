"""Checks of the paths on a command line, before any work is done: a wrong one must not cost a calibration."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from octavo.errors import OutputError, RecipeError

REPORT_SUFFIXES = (".html", ".json", ".md", ".txt")


def check_outputs(model: str, outputs: Mapping[str, str | None]) -> None:
    """Refuse outputs (by flag) that are the model, one file twice, a folder, or in no folder that exists."""
    seen: dict[Path, str] = {}
    for flag, name in outputs.items():
        if name is None:
            continue
        path = Path(name)
        if _same(path, Path(model)):
            raise RecipeError(
                f"{flag} {name} is the model itself, which is never overwritten; choose another name."
            )
        place = path.resolve()
        if place in seen:
            raise RecipeError(
                f"{flag} and {seen[place]} both say {name}; choose another name for one of them."
            )
        seen[place] = flag
        if path.is_dir():
            raise RecipeError(f"{flag} {name} is a folder; give the path of a file.")
        if not path.parent.is_dir():
            raise OutputError(
                f"{flag} {name} can't be written: there is no folder {path.parent}; create it first."
            )


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return one.resolve() == other.resolve()


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
    """A path as people would type it: from the working folder where it lies below it."""
    whole, here = Path(path).absolute(), Path.cwd()
    return str(whole.relative_to(here) if whole.is_relative_to(here) else whole)


def write_text(path: str, text: str) -> None:
    """Write a small file as a whole: beside, then renamed."""
    from octavo.model.files import replacing

    with replacing([Path(path)]) as (handle,):
        handle.write(text.encode("utf-8"))
