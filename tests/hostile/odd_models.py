"""Models with what few exporters write: claimed shapes, unused parts of the format, functions, odd graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from builders import graph, model, node, tensor
from onnx import AttributeProto, TensorProto, helper

from hostile.models import WIDTH, changed, layer

Make = Callable[[], "bytes | onnx.ModelProto"]
FLOAT, HUGE = TensorProto.FLOAT, 2**62
SECRET = {"location": "../elsewhere/secret.bin"}


def _value_info(name: str, shape: Sequence[int | str], kind: int = FLOAT, times: int = 1) -> Make:
    """The layer with a shape that is claimed of a tensor inside."""
    return lambda: changed(lambda p: p.graph.value_info.extend([tensor(name, shape, kind)] * times))


def _input(kind: onnx.TypeProto, reader: str = "Identity") -> Make:
    """The layer with a second input of another type, and a node that reads it."""

    def change(made: onnx.ModelProto) -> None:
        made.ir_version, made.opset_import[0].version = 10, 21
        made.graph.input.append(helper.make_value_info("other", kind))
        made.graph.node.append(node(reader, ["other"], ["z0"], "odd"))
        result = tensor("z0", [], TensorProto.BOOL) if reader == "OptionalHasElement" else None
        made.graph.output.append(result or helper.make_value_info("z0", kind))

    return lambda: changed(change)


def _functions(
    *functions: onnx.FunctionProto, call: onnx.NodeProto | None = None, imports: bool = True
) -> Make:
    def change(made: onnx.ModelProto) -> None:
        made.functions.extend(functions)
        made.ir_version = 10
        if imports:
            made.opset_import.add(domain="own", version=1)
        last = made.graph.node[2]
        last.CopyFrom(call or node("f", ["a"], ["y"], "call", domain="own"))

    return lambda: changed(change)


def _function(
    name: str, nodes: Sequence[onnx.NodeProto], *, domain: str = "own", overload: str = "", **more: Any
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    made = helper.make_function(domain, name, ["p"], ["q"], list(nodes), imports, **more)
    made.overload = overload
    return made


def _overloads_in_a_circle() -> onnx.ModelProto:
    def calls(overload: str) -> onnx.NodeProto:
        made = node("f", ["p"], ["q"], domain="own")
        made.overload = overload
        return made

    first = node("f", ["a"], ["y"], "call", domain="own")
    first.overload = "one"
    made = _functions(
        _function("f", [calls("two")], overload="one"),
        _function("f", [calls("one")], overload="two"),
        call=first,
    )()
    assert isinstance(made, onnx.ModelProto)
    return made


def _default(attribute: onnx.AttributeProto) -> Make:
    """A function with a parameter that has this value where a call gives none."""
    function = _function("f", [node("Relu", ["p"], ["q"])])
    function.attribute_proto.append(attribute)
    return _functions(function)


def _default_that_is_read() -> onnx.ModelProto:
    """A parameter without a value at the call, whose default lies in a file elsewhere and is read."""
    held = AttributeProto(name="value", ref_attr_name="v", type=AttributeProto.TENSOR)
    made = _functions(
        _function(
            "f",
            [
                onnx.NodeProto(op_type="Constant", output=["c"], attribute=[held]),
                node("Add", ["p", "c"], ["q"]),
            ],
        )
    )()
    assert isinstance(made, onnx.ModelProto)
    weight = _far_weight()
    weight.dims[:] = [WIDTH]
    made.functions[0].attribute_proto.add(name="v", type=AttributeProto.TENSOR).t.CopyFrom(weight)
    return made


def _loops(depth: int) -> onnx.ModelProto:
    """A Loop within a Loop within a Loop …, of one round each."""
    body: onnx.GraphProto | None = None
    for level in reversed(range(depth)):
        i, c, v, o, w = (f"{name}{level}" for name in "icvow")
        inside = (
            node("Relu", [v], [w])
            if body is None
            else node("Loop", ["one", "true", v], [w], f"loop{level}", body=body)
        )
        nodes = [node("Identity", [c], [o]), inside]
        inputs = [tensor(i, [], TensorProto.INT64), tensor(c, [], TensorProto.BOOL), tensor(v, None)]
        body = graph(nodes, inputs, [tensor(o, [], TensorProto.BOOL), tensor(w, None)], name=f"body{level}")
    outer = node("Loop", ["one", "true", "x"], ["y"], "outer", body=body)
    arrays = {"one": np.int64(1), "true": np.bool_(True)}
    return model([outer], [tensor("x", [2, WIDTH])], [tensor("y", None)], arrays)


def _training(change: Callable[[onnx.TrainingInfoProto], Any]) -> Make:
    def add(made: onnx.ModelProto) -> None:
        info = made.training_info.add()
        for part in (info.initialization, info.algorithm):
            part.name = "part"
            part.node.append(node("Relu", ["x"], ["r"]))
        change(info)

    return lambda: changed(add)


def _far_weight() -> onnx.TensorProto:
    made = onnx.TensorProto(name="far", data_type=FLOAT, dims=[128], data_location=TensorProto.EXTERNAL)
    for key, value in SECRET.items():
        made.external_data.add(key=key, value=value)
    return made


def _many(count: int, op: str, *, chained: bool, **attributes: Any) -> Make:
    """Very many tiny nodes, in a row or side by side."""

    def make() -> onnx.ModelProto:
        made = layer()
        last = "a"
        for number in range(count):
            made.graph.node.append(node(op, [last], [f"t{number}"], f"n{number}", **attributes))
            last = f"t{number}" if chained else last
        made.graph.output.append(tensor(f"t{count - 1}", None))
        return made

    return make


def _condition_of_two() -> onnx.ModelProto:
    """A truth whose byte is 2, which decides between two branches."""
    made = layer()
    made.graph.initializer.append(
        onnx.TensorProto(name="c", data_type=TensorProto.BOOL, dims=[], raw_data=b"\x02")
    )
    branches = {
        name: graph([node(op, ["y"], [name])], [], [tensor(name, None)], name=name)
        for name, op in (("yes", "Relu"), ("no", "Neg"))
    }
    made.graph.node.append(
        node("If", ["c"], ["z0"], "odd", then_branch=branches["yes"], else_branch=branches["no"])
    )
    made.graph.output.append(tensor("z0", None))
    return made


def _dimension(text: str) -> Make:
    """An input whose batch is a word."""
    return lambda: changed(
        lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", text)
    )


def _unknown_fields() -> bytes:
    """A megabyte in a field that no version of the format has, in the model, its graph and a node."""
    extra = b"\xfa\xff\x03" + b"\x80\x80\x40" + bytes(1 << 20)  # field 8191, a megabyte
    made = layer()
    made.graph.node[0].MergeFromString(extra)
    made.graph.MergeFromString(extra)
    return made.SerializeToString() + extra


def _sum_of_many(count: int) -> onnx.ModelProto:
    return changed(lambda p: p.graph.node[1].CopyFrom(node("Sum", ["m"] * count, ["a"], "sum")))


def _imports(*entries: tuple[str, int]) -> Make:
    def change(made: onnx.ModelProto) -> None:
        del made.opset_import[:]
        made.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in entries)

    return lambda: changed(change)


ODD_MODELS: dict[str, Make] = {
    # shapes that are claimed
    "value-info/huge": _value_info("m", [HUGE, HUGE]),
    "value-info/negative": _value_info("m", [-3, WIDTH]),
    "value-info/other-shape": _value_info("m", [3, 5, 7]),
    "value-info/other-type": _value_info("m", [2, WIDTH], TensorProto.INT8),
    "value-info/of-a-weight": _value_info("w", [1, 1]),
    "value-info/of-an-input": _value_info("x", [7, 7]),
    "value-info/ten-thousand-times": _value_info("m", ["n", WIDTH], times=10_000),
    "value-info/of-nothing": _value_info("nowhere", [HUGE]),
    "value-info/without-a-name": _value_info("", [2]),
    "dimension/code": _dimension("__import__('os').system('touch ../elsewhere/owned')"),
    "dimension/power": _dimension("9**9**9**9"),
    "dimension/brackets": _dimension("(" * 5000 + "n" + ")" * 5000),
    "dimension/megabyte": _dimension("n" * (1 << 20)),
    "dimension/expression": _dimension("floor(n/0)-Max(n,-1)*2**64"),
    "dimension/number": _dimension("-1"),
    # parts of the format that few use
    "unknown-fields": _unknown_fields,
    "annotations/of-nothing": lambda: changed(
        lambda p: p.graph.quantization_annotation.add(
            tensor_name="nowhere", quant_parameter_tensor_names=[{"key": "SCALE_TENSOR", "value": "also"}]
        )
    ),
    "annotations/twice": lambda: changed(
        lambda p: [p.graph.quantization_annotation.add(tensor_name="w") for _ in range(10_000)]
    ),
    "training/a-file-elsewhere": _training(lambda info: info.algorithm.initializer.append(_far_weight())),
    "training/impossible-weight": _training(
        lambda info: info.algorithm.initializer.add(name="t", data_type=FLOAT, dims=[HUGE, HUGE])
    ),
    "training/binds-nothing": _training(lambda info: info.update_binding.add(key="nowhere", value="r")),
    "metadata/twice": lambda: changed(
        lambda p: [p.metadata_props.add(key="k", value=str(i)) for i in range(1000)]
    ),
    "metadata/megabytes": lambda: changed(
        lambda p: p.metadata_props.add(key="k" * 1024, value="v" * (8 << 20))
    ),
    "documentation/megabytes": lambda: changed(
        lambda p: setattr(p.graph.node[0], "doc_string", "d" * (8 << 20))
    ),
    "version/none": lambda: changed(lambda p: p.ClearField("ir_version")),
    "version/negative": lambda: changed(lambda p: setattr(p, "ir_version", -5)),
    "version/2-to-the-62": lambda: changed(lambda p: setattr(p, "ir_version", HUGE)),
    "imports/twice": _imports(("", 8), ("", 17), ("ai.onnx", 13)),
    "imports/none": _imports(),
    "imports/only-another": _imports(("com.microsoft", 1)),
    "imports/opset-1": _imports(("", 1)),
    "imports/opset-9999": _imports(("", 9999)),
    "imports/thousands": _imports(("", 17), *((f"d{i}", 1) for i in range(5000))),
    "devices/without-a-name": lambda: changed(lambda p: p.graph.node[0].device_configurations.add()),
    "devices/of-nothing": lambda: changed(
        lambda p: p.graph.node[0].device_configurations.add(configuration_id="nowhere", pipeline_stage=-1)
    ),
    # functions
    "function/overloads-in-a-circle": _overloads_in_a_circle,
    "function/replaces-an-operator": _functions(
        _function("Relu", [node("Relu", ["p"], ["q"])], domain=""), call=node("Relu", ["a"], ["y"], "call")
    ),
    "function/in-the-standard-domain": _functions(
        _function("Odd", [node("Relu", ["p"], ["q"])], domain="ai.onnx"),
        call=node("Odd", ["a"], ["y"], "call"),
    ),
    "function/twice": _functions(
        _function("f", [node("Relu", ["p"], ["q"])]), _function("f", [node("Neg", ["p"], ["q"])])
    ),
    "function/makes-no-output": _functions(_function("f", [node("Relu", ["p"], ["other"])])),
    "function/of-no-nodes": _functions(_function("f", [])),
    "function/too-many-arguments": _functions(
        _function("f", [node("Relu", ["p"], ["q"])]),
        call=node("f", ["a", "a", "a"], ["y", "z1", "z2"], "call", domain="own"),
    ),
    "function/its-domain-is-not-imported": _functions(
        _function("f", [node("Relu", ["p"], ["q"])]), imports=False
    ),
    "function/default-in-a-file-elsewhere": _default(
        AttributeProto(name="v", type=AttributeProto.TENSOR, t=_far_weight())
    ),
    "function/default-in-a-file-elsewhere-is-read": _default_that_is_read,
    "function/default-of-an-impossible-size": _default(
        AttributeProto(
            name="v", type=AttributeProto.TENSOR, t=onnx.TensorProto(data_type=FLOAT, dims=[HUGE, HUGE])
        )
    ),
    "function/default-is-a-graph": _default(
        AttributeProto(name="v", type=AttributeProto.GRAPH, g=layer().graph)
    ),
    "function/parameter-of-nobody": _functions(
        _function(
            "f",
            [
                onnx.NodeProto(
                    op_type="LeakyRelu",
                    input=["p"],
                    output=["q"],
                    attribute=[
                        AttributeProto(name="alpha", ref_attr_name="nobody", type=AttributeProto.FLOAT)
                    ],
                )
            ],
        )
    ),
    # graphs
    "loops/9-deep": lambda: _loops(9),
    "loops/25-deep": lambda: _loops(25),
    "nodes/3000-in-a-row": _many(3_000, "Relu", chained=True),
    "nodes/2000-side-by-side": _many(2_000, "Neg", chained=False),
    "nodes/30000-inputs": lambda: _sum_of_many(30_000),
    "inputs/1000": lambda: changed(
        lambda p: p.graph.input.extend([tensor(f"i{i}", [1]) for i in range(1000)])
    ),
    "inputs/sixteen-billion-numbers": lambda: changed(
        lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**34)
    ),
    "inputs/no-rows": lambda: changed(
        lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 0)
    ),
    "inputs/a-weight-of-another-shape": lambda: changed(lambda p: p.graph.input.append(tensor("w", [3, 3]))),
    "inputs/texts": _input(helper.make_tensor_type_proto(TensorProto.STRING, [2])),
    "inputs/truths": _input(helper.make_tensor_type_proto(TensorProto.BOOL, ["n"])),
    "inputs/four-bits": _input(helper.make_tensor_type_proto(TensorProto.INT4, [3])),
    "inputs/no-type-of-elements": _input(helper.make_tensor_type_proto(TensorProto.UNDEFINED, [3])),
    "inputs/optional": _input(
        helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2])), "OptionalHasElement"
    ),
    "inputs/sequence": _input(helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, None))),
    "inputs/map": _input(
        helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(FLOAT, None))
    ),
    "inputs/sparse": _input(helper.make_sparse_tensor_type_proto(FLOAT, [HUGE])),
    "outputs/twice": lambda: changed(lambda p: p.graph.output.append(p.graph.output[0])),
    "outputs/a-weight": lambda: changed(lambda p: p.graph.output.append(tensor("w", [WIDTH, WIDTH]))),
    "outputs/without-a-name": lambda: changed(lambda p: p.graph.output.append(tensor("", [1]))),
    "outputs/another-type": lambda: changed(
        lambda p: setattr(p.graph.output[0].type.tensor_type, "elem_type", TensorProto.INT64)
    ),
    "outputs/another-shape": lambda: changed(
        lambda p: setattr(p.graph.output[0].type.tensor_type.shape.dim[1], "dim_value", 7)
    ),
    "nodes/no-operator": lambda: changed(lambda p: setattr(p.graph.node[2], "op_type", "")),
    "nodes/same-names": lambda: changed(lambda p: [setattr(one, "name", "same") for one in p.graph.node]),
    "nodes/domain-of-control-characters": lambda: changed(
        lambda p: setattr(p.graph.node[2], "domain", "\0\x1b[31m\u202e\n")
    ),
    "truth-of-two": _condition_of_two,
}
