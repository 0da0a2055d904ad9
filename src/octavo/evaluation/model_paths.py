"""Models as files that every process can open, and what two compared models must have in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir

from octavo.core import scratch
from octavo.data.decoder import both_float, is_past
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare.widen import widen
from octavo.model.runtime.session import InputSpec, Session


def model_path(source: Any, stack: contextlib.ExitStack) -> Path:
    """Return the path of a model; one in memory is written to a temporary folder first.

    A result of ``octavo.quantize`` counts as the model in it.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if not path.is_file():
            raise ModelError(f"There is no model at {path}; give the path of an ONNX file.")
        return path.absolute()
    folder = Path(stack.enter_context(scratch.folder()))
    return io.save(io.load(getattr(source, "model", source)), folder / "model.onnx")[0]


def runnable_path(
    source: Any, stack: contextlib.ExitStack, custom_ops: Sequence[str | Path] = ()
) -> tuple[Path, str]:
    """Return the path of a model, and a note where it is that of a copy computed in float32.

    The runtime's CPU has few kernels for bfloat16, so models that are exported in it do not load.
    """
    path = model_path(source, stack)
    model = io.load(path)
    held = [value for graph in query.graphs(model) for value in graph.initializers.values()]
    if all(value.dtype != ir.DataType.BFLOAT16 for value in (*model.graph.inputs, *held)):
        return path, ""
    try:
        Session.open(path, custom_ops=custom_ops)
    except ModelError:
        if not widen(model):
            raise
        folder = Path(stack.enter_context(scratch.folder()))
        note = f"{model_title(source)} is computed in float32: the runtime lacks kernels for bfloat16"
        return io.save(model, folder / "model.onnx")[0], note
    return path, ""


def model_title(source: Any) -> str:
    """Return how a model is called in results and messages."""
    return str(source) if isinstance(source, str | os.PathLike) else "the model in memory"


def check_same_inputs(specs: Sequence[Sequence[InputSpec]], sources: Sequence[Any]) -> None:
    """Raise where a model does not take the same inputs as the first."""
    for source, own in zip(sources[1:], specs[1:], strict=True):
        first, second = ({spec.name: spec for spec in one} for one in (specs[0], own))
        clash = {
            name
            for name in (*first, *second)
            if name not in first or name not in second or _conflict(first[name], second[name])
        }
        if clash:
            raise ModelError(
                f"{model_title(sources[0])} takes {_signature(specs[0], clash)}, but"
                f" {model_title(source)} takes {_signature(own, clash)}; models can be compared only if they"
                " take the same inputs."
            )


def _conflict(one: InputSpec, other: InputSpec) -> bool:
    """Return whether there is no array for both inputs; floats may have other widths, caches other types."""
    if len(one.shape) == len(other.shape) and is_past(one) and is_past(other):
        return False  # each model begins with a cache of its own
    same = one.dtype == other.dtype or both_float(one.dtype, other.dtype)
    if not same or len(one.shape) != len(other.shape):
        return True
    fixed = (
        (a, b)
        for a, b in zip(one.shape, other.shape, strict=True)
        if isinstance(a, int) and isinstance(b, int)
    )
    return any(a != b and a > 0 and b > 0 for a, b in fixed)


def _signature(specs: Sequence[InputSpec], names: Collection[str]) -> str:
    shown = [f"{spec.name!r} {spec.dtype} {list(spec.shape)}" for spec in specs if spec.name in names]
    more = [f"and {len(shown) - _MAX_SHOWN} more"] if len(shown) > _MAX_SHOWN else []
    return ", ".join([*shown[:_MAX_SHOWN], *more]) or "none of these"


_MAX_SHOWN = 4  # inputs in a message
