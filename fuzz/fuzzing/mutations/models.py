"""Changes to ONNX models that know what a model is: wires, operators, attributes, shapes, types, scopes."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable
from random import Random

from google.protobuf.message import DecodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper

from fuzzing.mutations import messages, raw

Change = Callable[[ModelProto, Random], None]

OPS = ("Add", "And", "ArgMax", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat",
       "Constant", "ConstantOfShape", "Conv", "ConvInteger", "ConvTranspose", "DepthToSpace",
       "DequantizeLinear", "Div", "Dropout", "DynamicQuantizeLinear", "Einsum", "Elu", "Erf",
       "Expand", "Flatten", "GRU", "Gather", "Gelu", "Gemm", "GlobalAveragePool", "HardSwish",
       "Identity", "If", "InstanceNormalization", "LSTM", "LayerNormalization", "LeakyRelu",
       "Loop", "LpNormalization", "MatMul", "MatMulInteger", "MatMulNBits", "Max", "MaxPool",
       "Mul", "NonMaxSuppression", "PRelu", "Pad", "Pow", "QLinearAdd", "QLinearConv",
       "QLinearMatMul", "QuantizeLinear", "Range", "Reciprocal", "ReduceMean", "ReduceSum",
       "Relu", "Reshape", "Resize", "Scan", "Shape", "Sigmoid", "Slice", "Softmax",
       "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Tanh", "Tile", "TopK", "Transpose",
       "Unsqueeze", "Upsample", "Where", "Zz")  # fmt: skip
ATTRIBUTES = ("axis", "axes", "alpha", "beta", "pads", "strides", "dilations", "group",
              "kernel_shape", "perm", "to", "keepdims", "blocksize", "block_size", "transA",
              "transB", "epsilon", "mode", "value", "auto_pad", "ceil_mode", "equation",
              "hidden_size", "direction", "saturate", "then_branch", "body", "bits", "K", "N",
              "split", "num_outputs", "allowzero", "output_dtype")  # fmt: skip
DOMAINS = ("", "ai.onnx", "com.microsoft", "ai.onnx.ml", "own", "../x")


def mutate(data: bytes, chance: Random) -> bytes:
    """A changed model; bytes that are none are changed as bytes."""
    try:
        model = ModelProto.FromString(data)
    except DecodeError:
        return raw.mutate(data, chance)
    if chance.random() < 0.03:
        return raw.mutate(data, chance)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 6))):
        with contextlib.suppress(TypeError, ValueError):  # what protobuf does not let anyone write
            chance.choice(CHANGES)(model, chance)
    made = model.SerializeToString()
    return made if len(made) <= raw.MOST_BYTES else data


def graphs(model: ModelProto) -> list[GraphProto]:
    """The main graph and every one inside it."""
    return [one for one in messages.all_of(model) if isinstance(one, GraphProto)] or [model.graph]


def nodes(model: ModelProto) -> list[NodeProto]:
    """Every node, those of subgraphs and functions too."""
    return [one for one in messages.all_of(model) if isinstance(one, NodeProto)]


def names(model: ModelProto) -> list[str]:
    """Every name of a tensor, but for bytes that are no text: protobuf hands those out as bytes."""
    found = {name for node in nodes(model) for name in (*node.input, *node.output)}
    for graph in graphs(model):
        found |= {one.name for one in (*graph.input, *graph.output, *graph.initializer)}
    return sorted(name for name in found if isinstance(name, str)) or ["x"]


def _tensors(model: ModelProto) -> list[TensorProto]:
    return [one for one in messages.all_of(model) if isinstance(one, TensorProto)]


def _any_node(model: ModelProto, chance: Random) -> NodeProto:
    found = nodes(model)
    return chance.choice(found) if found else model.graph.node.add(op_type="Relu", input=["x"], output=["z"])


def change_field(model: ModelProto, chance: Random) -> None:
    """Any field at all."""
    messages.change_any(model, chance, names(model))


def rewire(model: ModelProto, chance: Random) -> None:
    """Another tensor as a node's input, a later one too: that makes a cycle."""
    node = _any_node(model, chance)
    name = chance.choice((*names(model), ""))
    if node.input and chance.random() < 0.8:
        node.input[chance.randrange(len(node.input))] = name
    else:
        node.input.append(name)


def rename_output(model: ModelProto, chance: Random) -> None:
    """Another name for a node's output, often one that is taken."""
    node = _any_node(model, chance)
    if node.output:
        taken = chance.choice(names(model))
        node.output[chance.randrange(len(node.output))] = taken if chance.random() < 0.6 else raw.text(chance)


def rename_everywhere(model: ModelProto, chance: Random) -> None:
    """A hostile name for a tensor, wherever it is named."""
    old, new = chance.choice(names(model)), raw.text(chance)
    for node in nodes(model):
        for side in (node.input, node.output):
            side[:] = [new if name == old else name for name in side]
    for graph in graphs(model):
        for one in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
            if one.name == old:
                one.name = new


def change_op(model: ModelProto, chance: Random) -> None:
    """Another operator, or another domain."""
    node = _any_node(model, chance)
    if chance.random() < 0.8:
        node.op_type = chance.choice(OPS)
    else:
        node.domain = chance.choice(DOMAINS)


def change_attribute(model: ModelProto, chance: Random) -> None:
    """Another number in an attribute, or an attribute more."""
    node = _any_node(model, chance)
    numbers = (*range(-4, 9), *raw.NUMBERS)
    if not node.attribute or chance.random() < 0.35:
        made = node.attribute.add(name=chance.choice(ATTRIBUTES), type=chance.randrange(0, 12))
        made.i = chance.choice(numbers)
        made.f = chance.choice(raw.FLOATS[:4])
        made.ints.extend(chance.choice(numbers) for _ in range(chance.randrange(5)))
        return
    attribute = chance.choice(node.attribute)
    match attribute.type:
        case AttributeProto.INT:
            attribute.i = chance.choice((attribute.i + 1, attribute.i - 1, *numbers))
        case AttributeProto.INTS if attribute.ints:
            attribute.ints[chance.randrange(len(attribute.ints))] = chance.choice(numbers)
        case AttributeProto.FLOAT:
            attribute.f = chance.choice(raw.FLOATS[:-4])
        case AttributeProto.STRING:
            attribute.s = chance.choice(
                (b"SAME_UPPER", b"VALID", b"linear", b"constant", b"ij,jk->ik", b"", b"\xff")
            )
        case _:
            attribute.type = chance.randrange(0, 15)


def change_tensor(model: ModelProto, chance: Random) -> None:
    """Another shape, type or content for a weight, which may still fit or not."""
    found = _tensors(model)
    if not found:
        return
    tensor = chance.choice(found)
    match chance.randrange(6):
        case 0 if tensor.dims:
            tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice((*raw.NUMBERS, *range(9)))
        case 1:
            _reshape(tensor, chance)
        case 2:
            tensor.data_type = chance.randrange(0, 27)
        case 3 if tensor.raw_data:
            _fill(tensor, chance)
        case 4 if tensor.raw_data:
            tensor.raw_data = raw.mutate(tensor.raw_data, chance)
        case _:
            _empty(tensor, chance)


def _reshape(tensor: TensorProto, chance: Random) -> None:
    """The same number of elements in another shape."""
    dims = list(tensor.dims)
    match chance.randrange(4):
        case 0:
            chance.shuffle(dims)
        case 1:
            dims.insert(chance.randrange(len(dims) + 1), 1)
        case 2 if len(dims) > 1:
            dims[:2] = [dims[0] * dims[1]]
        case _:
            dims = [1] * chance.choice((1, 3, 10, 70)) + dims
    if all(-(1 << 63) <= dim < 1 << 63 for dim in dims):
        tensor.dims[:] = dims


def _fill(tensor: TensorProto, chance: Random) -> None:
    """Values that numbers go wrong with."""
    content = bytearray(tensor.raw_data)
    if tensor.data_type == TensorProto.FLOAT and len(content) >= 4:
        value = chance.choice(raw.FLOATS)
        packed = (
            struct.pack("<f", value) if abs(value) < 3.4e38 or value != value else struct.pack("<f", 3e38)
        )
        whole = chance.random() < 0.4
        first = 0 if whole else 4 * chance.randrange(len(content) // 4)
        content[first : None if whole else first + 4] = packed * (len(content) // 4 if whole else 1)
    elif len(content) >= 8:
        at = 8 * chance.randrange(len(content) // 8)
        content[at : at + 8] = struct.pack("<q", chance.choice((*raw.NUMBERS, *range(-3, 9))))
    tensor.raw_data = bytes(content)


def _empty(tensor: TensorProto, chance: Random) -> None:
    """A tensor without elements, or one whose content lies elsewhere."""
    tensor.ClearField("raw_data")
    if chance.random() < 0.5:
        tensor.dims[:] = [0, *tensor.dims]
        return
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=raw.text(chance))


def change_type(model: ModelProto, chance: Random) -> None:
    """Another element type or shape of an input, an output or a value between."""
    graph = chance.choice(graphs(model))
    found = (*graph.input, *graph.output, *graph.value_info)
    if not found:
        return
    kind = chance.choice(found).type
    if chance.random() < 0.3:
        kind.tensor_type.elem_type = chance.randrange(0, 25)
        return
    if chance.random() < 0.1:
        kind.sequence_type.elem_type.tensor_type.elem_type = 1
        return
    dims = kind.tensor_type.shape.dim
    if not dims or chance.random() < 0.2:
        dims.add(dim_value=chance.randrange(5))
        return
    dim = chance.choice(dims)
    if chance.random() < 0.5:
        dim.dim_value = chance.choice((*range(-2, 10), *raw.NUMBERS))
    else:
        dim.dim_param = chance.choice(("n", "m", "", raw.text(chance)))


def move_node(model: ModelProto, chance: Random) -> None:
    """A node elsewhere, twice, or not at all."""
    graph = chance.choice(graphs(model))
    if not graph.node:
        return
    order = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    at = chance.randrange(len(order))
    match chance.randrange(4):
        case 0:
            order.append(order[at])
        case 1:
            del order[at]
        case 2:
            order.insert(0, order.pop(at))
        case _:
            order.reverse()
    graph.ClearField("node")
    graph.node.extend(order)


def change_outputs(model: ModelProto, chance: Random) -> None:
    """Any tensor as an output of a graph, or fewer of them."""
    graph = chance.choice(graphs(model))
    if graph.output and chance.random() < 0.3:
        del graph.output[chance.randrange(len(graph.output))]
    else:
        graph.output.append(helper.make_tensor_value_info(chance.choice(names(model)), 1, None))


def change_opset(model: ModelProto, chance: Random) -> None:
    """Another version of the operators, another domain, another version of the format."""
    if model.opset_import and chance.random() < 0.7:
        model.opset_import[0].version = chance.choice((*range(1, 28), 0, -1, 1 << 40))
    elif chance.random() < 0.5:
        model.opset_import.add(domain=chance.choice(DOMAINS), version=chance.randrange(0, 30))
    else:
        model.ir_version = chance.choice((0, 1, 3, 7, 8, 10, 13, 99, 1 << 40))


def wrap_in_branch(model: ModelProto, chance: Random) -> None:
    """A node inside both branches of an If, or in the body of a Loop that is none."""
    node = _any_node(model, chance)
    inner = NodeProto.FromString(node.SerializeToString())
    body = helper.make_graph(
        [inner], "inner", [], [helper.make_tensor_value_info(n, 1, None) for n in node.output]
    )
    outputs = list(node.output)
    node.Clear()
    node.op_type = chance.choice(("If", "If", "If", "Loop", "Scan"))
    node.input.append(chance.choice((*names(model), "c")))
    node.output.extend(outputs)
    keys = ("then_branch", "else_branch") if node.op_type == "If" else ("body",)
    node.attribute.extend(helper.make_attribute(key, body) for key in keys)


def wrap_in_function(model: ModelProto, chance: Random) -> None:
    """A node behind a call of a function, which may call itself."""
    node = _any_node(model, chance)
    inner = NodeProto.FromString(node.SerializeToString())
    name = f"F{len(model.functions)}"
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", name, list(node.input), list(node.output), [inner], opsets)
    if chance.random() < 0.2:
        function.node.add(op_type=name, domain="own", input=node.input, output=node.output)
    model.functions.append(function)
    node.op_type, node.domain = name, "own"
    if chance.random() < 0.5:
        node.ClearField("attribute")
    if not any(entry.domain == "own" for entry in model.opset_import):
        model.opset_import.add(domain="own", version=1)


def refer_to_attribute(model: ModelProto, chance: Random) -> None:
    """An attribute that is a function's argument, inside a function or where there is none."""
    node = _any_node(model, chance)
    if node.attribute:
        chance.choice(node.attribute).ref_attr_name = chance.choice(ATTRIBUTES)


def initializer_as_input(model: ModelProto, chance: Random) -> None:
    """A weight that callers may replace; an input that has become a weight."""
    graph = chance.choice(graphs(model))
    if graph.initializer and chance.random() < 0.6:
        weight = chance.choice(graph.initializer)
        graph.input.append(helper.make_tensor_value_info(weight.name, weight.data_type, list(weight.dims)))
    elif graph.input:
        content = struct.pack("<2f", 1, 2)
        graph.initializer.add(name=chance.choice(graph.input).name, data_type=1, dims=[2], raw_data=content)


CHANGES: tuple[Change, ...] = ( change_field, change_field, change_field, rewire, rewire,
               rename_output, rename_everywhere, change_op, change_op, change_attribute,
               change_attribute, change_attribute, change_tensor, change_tensor, change_tensor,
               change_type, change_type, move_node, change_outputs, change_opset,
               wrap_in_branch, wrap_in_function, refer_to_attribute, initializer_as_input, )  # fmt: skip
