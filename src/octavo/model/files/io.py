"""Reading and writing model files: one function reads, with bounds, and one writes, whole or not at all.

Loading copies structure, never weights: large weights stay in the file they came from (:mod:`.external`)
whether they lie inside the ``.onnx`` file or beside it. Saving reads one tensor at a time.
Nothing is written over what was read, and nothing half-written is left behind (:mod:`octavo.core.files`).
"""

from __future__ import annotations

import hashlib
import io as _io
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePath
from typing import Any, Union

import onnx
import onnx_ir as ir

from octavo.core import files
from octavo.core.outputs import Lazy, is_same_file
from octavo.errors import ModelError, OctavoError, OutputError
from octavo.model.files import reading
from octavo.model.files.serialize import (
    INLINE_MOST,
    DataFiles,
    add_tensor,
    content,
    has_plain_bytes,
    skeleton,
    tensor_digest,
    write_model,
)
from octavo.model.graph import meta, query
from octavo.model.graph.inline import check_functions
from octavo.model.graph.meta import describe as describe
from octavo.model.graph.oversized import refuse_oversized
from octavo.model.graph.tensors import tensor_bytes

# ---- What makes two models the same: structure, names and weights, however they were stored

_THREADS = 4  # hashing leaves the interpreter free


def fingerprint(model: ir.Model) -> str:
    """Return the SHA-256 of structure, names and weights: equal for one model however it was loaded."""
    digest = hashlib.sha256()
    for item in _structure(model):
        digest.update(repr(item).encode("utf-8", "surrogateescape"))
    names = [(graph, name) for graph in query.all_graphs(model) for name in sorted(graph.initializers)]
    tensors = [content(name, graph.initializers[name]) for graph, name in names]
    with ThreadPoolExecutor(_THREADS) as pool:
        for (_, name), tensor, part in zip(names, tensors, pool.map(tensor_digest, tensors), strict=True):
            digest.update(repr((name, tensor.dtype.name, tuple(tensor.shape.numpy()))).encode())
            digest.update(part)
    return digest.hexdigest()


def _structure(model: ir.Model) -> Iterator[object]:
    yield "opsets", sorted(model.opset_imports.items())
    for graph in query.all_graphs(model):
        yield "graph", [_signature(value) for value in graph.inputs], [value.name for value in graph.outputs]
        for node in graph:
            yield node.domain, node.op_type, node.overload, node.name
            yield _named(node.inputs)
            yield _named(node.outputs)
            for key in sorted(node.attributes):
                yield from _attribute(node.attributes[key])
    for identifier in sorted(model.functions):
        yield "function", identifier


def _named(values: Sequence[ir.Value | None]) -> list[str | None]:
    """Return the names, without those left out at the end, which not every writer keeps."""
    found = [value.name if value is not None else "" for value in values]
    while found and found[-1] == "":
        found.pop()
    return found


def _signature(value: ir.Value) -> tuple[str | None, str, str]:
    """Return name, type and shape; a shape without a type says nothing, and can't be written."""
    return value.name, str(value.dtype), str(value.shape if value.dtype is not None else None)


def _attribute(attribute: ir.Attr) -> Iterator[object]:
    yield attribute.name, attribute.type.name, attribute.ref_attr_name
    if attribute.is_ref():
        return
    tensors: tuple[ir.TensorProtocol, ...]
    match attribute.type:
        case ir.AttributeType.GRAPH | ir.AttributeType.GRAPHS:
            return  # its content is visited as a graph of its own
        case ir.AttributeType.TENSOR:
            tensors = (attribute.as_tensor(),)
        case ir.AttributeType.TENSORS:
            tensors = tuple(attribute.as_tensors())
        case _:
            yield attribute.value
            return
    for tensor in tensors:
        yield tensor.dtype.name, tuple(tensor.shape.numpy()), tensor_digest(tensor)


ModelSource = Union[str, "os.PathLike[str]", bytes, onnx.ModelProto, ir.Model]

EXTERNAL_ABOVE = 1_500_000_000  # bytes of weights, above which they are written beside the model
_MESSAGE_MOST = (2 << 30) - (64 << 20)  # bytes of weights in one message: protobuf's 2 GiB less the structure


def load(source: ModelSource, *, base_dir: Path | None = None, lift_constants: bool = False) -> ir.Model:
    """Return an independent copy of a model, given as a path, bytes, a ``ModelProto`` or an ``ir.Model``.

    ``base_dir`` is where external weights are looked for if ``source`` is not a path. The caller's object and
    files are never changed; large weights are read from them when needed, so they must stay as they are.
    What is damaged or without bounds is refused here, before the runtime sees it. ``lift_constants`` is for a
    model that is normalized next: ``Constant`` nodes may become initializers at once.
    """
    if isinstance(source, ir.Model):
        check_functions(source)
        model = reading.own_copy(source, base_dir)
    elif isinstance(source, onnx.ModelProto):
        model = reading.from_proto(source, base_dir, lift_constants=lift_constants)
    elif isinstance(source, bytes | bytearray | memoryview):
        model = reading.from_bytes(bytes(source), base_dir, lift_constants=lift_constants)
    elif isinstance(source, str | os.PathLike):
        model = reading.from_path(Path(source), base_dir, lift_constants=lift_constants)
    else:
        raise ModelError(
            "A model must be a path, bytes, an onnx.ModelProto or an onnx_ir.Model, not "
            f"{type(source).__name__}."
        )
    if len(model.graph) == 0 and not model.graph.outputs:
        raise ModelError(f"{describe(model)} has an empty graph: there is nothing to quantize.")
    refuse_oversized(model)
    return model


def read_proto(path: str | os.PathLike[str]) -> onnx.ModelProto:
    """Return a model file as protobuf, without external weights, in the same bounds as :func:`load`."""
    return reading.message_of(Path(path))


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as protobuf, all weights inside."""
    _refuse_too_large(model)
    proto = skeleton(model)
    for name, value in query.initializers(model.graph).items():
        add_tensor(proto.graph, name, content(name, value))
    return proto


def to_bytes(model: ir.Model) -> bytes:
    """Return the model as serialized protobuf, all weights inside."""
    _refuse_too_large(model)
    buffer = _io.BytesIO()
    write_model(model, buffer)
    return buffer.getvalue()


def _refuse_too_large(model: ir.Model) -> None:
    size = weight_bytes(model)
    if size > _MESSAGE_MOST:
        raise ModelError(
            f"{describe(model)} holds {size / 1e9:.1f} GB of weights, and one protobuf message holds 2 GB at "
            "most; save it to a path instead, which puts the weights beside it."
        )


def save(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data: bool | None = None,
    location: str | None = None,
    least: int = INLINE_MOST,
    one_file: bool = True,
) -> list[Path]:
    """Write a model and return the files written, the model first.

    Weights of at least ``least`` bytes go beside it if ``external_data`` says so, or by default if all exceed
    1.5 GB: into ``location`` (``<file name>.data``), or, without ``one_file``, each into
    ``<file name>.<number>.data``. All files are written under temporary names and renamed at the end, weights
    first; an interruption between two renames is undone, and only a crash of the machine in that instant can
    leave a new weights file beside an old model.
    """
    target = Path(path).absolute()
    size = weight_bytes(model)
    beside = size > EXTERNAL_ABOVE if external_data is None else external_data
    if not beside and size > _MESSAGE_MOST:
        raise OutputError(
            f"{target} can't hold {size / 1e9:.1f} GB of weights in one file (protobuf's limit is 2 GB); "
            "leave external_data at its default, or set it to True."
        )
    names, place = _places(model, target, location, least, one_file) if beside else ([], {})
    targets = [target, *(target.parent / name for name in names)]
    refuse_overwriting(model, *targets)
    files.check_room(target, size)
    with files.replacing(targets) as handles:
        write_model(model, handles[0], DataFiles(names, handles[1:], place) if beside else None)
    return targets


def _places(
    model: ir.Model, target: Path, location: str | None, least: int, one_file: bool
) -> tuple[list[str], dict[str, int]]:
    """Return the names of the files beside a model, and the number of the one that each weight goes into."""
    held = {name: content(name, value) for name, value in query.initializers(model.graph).items()}
    outside = [n for n, tensor in held.items() if tensor_bytes(tensor) >= least and has_plain_bytes(tensor)]
    if one_file:
        return [_plain_name(location or f"{target.name}.data")], dict.fromkeys(outside, 0)
    names = [f"{target.name}.{number}.data" for number in range(len(outside))]
    return names, {name: number for number, name in enumerate(outside)}


def _plain_name(location: str) -> str:
    """Return a file name; a model may not name files elsewhere."""
    if PurePath(location).name != location or location in (".", "..", ""):
        raise OutputError(f"{location!r} is not a plain file name; weights lie in the model's own folder.")
    return location


def refuse_overwriting(model: ir.Model, *targets: Path) -> None:
    """Raise if writing to these paths would change a file that the model is read from."""
    for source in meta.of(model).files:
        for target in targets:
            if target == source or is_same_file(target, source):
                raise OutputError(
                    f"{target} is the model being read (weights are taken from {source} while writing); "
                    "choose another output path."
                )


def read_files(source: object) -> Lazy:
    """Return the files that a model is read from: its own and those of its weights; none if it can't be."""
    return Lazy(_files_of, source)


def _files_of(source: Any) -> list[Path]:
    try:
        if isinstance(source, str | os.PathLike):
            return sorted(reading.files_of(Path(source)))
        model = source if isinstance(source, ir.Model) else load(source)
    except OctavoError:  # whoever reads it next says so
        return []
    return sorted(meta.of(model).files)


def weight_bytes(model: ir.Model) -> int:
    """Return the size of all weights, which are not read for it."""
    values = [value for graph in query.graphs(model) for value in query.initializers(graph).values()]
    return sum([tensor_bytes(tensor) for value in values if (tensor := value.const_value) is not None])


def held_bytes(model: ir.Model) -> int:
    """Return the size of all weights, also of those that ``Constant`` nodes hold."""
    return weight_bytes(model) + sum(map(tensor_bytes, query.held_tensors(model)))
