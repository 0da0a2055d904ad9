"""The check of a result before it is returned: the ONNX checker, a load by the runtime, one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from octavo.errors import DataError, ModelError, OutputError
from octavo.model.files import io
from octavo.model.files.reading import written_message
from octavo.model.graph import protos
from octavo.model.runtime.samples import guesses
from octavo.model.runtime.session import NO_SPINNING, Array, Feeds, Session
from octavo.model.runtime.session_inputs import check

# ---- A graph of very many nodes, loaded and run piece by piece
#
# The runtime's time to load a graph grows with the square of its nodes without predecessors, such as the
# DequantizeLinear of each weight. Pieces of bounded size keep the whole linear: each is loaded by itself and
# run on what the pieces before it gave.

Values = dict[str, Array]
Run = Callable[[bytes, Mapping[str, Array]], Mapping[str, Array]]

MOST_NODES = 500  # of one piece


@dataclass(frozen=True)
class Piece:
    """Nodes that follow each other, the weights and values that they read, and what is read of them later."""

    nodes: Sequence[onnx.NodeProto]
    weights: Sequence[str]
    reads: Sequence[str]
    gives: Sequence[str]


def can_be_cut(model: onnx.ModelProto) -> bool:
    """Whether pieces can be made: everything that the nodes need is in this one message."""
    external = onnx.TensorProto.EXTERNAL
    return not model.functions and all(one.data_location != external for one in model.graph.initializer)


def run_in_pieces(model: onnx.ModelProto, feeds: Mapping[str, Array], run: Run) -> Values:
    """Return the outputs of a model, computed by ``run(bytes of a piece, its inputs)`` piece after piece."""
    values: Values = dict(feeds)
    weights = {one.name: one for one in model.graph.initializer}
    for piece in pieces(model.graph, weights):
        part = _model(piece, model, weights, values)
        values.update(run(part.SerializeToString(), {name: values[name] for name in piece.reads}))
    return {one.name: values[one.name] for one in model.graph.output if one.name in values}


def pieces(graph: onnx.GraphProto, weights: Mapping[str, Any]) -> Iterator[Piece]:
    """Cut a graph, whose nodes are in order, into pieces of at most ``MOST_NODES`` nodes."""
    parts = [graph.node[at : at + MOST_NODES] for at in range(0, len(graph.node), MOST_NODES)]
    read = [dict.fromkeys(name for node in part for name in protos.reads(node)) for part in parts]
    last = {name: at for at, names in enumerate(read) for name in names}
    last.update({one.name: len(parts) for one in graph.output})
    for at, part in enumerate(parts):
        made = [name for node in part for name in node.output if name]
        own = set(made)
        yield Piece(
            part,
            weights=[name for name in read[at] if name in weights],
            reads=[name for name in read[at] if name not in own and name not in weights],
            gives=[name for name in made if last.get(name, -1) > at],
        )


def _model(
    piece: Piece, whole: onnx.ModelProto, weights: Mapping[str, onnx.TensorProto], values: Values
) -> onnx.ModelProto:
    part = onnx.ModelProto(ir_version=whole.ir_version)
    part.opset_import.extend(whole.opset_import)
    part.graph.name = "piece"
    part.graph.node.extend(piece.nodes)
    part.graph.initializer.extend(weights[name] for name in piece.weights)
    declared = {one.name: one for one in whole.graph.input}
    part.graph.input.extend(declared.get(name) or _input(name, values[name]) for name in piece.reads)
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in piece.gives)
    return part


def _input(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.asarray(value).dtype)
    return onnx.helper.make_tensor_value_info(name, kind, None)


FULL_CHECK = 2000  # nodes; more are checked without the runtime's optimizations
LARGE_MODEL_BYTES = (
    256 << 20
)  # bytes; a larger model is checked without a copy of its weights in another layout


def verify(
    model: ir.Model | str | Path,
    *,
    feeds: Feeds | None = None,
    run: bool = True,
    custom_ops: Sequence[str | Path] = (),
    nodes: int | None = None,
    threads: int | None = None,
) -> None:
    """Check that a result is a valid model that the runtime loads, and runs on one sample.

    It is loaded as a user would load it; a large one without prepacking. A graph of very many nodes
    (``FULL_CHECK``) is loaded in pieces where it can be cut, and without the runtime's optimizations: both
    grow with the square of the nodes.
    """
    name = io.describe(model) if isinstance(model, ir.Model) else str(model)
    size = nodes if nodes is not None else len(model.graph) if isinstance(model, ir.Model) else 0
    large = _file_bytes(model) > LARGE_MODEL_BYTES if not isinstance(model, ir.Model) else False
    try:
        check(model)
        if size > FULL_CHECK and feeds is not None and _runs_in_pieces(model, feeds, custom_ops, threads):
            return
        session = Session.open(
            model,
            threads=threads,
            custom_ops=custom_ops,
            optimize=size <= FULL_CHECK,
            prepack=not large,
            config=NO_SPINNING,
            trusted=True,
        )
        if feeds is not None:
            session.run(feeds)
        elif run:
            _run_on_some_sample(session)
    except (ModelError, DataError) as error:
        raise OutputError(f"The check of {name} failed: {error}") from error


def _runs_in_pieces(
    model: ir.Model | str | Path, feeds: Feeds, custom_ops: Sequence[str | Path], threads: int | None
) -> bool:
    """Whether a file's graph runs piece by piece; if it does not, the whole of it tells why."""
    if isinstance(model, ir.Model) or _file_bytes(model) > LARGE_MODEL_BYTES:
        return False
    proto = written_message(Path(model))

    def run(part: bytes, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        session = Session.open(
            part, threads=threads, custom_ops=custom_ops, optimize=False, config=NO_SPINNING
        )
        return session.run(inputs)

    try:
        return can_be_cut(proto) and run_in_pieces(proto, feeds, run).keys() == {
            one.name for one in proto.graph.output
        }
    except (ModelError, DataError, KeyError):
        return False


def _file_bytes(path: str | Path) -> int:
    return sum(f.stat().st_size for f in (Path(path), Path(f"{path}.data")) if f.is_file())


def _run_on_some_sample(session: Session) -> None:
    """Run on made-up inputs; an open size may have to be larger than the first guess."""
    first: ModelError | None = None
    for feed in guesses(session.inputs, {}):
        try:
            session.run(feed)
        except ModelError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first
