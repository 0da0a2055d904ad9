"""Models as files that every process can open, and what two of them must have in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.core import scratch
from octavo.errors import ModelError
from octavo.model import io
from octavo.model.session import InputSpec


def on_disk(source: Any, stack: contextlib.ExitStack) -> Path:
    """The path of a model; one in memory is written to a temporary folder.

    A result of ``octavo.quantize`` counts as the model in it.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise ModelError(f"There is no model at {path}; give the path of an ONNX file.")
        return path.absolute()
    folder = Path(stack.enter_context(scratch.folder()))
    return io.save(io.load(getattr(source, "model", source)), folder / "model.onnx")[0]


def title(source: Any) -> str:
    """How to speak of a model."""
    return str(source) if isinstance(source, str | os.PathLike) else "the model in memory"


def same_inputs(specs: Sequence[Sequence[InputSpec]], sources: Sequence[Any]) -> None:
    """Raise where two models do not take the same inputs."""
    if len(specs) < 2:
        return
    first, second = ({spec.name: spec for spec in one} for one in specs)
    if first.keys() != second.keys() or any(_clash(first[name], second[name]) for name in first):
        raise ModelError(
            f"{title(sources[0])} has the inputs {_signature(specs[0])}, and {title(sources[1])} has "
            f"{_signature(specs[1])}; two models can be compared only where they take the same inputs."
        )


def _clash(one: InputSpec, other: InputSpec) -> bool:
    """Whether nothing could be fed to both."""
    if one.dtype != other.dtype or len(one.shape) != len(other.shape):
        return True
    fixed = (
        (a, b)
        for a, b in zip(one.shape, other.shape, strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )
    return any(a != b and a > 0 and b > 0 for a, b in fixed)


def _signature(specs: Sequence[InputSpec]) -> str:
    return ", ".join(f"{spec.name!r} {spec.dtype} {list(spec.shape)}" for spec in specs)
