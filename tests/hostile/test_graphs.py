"""Graphs that are no graphs, or too many of them: cycles, depth, names, sizes, attributes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto, helper

import octavo
from hostile.models import changed, external, feeds, layer, nested, nested_bytes, quantized, read, written
from hostile.odd_operators import ODD_OPERATORS
from hostile.sandbox import Sandbox
from octavo.errors import ModelError, OctavoError

Make = Callable[[], onnx.ModelProto]


def _one(op: str, inputs: int = 1, domain: str = "", **attributes: object) -> onnx.ModelProto:
    names = ["x", "w", "b"][:inputs]
    made = layer()
    del made.graph.node[:]
    made.graph.node.append(node(op, names, ["y"], "odd", domain=domain, **attributes))
    return made


def _function(name: str, calls: list[str]) -> onnx.FunctionProto:
    nodes = [node(call, ["p"], ["q" if i == len(calls) - 1 else f"t{i}"], domain="own")
             for i, call in enumerate(calls)] or [node("Relu", ["p"], ["q"])]  # fmt: skip
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["p"], ["q"], nodes, imports)


def _calling(functions: list[onnx.FunctionProto], first: str) -> onnx.ModelProto:
    call = node(first, ["x"], ["y"], domain="own")
    return model([call], [tensor("x", [2])], [tensor("y", [2])], domains={"own": 1}, functions=functions)


def _chain_of_functions(length: int) -> onnx.ModelProto:
    made = [_function(f"f{i}", [f"f{i + 1}"]) for i in range(length)] + [_function(f"f{length}", [])]
    return _calling(made, "f0")


def _bomb_of_functions(levels: int = 40) -> onnx.ModelProto:
    made = [_function(f"f{i}", [f"f{i + 1}"] * 10) for i in range(levels)] + [_function(f"f{levels}", [])]
    return _calling(made, "f0")


def _renamed(old: str, new: str) -> onnx.ModelProto:
    made = layer()
    for item in made.graph.node:
        item.output[:] = [new if name == old else name for name in item.output]
    return made


def _reads(name: str) -> onnx.ModelProto:
    return changed(lambda proto: proto.graph.node[0].input.__setitem__(0, name))


def _cycle(inside: bool) -> onnx.ModelProto:
    nodes = [node("Add", ["x", "b"], ["a"]), node("Relu", ["a"], ["b"])]
    if not inside:
        return model(nodes, [tensor("x", [2])], [tensor("b", [2])])
    branch = graph(nodes, [], [tensor("b", None)], name="branch")
    other = graph([node("Identity", ["x"], ["o"])], [], [tensor("o", None)], name="other")
    outer = node("If", ["c"], ["y"], then_branch=branch, else_branch=other)
    return model([outer], [tensor("x", [2]), tensor("c", [], TensorProto.BOOL)], [tensor("y", [2])])


def _no_output() -> onnx.ModelProto:
    return changed(lambda proto: proto.graph.output.__delitem__(slice(None)))


def _many_nodes() -> bytes:
    one = node("Relu", ["x"], [""]).SerializeToString()
    body = (b"\x0a" + bytes([len(one)]) + one) * 600_000
    head = model([], [tensor("x", [2])], [tensor("y", [2])])
    inner = body + head.graph.SerializeToString()
    head.ClearField("graph")
    length, size = b"", len(inner)
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    return head.SerializeToString() + b"\x3a" + length + bytes([size]) + inner


def _empty(op: str, inputs: list[str], domain: str) -> onnx.ModelProto:
    """An operator that reads a number from a constant without elements, which ends the runtime."""

    def change(made: onnx.ModelProto) -> None:
        for name, content in (("none", np.zeros(0, np.float32)), ("i", np.zeros(1, np.int64))):
            made.graph.initializer.append(onnx.numpy_helper.from_array(content, name))
        made.graph.node.append(onnx.helper.make_node(op, inputs, ["z"], "odd", domain=domain))

    return changed(change)


REFUSED: dict[str, Make] = {
    "cycle": lambda: _cycle(False),
    "cycle-in-a-branch": lambda: _cycle(True),
    "node-reads-itself": lambda: changed(lambda p: p.graph.node[0].input.__setitem__(0, "m")),
    "input-missing": lambda: _reads("nowhere"),
    "output-missing": lambda: changed(lambda p: setattr(p.graph.output[0], "name", "nowhere")),
    "initializer-twice": lambda: changed(lambda p: p.graph.initializer.append(p.graph.initializer[0])),
    "input-twice": lambda: changed(lambda p: p.graph.input.append(p.graph.input[0])),
    "tensor-twice": lambda: _renamed("a", "m"),
    "node-makes-an-initializer": lambda: _renamed("m", "w"),
    "initializer-without-a-name": lambda: changed(lambda p: setattr(p.graph.initializer[0], "name", "")),
    **{
        f"{op}-reads-an-empty-number": lambda op=op, inputs=inputs, domain=domain: _empty(op, inputs, domain)
        for op, inputs, domain in (
            ("OneHot", ["i", "none", "b"], ""),
            ("QLinearConcat", ["none", "i", "y"], "com.microsoft"),
            ("QLinearSoftmax", ["y", "none", "i", "none", "i"], "com.microsoft"),
            ("QLinearWhere", ["i", "y", "none", "i", "y", "none", "i", "none", "i"], "com.microsoft"),
        )
    },
    "no-graph": lambda: onnx.ModelProto(ir_version=8),
    "no-nodes": lambda: model([], [], []),
    "opset-0": lambda: changed(lambda p: setattr(p.opset_import[0], "version", 0)),
    "opset-negative": lambda: changed(lambda p: setattr(p.opset_import[0], "version", -1)),
    "opset-2-to-the-62": lambda: changed(lambda p: setattr(p.opset_import[0], "version", 2**62)),
    "function-calls-itself": lambda: _calling([_function("f", ["f"])], "f"),
    "functions-call-each-other": lambda: _calling([_function("f", ["g"]), _function("g", ["f"])], "f"),
    "functions-1000-deep": lambda: _chain_of_functions(1000),
    "functions-unfold-to-10-to-the-40": _bomb_of_functions,
    "sparse-weights": lambda: changed(lambda p: p.graph.sparse_initializer.add()),
    "attribute-of-another-type": lambda: _one("Flatten", axis="one"),
    "attribute-outside-of-a-function": lambda: changed(
        lambda p: p.graph.node[0].attribute.add(
            name="axis", ref_attr_name="axis", type=onnx.AttributeProto.INT
        )
    ),
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED.keys())
def test_a_graph_that_is_refused(sandbox: Sandbox, make: Make) -> None:
    made = make()
    path = written(made, sandbox.given)
    sandbox.refuses_each([lambda: read(made), lambda: quantized(path, sandbox.out)], ModelError)


@pytest.mark.parametrize("depth", [40, 70, 500])
def test_branches_deeper_than_any_model_has(sandbox: Sandbox, depth: int) -> None:
    content = nested_bytes(depth)
    sandbox.refuses(lambda: read(content), ModelError)
    if depth > 64:
        made = nested(depth)
        sandbox.refuses(lambda: read(made), ModelError, "deep")


def test_more_nodes_than_any_model_has(sandbox: Sandbox) -> None:
    made = _many_nodes()
    sandbox.refuses(lambda: read(made), ModelError, "nodes")


def _amplified(op: str, *shape: int) -> onnx.ModelProto:
    """A few bytes that ask for very many: a constant of any size, added to the layer's output."""
    made = layer()
    sizes = np.array(shape, np.int64)
    made.graph.initializer.append(onnx.numpy_helper.from_array(sizes, "sizes"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "one"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(shape[0]), "end"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(0), "zero"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(1), "step"))
    inputs = {
        "ConstantOfShape": ["sizes"],
        "Expand": ["one", "sizes"],
        "Tile": ["one", "sizes"],
        "Pad": ["one", "pads"],
        "Range": ["zero", "end", "step"],
    }[op]
    if op == "Pad":
        pads = np.array([0, shape[0]], np.int64)
        made.graph.initializer.append(onnx.numpy_helper.from_array(pads, "pads"))
    made.graph.node.append(node(op, inputs, ["large"], "amplifier"))
    made.graph.node.append(node("ReduceSum", ["large"], ["total"], keepdims=0))
    made.graph.output.append(tensor("total", None))
    return made


@pytest.mark.parametrize("op", ["ConstantOfShape", "Expand", "Tile", "Pad", "Range"])
@pytest.mark.parametrize("size", [2**31, 2**62])
def test_a_few_bytes_that_ask_for_gigabytes(sandbox: Sandbox, op: str, size: int) -> None:
    made = _amplified(op, size)
    sandbox.settles(lambda: quantized(made, sandbox.out, feeds(1)))


ODD: dict[str, Make] = {
    "depth-to-space-2-to-the-32": lambda: _one("DepthToSpace", blocksize=2**32),
    "depth-to-space-0": lambda: _one("DepthToSpace", blocksize=0),
    "flatten-axis": lambda: _one("Flatten", axis=2**40),
    "softmax-axis": lambda: _one("Softmax", axis=-(2**63)),
    "conv-group-0": lambda: _one("Conv", inputs=2, group=0),
    "conv-pads-negative": lambda: _one("Conv", inputs=2, pads=[-(2**40)] * 4),
    "transpose-perm": lambda: _one("Transpose", perm=[7, 7]),
    "pool-kernel-2-to-the-62": lambda: _one("MaxPool", kernel_shape=[2**62, 2**62]),
    "cast-to-nothing": lambda: _one("Cast", to=99),
    "gather-axis": lambda: _one("Gather", inputs=2, axis=99),
    "attribute-unknown": lambda: _one("Relu", alpha=1.0),
    "too-many-inputs": lambda: _one("Relu", inputs=3),
    "unknown-operator": lambda: _one("DoesNotExist"),
    "unknown-domain": lambda: changed(lambda p: setattr(p.graph.node[0], "domain", "com.evil")),
    "shape-of-an-input-overflows": lambda: changed(
        lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", 2**62)
    ),
    "shape-of-an-input-negative": lambda: changed(
        lambda p: setattr(p.graph.input[0].type.tensor_type.shape.dim[0], "dim_value", -5)
    ),
    "input-without-a-type": lambda: changed(lambda p: p.graph.input[0].ClearField("type")),
    "huge-attribute": lambda: changed(
        lambda p: p.graph.node[0].attribute.add(
            name="note", s=bytes(32 << 20), type=onnx.AttributeProto.STRING
        )
    ),
    "attribute-of-a-million-numbers": lambda: _one("Transpose", perm=[0] * 1_000_000),
    "output-is-an-input": lambda: changed(lambda p: p.graph.output.append(p.graph.input[0])),
    "external-in-memory": lambda: external(
        {"location": "*/_ORT_MEM_ADDR_/*", "offset": "4096", "length": "64"}
    ),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
def test_absurd_operators_settle(sandbox: Sandbox, make: Make) -> None:
    made = make()
    sandbox.settles(lambda: quantized(made, sandbox.out, feeds(1)))


SETTINGS = (
    '{"session_options": {"enable_profiling": 1, "intra_op_num_threads": 9999, '
    '"optimized_model_filepath": "../elsewhere/optimized.onnx", "custom_op_library": "/tmp/own.so"}}'
)


@pytest.mark.parametrize("key", ["ort_config", "session.optimized_model_filepath", "ep_context_file_path"])
def test_settings_in_a_models_metadata_are_words(sandbox: Sandbox, key: str) -> None:
    """The runtime knows a way to take options out of a model; nobody asks it to."""
    made = layer()
    made.metadata_props.add(key=key, value=SETTINGS)
    assert sandbox.gives(lambda: quantized(made, sandbox.out, feeds())) == ["model.int8.onnx"]


@pytest.mark.parametrize("embedded", [0, 1])
def test_a_compiled_part_that_names_a_file_is_refused(sandbox: Sandbox, embedded: int) -> None:
    made = _one("EPContext", domain="com.microsoft", embed_mode=embedded, main_context=1,
                ep_cache_context="../elsewhere/secret.bin")  # fmt: skip
    sandbox.refuses(lambda: quantized(made, sandbox.out, feeds(1)), ModelError, "compiled")


def test_nodes_in_any_order_are_sorted(sandbox: Sandbox) -> None:
    made = layer()
    nodes = list(made.graph.node)[::-1]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    assert sandbox.gives(lambda: quantized(made, sandbox.out, feeds())) == ["model.int8.onnx"]


@pytest.mark.parametrize("depth", [3, 12])
def test_branches_of_a_usual_depth_are_read(sandbox: Sandbox, depth: int) -> None:
    assert sandbox.gives(lambda: read(nested(depth).SerializeToString())) >= 1


@pytest.mark.parametrize("length", [1, 100])
def test_chains_of_functions_are_written_out(sandbox: Sandbox, length: int) -> None:
    assert sandbox.gives(lambda: read(_chain_of_functions(length))) == 1


def test_a_width_that_no_machine_has(sandbox: Sandbox) -> None:
    made = changed(lambda p: p.graph.node[0].CopyFrom(node("MatMul", ["x", "w"], ["m"])))
    made.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2**61
    outcome = sandbox.run(lambda: quantized(made, sandbox.out, feeds(1)))
    assert outcome.error is not None
    assert issubclass(outcome.error, OctavoError)


def _huge(op: str) -> onnx.ModelProto:
    """A model whose constants ask for a tensor of 2³⁴ elements."""
    arrays = {"start": np.int64(0), "end": np.int64(1 << 34), "step": np.int64(1), "one": np.float32([1]),
              "big": np.int64([1 << 34]), "w": np.ones((2, 2), np.float32)}  # fmt: skip
    inputs = {"Range": ["start", "end", "step"], "Expand": ["one", "big"], "ConstantOfShape": ["big"]}
    nodes = [
        node(op, inputs[op], ["huge"], "asks_for_too_much"),
        node("Cast", ["huge"], ["floats"], to=TensorProto.FLOAT),
        node("ReduceMax", ["floats"], ["top"], keepdims=0),
        node("MatMul", ["x", "w"], ["m"]),
        node("Add", ["m", "top"], ["y"]),
    ]
    return model(nodes, [tensor("x", ["n", 2])], [tensor("y", ["n", 2])], arrays)


@pytest.mark.parametrize("op", ["Range", "Expand", "ConstantOfShape"])
def test_a_result_that_no_memory_holds_is_refused_by_the_nodes_name(sandbox: Sandbox, op: str) -> None:
    path = written(_huge(op), sandbox.given)
    sandbox.refuses(lambda: read(path), ModelError, "asks_for_too_much")


def test_branches_without_outputs_have_no_heads_for_weights_in_blocks(sandbox: Sandbox) -> None:
    """Where the head of a model is looked for, an If leads to outputs of branches: here are none."""
    made = ODD_OPERATORS["branch/no-outputs"]()
    for change in ({"recipe": "W4"}, {"weights": "int4"}):
        sandbox.settles(lambda change=change: str(octavo.quantize(made, threads=1, **change)))  # type: ignore[misc]
