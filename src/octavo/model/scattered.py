"""Weights beside a model in files of the caller's choosing: one file of any name, or one for each weight."""

from __future__ import annotations

import contextlib
from pathlib import Path, PurePath
from typing import BinaryIO

import onnx
import onnx_ir as ir

from octavo.errors import OutputError
from octavo.model import external, files
from octavo.model.io import refuse_overwriting
from octavo.model.serialize import content, skeleton, tensor_header
from octavo.model.tensors import write_tensor


def save(
    model: ir.Model,
    path: str | Path,
    *,
    location: str | None = None,
    least: int = 1024,
    one_file: bool = True,
) -> list[Path]:
    """Write a model whose weights of at least ``least`` bytes lie beside it; returns the files, it first.

    They go into ``location`` (``<file name>.data`` if it is not given), or one each into
    ``<file name>.<number>.data``. Files of an earlier run are replaced, never appended to.
    """
    target = Path(path).absolute()
    outside = [
        name for name, value in model.graph.initializers.items() if _is_outside(content(name, value), least)
    ]
    if one_file:
        names = [_checked(location)] if location is not None else [f"{target.name}.data"]
        place = dict.fromkeys(outside, 0)
    else:
        names = [f"{target.name}.{number}.data" for number in range(len(outside))]
        place = {name: number for number, name in enumerate(outside)}
    targets = [target, *(target.parent / name for name in names)]
    refuse_overwriting(model, *targets)
    with contextlib.ExitStack() as stack:
        handles = stack.enter_context(files.replacing(targets))
        handles[0].write(_written(model, names, handles[1:], place).SerializeToString())
    return targets


def _is_outside(tensor: ir.TensorProtocol, least: int) -> bool:
    return not isinstance(tensor, ir.StringTensor) and tensor.nbytes >= least


def _checked(location: str) -> str:
    """A plain file name: a model may not name files elsewhere."""
    if PurePath(location).name != location or location in (".", "..", ""):
        raise OutputError(f"{location!r} is no plain file name; weights lie in the model's own folder.")
    return location


def _written(
    model: ir.Model, names: list[str], handles: list[BinaryIO], place: dict[str, int]
) -> onnx.ModelProto:
    proto = skeleton(model)
    for name, value in model.graph.initializers.items():
        tensor = content(name, value)
        header = tensor_header(name, tensor)
        if name in place:
            file = handles[place[name]]
            offset = file.tell()
            external.refer(header, names[place[name]], offset, write_tensor(tensor, file))
        elif not isinstance(tensor, ir.StringTensor):
            header.raw_data = tensor.tobytes()
        proto.graph.initializer.append(header)
    return proto
