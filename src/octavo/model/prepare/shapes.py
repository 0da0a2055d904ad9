"""Types and shapes of tensors: what ONNX infers, and what symbolic inference adds where that stops.

Neither sees large weights: they are given as inputs of known type and shape. What was known stays; inference
only fills in what was not. A failure is a note, never the end: plans are better with shapes, not impossible
without. Only a tensor that no memory holds is the end, as it is where a model is read.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnx_ir as ir

from octavo.core import scratch
from octavo.model.files.reading import written_message
from octavo.model.files.serialize import add_info, add_tensor, content, skeleton
from octavo.model.graph import protos, query
from octavo.model.graph.oversized import refuse_oversized
from octavo.model.graph.tensors import ELEMENT_TYPES, tensor_bytes
from octavo.model.runtime.session import runtime_ir_limit

_SMALL_BYTES = 4096  # bytes; constants up to this size are shown to inference, which reads shapes from them
_PATIENCE = 300  # seconds for symbolic inference
_STILL_OPEN = "shapes that it alone infers stay unknown, and operators that need them stay in float"


def infer(model: ir.Model) -> tuple[int, list[str]]:
    """Run ONNX shape inference; returns how many tensors are known better, and notes."""
    try:
        inferred = onnx.shape_inference.infer_shapes(_without_weights(model), data_prop=True)
    except Exception as error:  # the C++ side raises many kinds
        return 0, [f"ONNX shape inference stopped ({_first_line(error)}); {_STILL_OPEN}."]
    return _merge(model, inferred), []


def infer_symbolically(model: ir.Model, settings: Mapping[str, int] | None = None) -> tuple[int, list[str]]:
    """Run ONNX Runtime's symbolic shape inference in a process of its own; returns as :func:`infer` does.

    ``settings`` are its own: ``auto_merge``, ``int_max``, ``guess_output_rank``, ``verbose``.
    """
    if not sympy_is_installed():
        return 0, ["Symbolic shape inference needs sympy; install octavo[shapes]."]
    with scratch.folder() as folder:
        source, target = Path(folder) / "in.onnx", Path(folder) / "out.onnx"
        source.write_bytes(_without_weights(model).SerializeToString())
        command = "from octavo.model.runtime.session import symbolic_shapes; symbolic_shapes()"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        try:
            subprocess.run(
                [sys.executable, "-c", command, str(source), str(target), json.dumps(dict(settings or {}))],
                cwd=folder,  # it saves its state in the working folder when it fails
                env=environment,
                check=True,
                capture_output=True,
                timeout=_PATIENCE,
            )
            inferred = written_message(target)
        except subprocess.TimeoutExpired:
            return 0, [f"Symbolic shape inference did not end within {_PATIENCE} s; {_STILL_OPEN}."]
        except subprocess.CalledProcessError as error:
            lines = error.stderr.decode("utf-8", "replace").strip().splitlines() or ["no reason given"]
            return 0, [f"Symbolic shape inference stopped ({lines[-1]}); {_STILL_OPEN}."]
        except OSError as error:
            return 0, [f"Symbolic shape inference could not be run ({error}); {_STILL_OPEN}."]
    return _merge(model, inferred), []


def sympy_is_installed() -> bool:
    """Whether symbolic inference is available."""
    return importlib.util.find_spec("sympy") is not None


def lacks_ranks(model: ir.Model) -> bool:
    """Whether the rank of some float tensor, or of one of unknown type, is unknown."""
    return any(
        value.shape is None and value.uses() and (query.element_type(value) is None or query.is_float(value))
        for node in query.nodes(model)
        for value in node.outputs
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _without_weights(model: ir.Model) -> onnx.ModelProto:
    proto = skeleton(model, runtime_ir_limit())
    for name, value in query.initializers(model.graph).items():
        tensor = content(name, value)
        if tensor_bytes(tensor) > _SMALL_BYTES:
            add_info(proto.graph.input, value)
        else:
            add_tensor(proto.graph, name, tensor)
    if any(graph is not model.graph for graph in query.graphs(model)):
        _show_inside(proto.graph, {tensor.name: tensor for tensor in proto.graph.initializer})
    return proto


def _show_inside(graph: onnx.GraphProto, constants: Mapping[str, onnx.TensorProto]) -> None:
    """Put constants beside the nodes of subgraphs that read them: inference looks no further."""
    for inner in protos.graphs(graph):
        if inner is not graph:
            read = {name for node in inner.node for name in node.input}
            inner.initializer.extend(constants[name] for name in constants if name in read)


def _merge(model: ir.Model, inferred: onnx.ModelProto) -> int:
    """Fill in what is known now and was not; names are unique across scopes, so they find each other."""
    infos = (info for graph in protos.graphs(inferred.graph) for info in (*graph.value_info, *graph.output))
    known = {info.name: info.type for info in infos if info.HasField("type")}
    shapes: dict[tuple[int | str | None, ...], ir.Shape] = {}  # many tensors have the same
    count = 0
    for node in query.nodes(model):
        for value in node.outputs:
            found = known.get(value.name or "")
            if found is not None:
                count += _fill(value, found, shapes)
    refuse_oversized(model)
    return count


def _fill(
    value: ir.Value, found: onnx.TypeProto, shapes: dict[tuple[int | str | None, ...], ir.Shape]
) -> bool:
    if value.type is None and value.shape is None and found.HasField("tensor_type"):
        tensor = found.tensor_type
        value.type = ir.TensorType(ELEMENT_TYPES[tensor.elem_type])
        if tensor.HasField("shape"):
            sizes = tuple([dim.dim_value or _open(dim) for dim in tensor.shape.dim])
            if sizes not in shapes:
                shapes[sizes] = ir.Shape(sizes, frozen=True)
            value.shape = shapes[sizes]
        return True
    changed = False
    if value.type is None:
        value.type = ir.serde.deserialize_type_proto_for_type(found)
        changed = value.type is not None
    dims = ir.serde.deserialize_type_proto_for_shape(found)
    if dims is None or not isinstance(value.type, ir.TensorType):
        return changed
    if value.shape is None:
        value.shape = dims
        return True
    if len(value.shape) != len(dims):
        return changed
    merged = [_better(old, new) for old, new in zip(value.shape, dims, strict=True)]
    if any(new is not old for new, old in zip(merged, value.shape, strict=True)):
        value.shape = ir.Shape(merged)
        changed = True
    return changed


def _open(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    """Return a dimension that is not a positive number: zero, a name, or None where it is unknown."""
    kind = dim.WhichOneof("value")
    return getattr(dim, kind) if kind else None


def _better(old: int | ir.SymbolicDim, new: int | ir.SymbolicDim) -> int | ir.SymbolicDim:
    """Return the better known size: a number before a symbol before nothing; of equals, the old one."""
    if isinstance(old, int) or isinstance(new, int) or old.value is not None:
        return old if isinstance(old, int) or not isinstance(new, int) else new
    return new if new.value is not None else old


def assume_type(model: ir.Model, element_type: int) -> int:
    """Give the tensors whose type inference has not found this one; returns how many there were."""
    kind = ir.DataType(element_type)
    unknown = [
        value
        for node in query.nodes(model)
        for value in node.outputs
        if value.name and value.type is None and value.dtype is None
    ]
    for value in unknown:
        value.type = ir.TensorType(kind)
    return len(unknown)
