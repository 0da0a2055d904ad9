"""A model in a session that returns tensors from within, beside its outputs; also from inside subgraphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.calibration.observe.observations import GraphWriter, Observation
from octavo.calibration.observe.subgraphs import observe_graph
from octavo.comparison.signals import ScaleAndZero
from octavo.model.files.serialize import skeleton
from octavo.model.graph import query
from octavo.model.runtime import session_inputs
from octavo.model.runtime.session import Session, runtime_ir_limit

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorSession:
    """A session, and under which name it returns each tensor; tensors inside subgraphs come as rows."""

    session: Session
    names: Mapping[ir.Value, str]

    def run(self, feed: Mapping[str, Array]) -> dict[str, Array]:
        """Run one sample; a tensor that is an input comes back as it is."""
        inputs = {spec.name for spec in self.session.inputs}
        return {**feed, **self.session.run({n: a for n, a in feed.items() if n in inputs})}


def open_returning(
    model: ir.Model,
    values: Iterable[ir.Value],
    integers: Mapping[ir.Value, ScaleAndZero],
    *,
    optimize: bool = True,
    threads: int | None = None,
) -> TensorSession:
    """Open a model that returns these values too; those in ``integers`` are dequantized first."""
    proto = skeleton(model, runtime_ir_limit())
    graph = proto.graph
    wanted = dict.fromkeys(values)
    names = {v: v.name or "" for v in wanted if v.graph is model.graph}
    for i, value in enumerate(v for v in names if v in integers):
        names[value] = _dequantized(graph, value, integers[value], i)
    inner = [v for v in wanted if v not in names and v not in integers]
    if inner:
        found = observe_graph(graph, {v.name or "": _want(v) for v in inner}, GraphWriter(proto))
        rows = {item.tensor: item.value for item in found if item.reduction is None}
        names.update({v: rows[v.name] for v in inner if v.name in rows})
    outputs = {info.name for info in graph.output}
    for value, name in names.items():
        if name not in outputs and not value.is_graph_input():
            outputs.add(name)
            graph.output.add(name=name)
    return TensorSession(session_inputs.open_message(proto, model, optimize=optimize, threads=threads), names)


def _want(value: ir.Value) -> Observation:
    is_float32 = query.element_type(value) in (None, ir.DataType.FLOAT)
    return Observation(step=1, is_float32=is_float32, shape=query.static_shape(value))


def _dequantized(graph: onnx.GraphProto, value: ir.Value, numbers: ScaleAndZero, index: int) -> str:
    output = f"octavo.compare/{index}/{value.name}"
    given = [value, numbers.scale, *([numbers.zero] if numbers.zero is not None else [])]
    graph.node.append(
        onnx.helper.make_node("DequantizeLinear", [v.name or "" for v in given], [output], name=output)
    )
    return output


def fitting(feed: Mapping[str, Array], inputs: Sequence[Any]) -> dict[str, Array]:
    """Return a sample of the float model under the names, and in the types, of another model's inputs."""
    given = list(feed.items())
    found: dict[str, Array] = {}
    for i, spec in enumerate(inputs):
        array = feed[spec.name] if spec.name in feed else given[i][1]
        found[spec.name] = array if array.dtype == spec.dtype else np.asarray(array).astype(spec.dtype)
    return found
