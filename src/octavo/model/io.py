"""Reading and writing model files.

Loading copies structure, never weights: large weights stay in the file they came from (:mod:`.tensors`)
whether they lie inside the ``.onnx`` file or beside it. Saving asks one tensor at a time for its content.
Nothing is written over what was read, and nothing half-written is left behind (:mod:`.files`).
"""

from __future__ import annotations

import io as _io
import os
from pathlib import Path
from typing import Union

import onnx
import onnx_ir as ir

from octavo.errors import ModelError, OutputError
from octavo.model import files, query
from octavo.model.fingerprint import fingerprint
from octavo.model.reading import FILES, from_bytes, from_path, from_proto, own_copy
from octavo.model.serialize import (
    add_tensor,
    content,
    describe,
    held_bytes,
    lowest_ir_version,
    skeleton,
    source_path,
    tensors,
    weight_bytes,
    write_model,
)
from octavo.model.tensors import same_file

__all__ = [
    "ModelSource",
    "describe",
    "fingerprint",
    "held_bytes",
    "load",
    "lowest_ir_version",
    "save",
    "source_path",
    "tensors",
    "to_bytes",
    "to_proto",
    "weight_bytes",
]

ModelSource = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto, ir.Model]

EXTERNAL_ABOVE = 1_500_000_000  # bytes of weights; protobuf stops at 2 GiB
PROTOBUF_LIMIT = 2**31 - 1


def load(source: ModelSource, *, base_dir: Path | None = None, gather: bool = False) -> ir.Model:
    """An independent copy of a model: from a path, serialized bytes, a ``ModelProto`` or an ``ir.Model``.

    ``base_dir`` is where external weights are looked for if ``source`` is no path. The caller's object and
    files are never changed; large weights are read from them when needed, so they must stay as they are.
    ``gather`` is for a model that is normalized next: ``Constant`` nodes may become initializers at once.
    """
    if isinstance(source, ir.Model):
        model = own_copy(source, base_dir)
    elif isinstance(source, onnx.ModelProto):
        model = from_proto(source, base_dir, gather=gather)
    elif isinstance(source, bytes | bytearray | memoryview):
        model = from_bytes(bytes(source), base_dir, gather=gather)
    elif isinstance(source, str | os.PathLike):
        model = from_path(Path(source), base_dir, gather=gather)
    else:
        raise ModelError(
            f"A model is a path, bytes, an onnx.ModelProto or an onnx_ir.Model, not {type(source).__name__}."
        )
    if len(model.graph) == 0 and not model.graph.outputs:
        raise ModelError(f"{describe(model)} has an empty graph: there is nothing to quantize.")
    return model


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as protobuf, all weights inside."""
    _refuse_too_large(model)
    proto = skeleton(model)
    for name, value in query.initializers(model.graph).items():
        add_tensor(proto.graph, name, content(name, value))
    return proto


def to_bytes(model: ir.Model) -> bytes:
    """The model as serialized protobuf, all weights inside."""
    _refuse_too_large(model)
    buffer = _io.BytesIO()
    write_model(model, buffer, external_name=None)
    return buffer.getvalue()


def _refuse_too_large(model: ir.Model) -> None:
    if weight_bytes(model) > PROTOBUF_LIMIT - (64 << 20):
        raise ModelError(
            f"{describe(model)} holds {weight_bytes(model) / 1e9:.1f} GB of weights, and one protobuf "
            "message holds 2 GB at most; save it to a path instead, which puts the weights beside it."
        )


def save(model: ir.Model, path: str | os.PathLike[str], *, external_data: bool | None = None) -> list[Path]:
    """Write a model; returns the files written, the model first.

    Weights go into ``<file name>.data`` beside it if asked for, or if they exceed 1.5 GB. Both are written
    under temporary names and renamed at the end, weights first; an interruption between the two renames is
    undone, and only a crash of the machine in that instant can leave a new weights file beside an old model.
    """
    target = Path(path).absolute()
    size = weight_bytes(model)
    beside = size > EXTERNAL_ABOVE if external_data is None else external_data
    if not beside and size > PROTOBUF_LIMIT - (64 << 20):
        raise OutputError(
            f"{target} can't hold {size / 1e9:.1f} GB of weights in one file (protobuf's limit is 2 GB); "
            "leave external_data at its default, or set it to True."
        )
    targets = [target] + ([target.with_name(target.name + ".data")] if beside else [])
    refuse_overwriting(model, *targets)
    files.check_room(target, size)
    with files.replacing(targets) as handles:
        data_file = handles[1] if beside else None
        write_model(model, handles[0], targets[1].name if beside else None, data_file)
    return targets


def refuse_overwriting(model: ir.Model, *targets: Path) -> None:
    """Raise if writing to these paths would change a file that the model is read from."""
    sources: set[Path] = set(model.meta.get(FILES, ()))
    for target in targets:
        for source in sources:
            if target == source or same_file(target, source):
                raise OutputError(
                    f"{target} is the model being read (weights are taken from {source} while writing); "
                    "choose another output path."
                )
