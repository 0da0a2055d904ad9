"""Models with operators at their edges, and with quantization of other tools that makes no sense.

Each is a layer with one more node, or with given QuantizeLinear and DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from builders import constants, graph, node, tensor
from onnx import TensorProto, helper

from hostile.models import WIDTH, changed, layer

Make = Callable[[], "bytes | onnx.ModelProto"]
FLOAT, HUGE = TensorProto.FLOAT, 2**62
ZERO, NAN, I64 = np.int8(0), np.float32(np.nan), np.int64


def odd(
    op: str,
    inputs: Sequence[str],
    arrays: Mapping[str, Any] | None = None,
    outputs: int = 1,
    **attributes: Any,
) -> Make:
    """The layer with one more node."""

    def make() -> onnx.ModelProto:
        made = layer()
        made.graph.initializer.extend(constants(arrays or {}))
        names = [f"z{place}" for place in range(outputs)]
        made.graph.node.append(node(op, inputs, names, "odd", **attributes))
        made.graph.output.append(tensor("z0", None))
        if domain := attributes.get("domain"):
            made.opset_import.add(domain=domain, version=1)
        return made

    return make


def _in_blocks(depth: int, bits: int, block: int) -> Make:
    """The layer with a product whose weights are in blocks."""
    return odd(
        "MatMulNBits",
        ["y", "q", "s"],
        {"q": np.zeros((4, 1, 16), np.uint8), "s": np.ones(4, np.float32)},
        domain="com.microsoft",
        K=depth,
        N=4,
        bits=bits,
        block_size=block,
    )


def _pair(on_weight: bool, scale: Any, zero: Any = ZERO, *, opset: int = 21, **attributes: Any) -> Make:
    """The layer with a QuantizeLinear and DequantizeLinear pair that another tool has given it."""

    def make() -> onnx.ModelProto:
        made = layer()
        made.opset_import[0].version, made.ir_version = opset, 10
        source = "w" if on_weight else "x"
        inputs = ["s", "z"] if zero is not None else ["s"]
        made.graph.initializer.extend(constants({"s": scale} | ({"z": zero} if zero is not None else {})))
        made.graph.node[0].input[1 if on_weight else 0] = "d"
        for place, (op, before, after) in enumerate(
            (("QuantizeLinear", source, "q"), ("DequantizeLinear", "q", "d"))
        ):
            made.graph.node.insert(place, node(op, [before, *inputs], [after], op, **attributes))
        return made

    return make


def _stored(kind: int, content: bytes, shape: Sequence[int], scale: Any, **attributes: Any) -> Make:
    """A weight of few bits, and a DequantizeLinear that reads it."""

    def make() -> onnx.ModelProto:
        made = layer()
        made.opset_import[0].version, made.ir_version = 21, 10
        made.graph.initializer.append(
            onnx.TensorProto(name="few", data_type=kind, dims=shape, raw_data=content)
        )
        made.graph.initializer.extend(constants({"s": scale}))
        made.graph.node.append(node("DequantizeLinear", ["few", "s"], ["z0"], "odd", **attributes))
        made.graph.output.append(tensor("z0", None))
        return made

    return make


def _sparse(dims: Sequence[int], places: Any, values: Any) -> Make:
    made = onnx.SparseTensorProto(dims=dims)
    made.values.CopyFrom(onnx.numpy_helper.from_array(np.asarray(values, np.float32), ""))
    made.indices.CopyFrom(onnx.numpy_helper.from_array(np.asarray(places, np.int64), ""))
    return odd("Constant", [], sparse_value=made)


def _twice(name: str, value: Any, other: Any) -> Make:
    def change(made: onnx.ModelProto) -> None:
        made.graph.node.append(node("Softmax", ["y"], ["z0"], "odd"))
        made.graph.node[-1].attribute.extend(
            [helper.make_attribute(name, value), helper.make_attribute(name, other)]
        )
        made.graph.output.append(tensor("z0", None))

    return lambda: changed(change)


def _of_type(kind: int, dtype: Any) -> Make:
    """The whole layer in another type."""

    def change(made: onnx.ModelProto) -> None:
        for one in made.graph.initializer:
            array = onnx.numpy_helper.to_array(one).astype(dtype)
            one.CopyFrom(onnx.numpy_helper.from_array(array, one.name))
        for value in (*made.graph.input, *made.graph.output):
            value.type.tensor_type.elem_type = kind

    return lambda: changed(change)


def _body(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], inputs: Sequence[str] = ()) -> Make:
    """An If whose branches are these nodes."""
    branch = graph(
        nodes, [tensor(i, None) for i in inputs], [tensor(o, None) for o in outputs], name="branch"
    )
    return odd("If", ["c"], {"c": np.bool_(True)}, then_branch=branch, else_branch=branch)


def zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


SCALES = {
    "nan": NAN,
    "infinite": np.float32(np.inf),
    "zero": np.float32(0),
    "negative": np.float32(-0.1),
    "denormal": np.float32(1e-45),
    "none": np.zeros(0, np.float32),
    "of-33": np.ones(33, np.float32),
    "matrix": np.ones((2, 2), np.float32),
    "huge": np.float32(3e38),
}

ODD_OPERATORS: dict[str, Make] = {
    # attributes and branches
    "nodes/10001-outputs": odd("Split", ["y"], outputs=10_001, axis=1),
    "attribute/twice": _twice("axis", 0, 1),
    "attribute/twice-of-two-types": _twice("axis", 0, "one"),
    "attribute/without-a-name": odd("Relu", ["y"], **{"": 1}),
    "attribute/not-a-number": odd("Elu", ["y"], alpha=float("nan")),
    "attribute/a-thousand-graphs": odd("Relu", ["y"], extra=[layer().graph] * 1000),
    "attribute/a-type": odd("Optional", [], type=helper.make_tensor_type_proto(FLOAT, [HUGE, HUGE])),
    "branch/shadows-a-name": _body([node("Relu", ["y"], ["m"])], ["m"]),
    "branch/reads-what-comes-later": _body([node("Relu", ["z0"], ["r"])], ["r"]),
    "branch/has-inputs": _body([node("Relu", ["i"], ["r"])], ["r"], ["i"]),
    "branch/two-outputs-of-one": _body([node("Relu", ["y"], ["r"])], ["r", "r"]),
    "branch/no-outputs": _body([node("Relu", ["y"], ["r"])], []),
    # sparse values
    "sparse/terabytes": _sparse([2**40], [0, 5], [1, 2]),
    "sparse/overflow": _sparse([2**40, 2**40], [0, 5], [1, 2]),
    "sparse/outside": _sparse([4], [100, -3], [1, 2]),
    "sparse/fewer-places": _sparse([4], [0], [1, 2]),
    # quantization that another tool has given
    **{f"scale/{name}-of-the-input": _pair(False, scale) for name, scale in SCALES.items()},
    **{f"scale/{name}-of-a-weight": _pair(True, scale) for name, scale in SCALES.items()},
    "pair/axis-2-to-the-40": _pair(True, np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.int8), axis=2**40),
    "pair/axis-negative": _pair(True, np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.int8), axis=-9),
    "pair/blocks-of-2-to-the-62": _pair(True, np.ones((1, WIDTH), np.float32), None, axis=0, block_size=HUGE),
    "pair/blocks-of-minus-1": _pair(True, np.ones((1, WIDTH), np.float32), None, axis=0, block_size=-1),
    "pair/blocks-of-5": _pair(True, np.ones((7, WIDTH), np.float32), None, axis=0, block_size=5),
    "pair/unknown-type-of-results": _pair(False, np.float32(0.1), None, output_dtype=99),
    "pair/zero-point-of-floats": _pair(False, np.float32(0.1), np.float32(0)),
    "few-bits/odd": _stored(TensorProto.INT4, b"\x21\x43\x05", [5], np.float32(0.1)),
    "few-bits/nan": _stored(TensorProto.INT4, b"\x21\x43\x05", [5], NAN),
    "few-bits/blocks-of-odd-length": _stored(
        TensorProto.UINT4, b"\x21\x43\x05", [5, 1], np.ones((3, 1), np.float32), axis=0, block_size=2
    ),
    "few-bits/float8-nan": _stored(TensorProto.FLOAT8E4M3FN, b"\x7f" * 4, [4], np.float32(1)),
    # operators at their edges
    "nbits/depth-2-to-the-60": _in_blocks(depth=2**60, bits=4, block=32),
    "nbits/no-blocks": _in_blocks(depth=32, bits=4, block=0),
    "nbits/seven-bits": _in_blocks(depth=32, bits=7, block=32),
    "division/of-constants-by-zero": odd("Div", ["one", "zero"], {"one": I64([1, 5]), "zero": I64([0, 0])}),
    "division/lowest-by-minus-1": odd(
        "Div", ["low", "minus"], {"low": np.int32([-(2**31)]), "minus": np.int32([-1])}
    ),
    "remainder/of-constants-by-zero": odd("Mod", ["one", "zero"], {"one": I64([1, 5]), "zero": I64([0, 0])}),
    "reshape/overflow": odd("Reshape", ["y", "s"], {"s": I64([2**32, 2**32])}),
    "reshape/two-unknowns": odd("Reshape", ["y", "s"], {"s": I64([-1, -1])}),
    "resize/not-a-number": odd("Resize", ["y", "", "s"], {"s": np.float32([np.nan, np.inf])}),
    "resize/gigantic": odd("Resize", ["y", "", "s"], {"s": np.float32([1e30, 1])}),
    "top-k/gigantic": odd("TopK", ["y", "k"], {"k": I64([HUGE])}, outputs=2),
    "one-hot/gigantic": odd(
        "OneHot", ["i", "d", "v"], {"i": I64([0, 1]), "d": I64(2**40), "v": np.float32([0, 1])}
    ),
    "random/terabytes": odd("RandomNormal", [], shape=[2**40]),
    "split/gigantic": odd("Split", ["y", "s"], {"s": I64([HUGE, HUGE])}, outputs=2),
    "lstm/gigantic": odd(
        "LSTM",
        ["q", "w3", "r3"],
        {"q": zeros(1, 1, 4), "w3": zeros(1, 8, 4), "r3": zeros(1, 8, 2)},
        hidden_size=2**40,
    ),
    "einsum/two-ellipses": odd("Einsum", ["y"], equation="......"),
    "einsum/ellipses-in-another-domain": odd("einsum", ["y"], domain="own", equation="...a...->a"),
    "einsum/no-letters": odd("Einsum", ["y"], equation="\0\x1b[31m->->"),
    "pool/strides-0": odd("MaxPool", ["i"], {"i": zeros(1, 1, 4, 4)}, kernel_shape=[1, 1], strides=[0, 0]),
    "conv/dilations-2-to-the-40": odd(
        "Conv",
        ["i", "k"],
        {"i": zeros(1, 1, 4, 4), "k": zeros(1, 1, 2, 2)},
        dilations=[2**40, 2**40],
    ),
    "conv/padding-unknown": odd(
        "Conv",
        ["i", "k"],
        {"i": zeros(1, 1, 4, 4), "k": zeros(1, 1, 2, 2)},
        auto_pad="\x1b[31mEVIL",
    ),
    "unsqueeze/axes-2-to-the-62": odd("Unsqueeze", ["y", "s"], {"s": I64([HUGE])}),
    "gather-nd/batch-2-to-the-60": odd("GatherND", ["y", "s"], {"s": I64([[0]])}, batch_dims=2**60),
    "slice/steps-0": odd(
        "Slice", ["y", "s", "e", "a", "t"], {"s": I64([0]), "e": I64([1]), "a": I64([0]), "t": I64([0])}
    ),
    "norm/axis-99": odd("LayerNormalization", ["y", "b"], axis=99),
    "type/double": _of_type(TensorProto.DOUBLE, np.float64),
    "type/float16": _of_type(TensorProto.FLOAT16, np.float16),
    "type/complex": _of_type(TensorProto.COMPLEX64, np.complex64),
    "type/uint64": _of_type(TensorProto.UINT64, np.uint64),
}
