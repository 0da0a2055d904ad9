"""The harnesses: a module each, with the same five names.

``seeds()`` gives valid inputs, ``mutate(data, chance)`` a changed one, and ``one(data)`` reads it: it raises
only for a finding. ``SCOPE`` are the files of Octavo whose lines it is meant to reach, ``SECONDS`` the CPU
time that an input may take.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from random import Random
from typing import Protocol, cast

CORPUS = Path(__file__).resolve().parents[2] / "corpus"
NAMES = ("model", "external", "numpy_files", "statistics", "plan", "table", "recipe", "quantize", "images",
         "labels", "report", "lint", "choose", "compare", "weight_only")  # fmt: skip


class Harness(Protocol):
    """What a module of this folder holds."""

    SCOPE: tuple[str, ...]
    SECONDS: float

    def seeds(self) -> list[bytes]:
        """Valid inputs."""
        ...

    def mutate(self, data: bytes, chance: Random) -> bytes:
        """An input like this one."""
        ...

    def one(self, data: bytes) -> None:
        """Read an input; raises only for a finding."""
        ...


def present() -> tuple[str, ...]:
    """The harnesses whose packages are installed: only images need one more than Octavo does."""
    without = () if importlib.util.find_spec("PIL") is not None else ("images",)
    return tuple(name for name in NAMES if name not in without)


def load(name: str) -> Harness:
    """The harness of this name."""
    return cast(Harness, importlib.import_module(f"fuzzing.harnesses.{name}"))


def kept(name: str) -> list[Path]:
    """Inputs that were findings once, and stay in the corpus."""
    return sorted((CORPUS / name).glob("*")) if (CORPUS / name).is_dir() else []


def corpus(name: str) -> list[bytes]:
    """What a harness starts from: its seeds, and the findings of the past."""
    return load(name).seeds() + [path.read_bytes() for path in kept(name)]
