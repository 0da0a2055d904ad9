"""All hostile models of this folder, by a name, as bytes of a file: for the matrix of cases and doors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto

from hostile import test_bytes, test_external, test_graphs, test_names, test_numbers, test_tensors
from hostile.models import external, layer, nested, nested_bytes
from hostile.odd_models import ODD_MODELS
from hostile.odd_operators import ODD_OPERATORS
from hostile.odd_scopes import ODD_SCOPES

Make = Callable[[], "bytes | onnx.ModelProto"]


def _text_weight() -> onnx.ModelProto:
    """A weight of texts where numbers are due."""
    made = layer()
    weight = made.graph.initializer[0]
    weight.Clear()
    weight.name, weight.data_type = "w", TensorProto.STRING
    weight.dims.extend((2, 2))
    weight.string_data.extend([b"a", b"b", b"c", b"d"])
    return made


def _scalar_output(op: str) -> onnx.ModelProto:
    """The layer reduced to one number without an axis."""
    made = layer()
    made.graph.node.append(node(op, ["y"], ["total"], "total", keepdims=0))
    del made.graph.output[:]
    made.graph.output.append(tensor("total", []))
    return made


def _other_outputs(kind: int) -> onnx.ModelProto:
    """A second output of a type that is no float."""
    made = layer()
    made.graph.node.append(node("Cast", ["y"], ["cast"], "cast", to=kind))
    made.graph.output.append(tensor("cast", None, kind))
    return made


def _sequence_output() -> onnx.ModelProto:
    made = layer()
    made.graph.node.append(node("SequenceConstruct", ["y", "y"], ["several"]))
    value = onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    made.graph.output.append(
        onnx.helper.make_value_info("several", onnx.helper.make_sequence_type_proto(value))
    )
    return made


def _empty_output() -> onnx.ModelProto:
    made = layer()
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.int64([]), "none"))
    made.graph.node.append(node("Gather", ["y", "none"], ["rest"], "nothing", axis=0))
    made.graph.output.append(tensor("rest", None))
    return made


def _no_nodes_but_an_output() -> onnx.ModelProto:
    return model([], [tensor("x", [2, 32])], [tensor("x", [2, 32])])


def _faulty(fault: Callable[[onnx.TensorProto], None]) -> onnx.ModelProto:
    made = layer()
    fault(made.graph.initializer[0])
    return made


def _constant_fault(fault: Callable[[onnx.TensorProto], None]) -> onnx.ModelProto:
    made = layer()
    weight = onnx.TensorProto()
    weight.CopyFrom(made.graph.initializer[0])
    fault(weight)
    made.graph.node.add(op_type="Constant", output=["c"]).attribute.add(
        name="value", t=weight, type=onnx.AttributeProto.TENSOR
    )
    return made


def bounded(*, refused: bool = False) -> Iterator[tuple[str, Make]]:
    """The models that a door without the loader's checks hangs or dies on; or only those that are refused."""
    yield "functions-unfold-to-25-million", lambda: test_graphs._bomb_of_functions(7)
    yield "functions-unfold-to-10-to-the-40", test_graphs._bomb_of_functions
    yield "functions-1000-deep", lambda: test_graphs._chain_of_functions(1000)
    yield "function-calls-itself", test_graphs.REFUSED["function-calls-itself"]
    yield "functions-call-each-other", test_graphs.REFUSED["functions-call-each-other"]
    for op in ("Range", "Expand", "ConstantOfShape"):
        yield f"2-to-the-34-elements-{op}", lambda op=op: test_graphs._huge(op)  # type: ignore[misc]
    yield "branches-500-deep", lambda: nested_bytes(500)
    yield "branches-70-deep", lambda: nested(70)
    yield "cycle", test_graphs.REFUSED["cycle"]
    if not refused:
        yield "text-as-a-weight", _text_weight
        yield "scalar-output", lambda: _scalar_output("ReduceSum")


def corpus() -> dict[str, Make]:
    """Every case, the ones without bounds first."""
    found: dict[str, Make] = dict(bounded())
    found |= {
        "scalar-output-max": lambda: _scalar_output("ReduceMax"),
        "output-of-integers": lambda: _other_outputs(TensorProto.INT32),
        "output-of-truths": lambda: _other_outputs(TensorProto.BOOL),
        "output-of-texts": lambda: _other_outputs(TensorProto.STRING),
        "output-of-float16": lambda: _other_outputs(TensorProto.FLOAT16),
        "output-of-a-sequence": _sequence_output,
        "output-without-elements": _empty_output,
        "no-nodes-but-an-output": _no_nodes_but_an_output,
    }
    for name, make in {**test_graphs.REFUSED, **test_graphs.ODD}.items():
        found[f"graph/{name}"] = make
    for name, content in test_bytes.GARBAGE.items():
        found[f"bytes/{name}"] = lambda content=content: content  # type: ignore[misc]
    for part in (0.01, 0.5, 0.999):
        found[f"bytes/cut-at-{part}"] = lambda part=part: test_bytes.WHOLE[
            : int(len(test_bytes.WHOLE) * part)
        ]  # type: ignore[misc]
    for name, fault in test_tensors.FAULTS.items():
        found[f"tensor/{name}"] = lambda fault=fault: _faulty(fault)  # type: ignore[misc]
        found[f"constant/{name}"] = lambda fault=fault: _constant_fault(fault)  # type: ignore[misc]
    for name, location in test_external.LOCATIONS.items():
        found[f"external/{name}"] = lambda location=location: external({"location": location})  # type: ignore[misc]
    for name, entries in test_external.STRETCHES.items():
        found[f"external/{name}"] = lambda entries=entries: external({"location": "w.data", **entries})  # type: ignore[misc]
    for name, weight in test_numbers.WEIGHTS.items():
        found[f"numbers/{name}"] = lambda weight=weight: layer(weight)  # type: ignore[misc]
    for name, made in test_numbers.SHAPES.items():
        found[f"shapes/{name}"] = lambda made=made: made  # type: ignore[misc]
    for name, text in test_names.NAMES.items():
        found[f"names/{name}"] = lambda text=text: test_names._named(text)  # type: ignore[misc]
    found |= {f"odd/{name}": make for name, make in {**ODD_MODELS, **ODD_OPERATORS, **ODD_SCOPES}.items()}
    return found
