"""Models whose scopes contradict each other, whose names are those that Octavo writes, and odd nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from builders import constants, graph, node, tensor
from onnx import AttributeProto, TensorProto, helper

from hostile.models import WIDTH, changed, layer
from hostile.odd_operators import odd, zeros

Make = Callable[[], "bytes | onnx.ModelProto"]
FLOAT, HUGE, NAN = TensorProto.FLOAT, 2**62, np.float32(np.nan)
MICROSOFT, LEARNING = "com.microsoft", "ai.onnx.ml"
F32 = np.float32


def _branches(
    nodes: Sequence[onnx.NodeProto],
    arrays: Mapping[str, Any] | None = None,
    *,
    change: Callable[[onnx.ModelProto], Any] = lambda made: None,
) -> Make:
    """An If with these nodes and weights in both branches, which make ``r``."""

    def make() -> onnx.ModelProto:
        branch = graph(nodes, [], [tensor("r", None)], arrays, name="branch")
        made = odd("If", ["c"], {"c": np.bool_(True)}, then_branch=branch, else_branch=branch)()
        assert isinstance(made, onnx.ModelProto)
        change(made)
        return made

    return make


def _then(made: onnx.ModelProto) -> onnx.GraphProto:
    return next(one.g for one in made.graph.node[-1].attribute if one.name == "then_branch")


def _far(made: onnx.ModelProto) -> None:
    """A weight of a branch lies in a file elsewhere."""
    weight = _then(made).initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="../elsewhere/secret.bin")


def _as(kind: int) -> Callable[[onnx.ModelProto], None]:
    """The branch of an If is an attribute of another kind."""

    def change(made: onnx.ModelProto) -> None:
        (held,) = [one for one in made.graph.node[-1].attribute if one.name == "then_branch"]
        if kind == AttributeProto.GRAPHS:
            held.graphs.extend([held.g, held.g])
        else:
            held.f = 1.0
        held.ClearField("g")
        held.type = kind

    return change


def _loop(
    inputs: Sequence[str], outputs: Sequence[str], trips: int = 1, op: str = "Loop", **more: Any
) -> Make:
    """A Loop or a Scan with a body of these inputs and outputs."""
    body = graph(
        [node("Identity", [inputs[-1] if inputs else "y"], [name]) for name in outputs],
        [tensor(name, None) for name in inputs],
        [tensor(name, None) for name in outputs],
        name="body",
    )
    starts = ["n", "t", "y"] if op == "Loop" else ["y", "y"]
    return odd(op, starts, {"n": np.int64(trips), "t": np.bool_(True)}, body=body, **more)


def _hijacked(op: str, domain: str = "") -> Make:
    """A function that goes by the name of an operator that Octavo writes."""

    def change(made: onnx.ModelProto) -> None:
        imports = [helper.make_opsetid("", 17)]
        body = [node("Neg", ["p"], ["q"])]
        made.functions.append(helper.make_function(domain, op, ["p", "s", "z"], ["q"], body, imports))
        if domain not in ("", "ai.onnx"):
            made.opset_import.add(domain=domain, version=1)

    return lambda: changed(change)


def _names_of_ours(made: onnx.ModelProto) -> None:
    """Whatever is near a quantized tensor is called as Octavo would call it."""
    for stem in ("x", "w", "b", "m", "a", "y"):
        for end in ("scale", "zero_point", "quantized", "QuantizeLinear_Output", "DequantizeLinear_Output"):
            made.graph.node.append(node("Identity", ["a"], [f"{stem}_{end}"], f"{stem}_{end}"))
    for end in ("QuantizeLinear", "DequantizeLinear", "quant"):
        made.graph.node.append(node("Identity", ["x_scale"], [f"z_{end}"], f"x_{end}"))
    made.graph.output.append(tensor("w_quantized", None))


def _kept_recipe(text: str) -> Make:
    """A model that says of itself by which recipe it was quantized."""
    return lambda: changed(lambda made: made.metadata_props.add(key="octavo.recipe", value=text))


def _typed(kind: int, dims: Sequence[int], **content: Any) -> Make:
    """One more initializer that the layer's end adds in, after a cast."""

    def change(made: onnx.ModelProto) -> None:
        made.opset_import[0].version, made.ir_version = 25, 13
        made.graph.initializer.append(onnx.TensorProto(name="t", data_type=kind, dims=dims, **content))
        made.graph.node.append(node("Cast", ["t"], ["z0"], "odd", to=FLOAT))
        made.graph.output.append(tensor("z0", None))

    return lambda: changed(change)


def _two_constants() -> onnx.ModelProto:
    made = layer()
    made.graph.node.append(node("Constant", [], ["z0"], "odd", value_float=1.0, value_ints=[1, 2]))
    made.graph.node.append(node("Constant", [], ["z1"], "none"))
    made.graph.output.append(tensor("z0", None))
    return made


def _trees(**changes: Any) -> Make:
    """A tree whose nodes lead back to itself, or whose lists are of different lengths."""
    lists = {
        "nodes_treeids": [0, 0], "nodes_nodeids": [0, 1], "nodes_featureids": [0, 0],
        "nodes_modes": ["BRANCH_LEQ", "BRANCH_LEQ"], "nodes_values": [0.0, 0.0],
        "nodes_truenodeids": [1, 0], "nodes_falsenodeids": [1, 0], "n_targets": 1,
        "target_ids": [0], "target_nodeids": [1], "target_treeids": [0], "target_weights": [1.0],
    }  # fmt: skip
    return odd("TreeEnsembleRegressor", ["y"], domain=LEARNING, **{**lists, **changes})


def _norm(variance: float, epsilon: float, length: int = WIDTH) -> Make:
    arrays = {name: np.ones(length, F32) for name in ("g", "h", "e")}
    arrays["v"] = np.full(length, variance, F32)
    return odd("BatchNormalization", ["y", "g", "h", "e", "v"], arrays, epsilon=epsilon)


def _integers(op: str, inputs: Mapping[str, Any], **attributes: Any) -> Make:
    """A quantized operator of another tool, whose operands make no sense."""
    return odd(op, list(inputs), inputs, **attributes)


EIGHT = np.zeros((WIDTH, WIDTH), np.int8)
SCALE, ZERO = F32(0.1), np.int8(0)

ODD_SCOPES: dict[str, Make] = {
    "scope/branch-has-a-weight-of-that-name": _branches(
        [node("MatMul", ["y", "w"], ["r"])], {"w": np.ones((WIDTH, 3), F32)}
    ),
    "scope/branch-has-a-weight-named-as-the-input": _branches(
        [node("Relu", ["x"], ["r"])], {"x": np.ones(3, F32)}
    ),
    "scope/branch-has-a-weight-twice": _branches(
        [node("Add", ["y", "k"], ["r"])],
        {"k": np.ones(WIDTH, F32)},
        change=lambda made: _then(made).initializer.append(_then(made).initializer[0]),
    ),
    "scope/branch-makes-a-weight-of-outside": _branches(
        [node("Relu", ["y"], ["w"]), node("Neg", ["w"], ["r"])]
    ),
    "scope/main-graph-reads-from-a-branch": _branches(
        [node("Relu", ["y"], ["inner"]), node("Neg", ["inner"], ["r"])],
        change=lambda made: made.graph.node.insert(0, node("Neg", ["inner"], ["outer"])),
    ),
    "scope/branch-has-a-weight-in-a-file-elsewhere": _branches(
        [node("Add", ["y", "k"], ["r"])], {"k": np.ones(128, F32)}, change=_far
    ),
    "scope/branch-is-a-list-of-graphs": _branches(
        [node("Relu", ["y"], ["r"])], change=_as(AttributeProto.GRAPHS)
    ),
    "scope/branch-is-a-number": _branches([node("Relu", ["y"], ["r"])], change=_as(AttributeProto.FLOAT)),
    "scope/branch-of-sparse-terabytes": _branches(
        [node("Relu", ["y"], ["r"])],
        change=lambda made: _then(made).sparse_initializer.add(dims=[HUGE, HUGE]),
    ),
    "scope/loop-body-of-nothing": _loop([], []),
    "scope/loop-body-of-one-output": _loop(["i"], ["o"]),
    "scope/loop-of-minus-2-to-the-62-rounds": _loop(["i", "k", "v"], ["k2", "v2"], trips=-HUGE),
    "scope/scan-of-2-to-the-62-inputs": _loop(["p", "q"], ["o"], op="Scan", num_scan_inputs=HUGE),
    "scope/scan-of-minus-1-inputs": _loop(["p", "q"], ["o"], op="Scan", num_scan_inputs=-1),
    "scope/scan-along-axis-99": _loop(
        ["p", "q"], ["o"], op="Scan", num_scan_inputs=1, scan_input_axes=[99], scan_input_directions=[7, 7, 7]
    ),
    "hijack/QuantizeLinear": _hijacked("QuantizeLinear"),
    "hijack/DequantizeLinear-of-ai.onnx": _hijacked("DequantizeLinear", "ai.onnx"),
    "hijack/MatMulNBits": _hijacked("MatMulNBits", MICROSOFT),
    "hijack/names-of-ours": lambda: changed(_names_of_ours),
    "hijack/recipe-deep": _kept_recipe('{"exclude":' * 5000),
    "hijack/recipe-of-a-slow-pattern": _kept_recipe('{"exclude": ["re:^(a+)+$", "re:(.*a){25}"]}'),
    "hijack/recipe-of-digits": _kept_recipe('{"calibration_samples": ' + "9" * 5000 + "}"),
    "hijack/recipe-of-other-types": _kept_recipe('{"steps": {"a": 1}, "target": [], "weights": 1e400}'),
    "typed/bytes-beyond-a-byte": _typed(TensorProto.INT8, [2], int32_data=[2**31 - 1, -(2**31)]),
    "typed/float8-beyond-a-byte": _typed(TensorProto.FLOAT8E5M2, [2], int32_data=[70000, -5]),
    "typed/float8-powers-of-odd-length": _typed(TensorProto.FLOAT8E8M0, [4], raw_data=b"\xff" * 5),
    "typed/float8-powers-nan": _typed(TensorProto.FLOAT8E8M0, [4], raw_data=b"\xff" * 4),
    "typed/bfloat16-as-floats": _typed(TensorProto.BFLOAT16, [2], float_data=[1.0, 2.0]),
    "typed/float4-beyond-a-byte": _typed(TensorProto.FLOAT4E2M1, [3], int32_data=[1 << 20, 300]),
    "typed/truths-of-all-numbers": _typed(TensorProto.BOOL, [3], int32_data=[2, -1, 2**31 - 1]),
    "typed/a-million-texts": _typed(TensorProto.STRING, [1_000_000], string_data=[b"1"] * 1_000_000),
    "constant/two-values-and-none": _two_constants,
    "nodes/no-inputs": odd("Concat", [], axis=0),
    "nodes/inputs-without-names": odd("Concat", ["", "", ""], axis=0),
    "nodes/one-output-twice": lambda: changed(
        lambda made: made.graph.node.append(node("Split", ["y"], ["z0", "z0"], "odd", axis=1))
    ),
    "nodes/outputs-without-names": lambda: changed(
        lambda made: made.graph.node.append(node("Split", ["y"], ["", ""], "odd", axis=1))
    ),
    "nodes/no-outputs": lambda: changed(lambda made: made.graph.node.append(node("Relu", ["y"], [], "odd"))),
    "inputs/none": lambda: changed(
        lambda made: (
            made.graph.input.pop(),
            made.graph.initializer.extend(constants({"x": np.ones((2, WIDTH), F32)})),
        )
    ),
    "trees/lead-back": _trees(),
    "trees/lists-of-other-lengths": _trees(nodes_truenodeids=[1], target_nodeids=[1, 0, 1]),
    "trees/feature-2-to-the-62": _trees(nodes_featureids=[HUGE, -HUGE]),
    "labels/lists-of-other-lengths": odd(
        "LabelEncoder", ["y"], domain=LEARNING, keys_floats=[1.0, 2.0], values_int64s=[1]
    ),
    "norm/no-groups": odd(
        "GroupNormalization", ["i", "g", "g"], {"i": zeros(1, 4, 2, 2), "g": zeros(4)}, num_groups=0
    ),
    "norm/negative-variance": _norm(-5.0, 1e-5),
    "norm/epsilon-nan": _norm(1.0, float("nan")),
    "norm/of-another-length": _norm(1.0, 1e-5, 7),
    "attention/no-heads": odd(
        "Attention",
        ["i", "k", "b"],
        {"i": zeros(1, 4, 8), "k": zeros(8, 24), "b": zeros(24)},
        domain=MICROSOFT,
        num_heads=0,
    ),
    "attention/grouped-without-heads": odd(
        "GroupQueryAttention",
        ["i", "i", "i"],
        {"i": zeros(1, 4, 8)},
        domain=MICROSOFT,
        num_heads=0,
        kv_num_heads=0,
    ),
    "experts/of-lies": odd(
        "QMoE",
        ["y", "r", "q", "s", "", "q", "s"],
        {"r": zeros(2, 4), "q": np.zeros((4, 8, 8), np.uint8), "s": np.ones((4, 8), F32)},
        domain=MICROSOFT,
        k=HUGE,
        expert_weight_bits=3,
    ),
    "gemm/not-a-number": odd(
        "Gemm", ["y", "k", "j"], {"k": zeros(WIDTH, 4), "j": zeros(4)}, alpha=float("nan"), beta=float("inf")
    ),
    "gemm/transposed-2-to-the-62-times": odd(
        "Gemm", ["y", "k", "j"], {"k": zeros(WIDTH, 4), "j": zeros(5, 7, 9)}, transA=HUGE, transB=-3
    ),
    "pad/2-to-the-62": odd("Pad", ["y", "s"], {"s": np.int64([HUGE, 0, HUGE, 0])}),
    "pad/negative": odd("Pad", ["y", "s"], {"s": np.int64([-HUGE, 0, 0, -99])}),
    "tile/2-to-the-40": odd("Tile", ["y", "s"], {"s": np.int64([2**40, 2**40])}),
    "space-to-depth-0": odd("SpaceToDepth", ["i"], {"i": zeros(1, 1, 4, 4)}, blocksize=0),
    "lrn-of-minus-1": odd("LRN", ["i"], {"i": zeros(1, 4, 4, 4)}, size=-1),
    "conv-transpose/output-2-to-the-40": odd(
        "ConvTranspose",
        ["i", "k"],
        {"i": zeros(1, 1, 4, 4), "k": zeros(1, 1, 3, 3)},
        output_shape=[2**40, 2**40],
    ),
    "conv/kernel-of-another-rank": odd(
        "Conv",
        ["i", "k"],
        {"i": zeros(1, 1, 4, 4), "k": zeros(1, 1, 3, 3)},
        kernel_shape=[3],
        strides=[0, 0],
        group=-1,
    ),
    "lstm/directions-of-nowhere": odd(
        "LSTM",
        ["i", "k", "r"],
        {"i": zeros(2, 1, 4), "k": zeros(7, 3), "r": zeros(1)},
        hidden_size=0,
        direction="\0sideways",
    ),
    "integers/conv-of-texts": _integers(
        "QLinearConv",
        {
            "i": zeros(1, 1, 4, 4).astype(np.uint8),
            "si": SCALE,
            "zi": np.uint8(0),
            "k": np.array([["a"]]),
            "sk": SCALE,
            "zk": ZERO,
            "so": SCALE,
            "zo": np.uint8(0),
        },
    ),
    "integers/product-of-rank-0": _integers(
        "QLinearMatMul",
        {
            "i": np.int8(1),
            "si": np.ones((2, 3, 4), F32),
            "zi": ZERO,
            "k": EIGHT,
            "sk": NAN,
            "zk": zeros(0),
            "so": F32(0),
            "zo": np.float32(7),
        },
    ),
    "integers/product-without-operands": odd("MatMulInteger", ["", ""]),
    "integers/gemm-of-too-few": odd("QGemm", ["y"], domain=MICROSOFT, alpha=float("inf")),
    "integers/bnb4-of-lies": odd(
        "MatMulBnb4",
        ["y", "q", "s"],
        {"q": np.zeros(3, np.uint8), "s": NAN},
        domain=MICROSOFT,
        K=-5,
        N=HUGE,
        block_size=0,
        quant_type=9,
    ),
    "integers/gathered-blocks-of-lies": odd(
        "GatherBlockQuantized",
        ["q", "j", "s"],
        {"q": np.zeros((4, 16), np.uint8), "j": np.int64([HUGE]), "s": np.ones((9, 9), F32)},
        domain=MICROSOFT,
        block_size=-16,
        gather_axis=99,
        quantize_axis=-99,
    ),
    "integers/scale-of-texts": _integers("DequantizeLinear", {"q": EIGHT, "s": np.array(["a", "b"])}),
    "integers/dequantized-text": _integers("DequantizeLinear", {"q": np.array(["a", "b"]), "s": SCALE}),
}
