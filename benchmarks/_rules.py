"""The placement rules for ONNX Runtime's CPU as pairs of forms of a small graph, one claimed to be faster.

Each graph puts the operator in question between layers, as it stands in a model: alone it would be
drowned by the conversions at its borders. Where an operator is to stay float between quantized tensors
the graph carries the Max that keeps the runtime from fusing it, and its cost counts, as it does in a real
model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from _micro import MS, Micro

Shapes = dict[str, tuple[int, ...]]
IMAGE: Shapes = {"x": (1, 64, 56, 56)}
TEXT: Shapes = {"x": (1, 128, 768)}
FASTER, NO_SLOWER, GAINS = 1.05, 0.95, 1.1
ANY, FEW, MANY = (1, 999), (1, 11), (12, 999)  # threads


@dataclass(frozen=True)
class Rule:
    """`better` is claimed to be at least `least` times as fast as `worse`."""

    name: str
    build: Callable[[Micro], str]
    better: str
    worse: str
    least: float = FASTER
    shapes: Shapes = field(default_factory=lambda: IMAGE)
    types: dict[str, dict[str, object]] = field(default_factory=dict)  # form → arguments of Micro
    integers: tuple[str, ...] = ()
    most: int = 100  # integer inputs are below it
    threads: tuple[int, int] = ANY  # with how many it is claimed

    def holds_with(self, threads: int) -> bool:
        """Whether the rule is claimed for so many threads."""
        return self.threads[0] <= threads <= self.threads[1]

    @property
    def forms(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(("float", self.better, self.worse)))


def between(middle: Callable[[Micro, str], str], *, kernel: int = 3) -> Callable[[Micro], str]:
    """Conv, Relu, what `middle` makes of it, Conv: all quantized."""

    def build(m: Micro) -> str:
        x = m.q(m.relu(m.conv(m.q("x"))), low=True)
        return m.q(m.conv(middle(m, x), kernel=kernel))

    return build


# ------------------------------------------------------------------------------------ convolutions


def _output(m: Micro) -> str:
    x = m.q(m.relu(m.conv(m.q("x"))), low=True)
    return m.q(m.relu(m.conv(x)), low=True, when=m.form != "float result")


def _into_add(m: Micro, x: str) -> str:
    y = m.q(m.conv(x), when=m.form == "Q before Add")
    return m.q(m.add("Add", [y, x]))


def _residual(m: Micro) -> str:
    """The sum of a quantized branch with a stream that is quantized too, or left float."""
    stream = "x"
    for _ in range(2):
        x = m.q(stream)
        y = m.q(m.conv(m.q(m.relu(m.conv(x)), low=True)))
        stream = m.q(m.add("Add", [y, x])) if m.form == "Add Q" else m.add("Add", [y, stream])
    return m.q(m.conv(m.q(stream)))


def _relu_zero(m: Micro, x: str) -> str:
    return m.q(m.relu(m.conv(x)), low=m.form == "zero point lowest")


def _bias(m: Micro, x: str) -> str:
    return m.q(m.relu(m.conv(x, float_bias=m.form == "float bias")), low=True)


def _two_readers(m: Micro) -> str:
    x = m.q(m.relu(m.conv(m.q("x"))), low=True)
    y = m.q(m.conv(m.q(m.relu(m.conv(x)), low=True)))
    x = m.q(m.relu(m.add("Add", [y, x])), low=True)
    return m.q(m.add("Add", [m.q(m.conv(x)), x]))


def _styles(m: Micro) -> str:
    if m.form != "QOperator":
        x = m.q("x")
        return m.q(m.add("Add", [m.q(m.conv(m.q(m.relu(m.conv(x)), low=True))), x]))
    x = m.quantize("x")
    y = _qlinear_conv(m, _qlinear_conv(m, x, low=True), low=False, low_in=True)
    p = m.params()
    return m.dequantized(m.add("QLinearAdd", [y, *p, x, *p, *p], domain=MS))


def _qlinear_conv(m: Micro, x: str, *, low: bool, low_in: bool = False) -> str:
    integers, zeros, scales = m.values((64, 64, 3, 3), 0, 576)
    bias = m.constant(np.zeros(64, np.int32))
    inputs = [x, *m.params(low=low_in), m.constant(integers), m.constant(scales), m.constant(zeros)]
    return m.add("QLinearConv", [*inputs, *m.params(low=low), bias], kernel_shape=[3, 3], pads=[1, 1, 1, 1])


def _stem(first: int, kernel: int, act: str) -> Callable[[Micro], str]:
    """The first layer of an image model, float or quantized, and a block behind it."""

    def build(m: Micro) -> str:
        integer = m.form == "stem Q"
        x = m.q("x", when=integer)
        x = m.conv(x, 3, first, kernel=kernel, stride=2, integer=integer)
        if act == "Relu":
            x = m.q(m.relu(x), low=True, when=m.form != "both float")
        else:
            x = m.q(x, when=integer)
            x = m.q(m.add("Mul", [x, m.q(m.add("Sigmoid", [x]), low=True, when=integer)]))
        wise = m.conv(x, first, first, group=first, integer=m.form != "both float")
        return m.q(m.conv(m.q(m.relu(wise), low=True), first, 32, kernel=1))

    return build


def _first_block(m: Micro) -> str:
    """A first layer and a depthwise one in float, a 1x1 Conv and the first layer's result, added."""
    integer = m.form == "last Q"
    first = m.relu(m.conv("x", 3, 16, stride=2, integer=False))
    wise = m.relu(m.conv(first, 16, 16, group=16, integer=False))
    last = m.q(m.conv(m.q(wise, low=True, when=integer), 16, 16, kernel=1, integer=integer), when=integer)
    return m.q(m.conv(m.q(m.add("Add", [last, first])), 16, 64, kernel=1))


def _depthwise(m: Micro) -> str:
    x = m.q(m.relu(m.conv(m.q("x"), 24, 144, kernel=1)), low=True)
    y = m.relu(m.conv(x, 144, 144, group=144, integer=m.form == "depthwise Q"))
    y = m.q(y if m.form == "depthwise Q" else m.guard(y), low=True)
    return m.q(m.conv(y, 144, 24, kernel=1))


def _lone_depthwise(m: Micro) -> str:
    """A depthwise Conv with a float HardSwish and a float sum on either side."""

    def swish(x: str) -> str:
        gate = m.add("HardSigmoid", [x], alpha=1 / 6, beta=0.5)
        return m.add("Add", [m.add("Mul", [x, gate]), m.constant(np.full(1, 0.1, np.float32))])

    integer = m.form == "depthwise Q"
    x = swish(m.q(m.conv(m.q("x"), 24, 144, kernel=1)))
    y = m.q(m.conv(m.q(x, when=integer), 144, 144, group=144, integer=integer), when=integer)
    return m.q(m.conv(m.q(swish(y)), 144, 24, kernel=1))


def _grouped(groups: int) -> Callable[[Micro], str]:
    def middle(m: Micro, x: str) -> str:
        y = m.relu(m.conv(x, group=groups, integer=m.form == "grouped Q"))
        return m.q(y if m.form == "grouped Q" else m.guard(y), low=True)

    return between(middle)


def _thin(taken: int) -> Callable[[Micro], str]:
    """A 1x1 Conv that reads few channels, between others."""

    def build(m: Micro) -> str:
        x = m.q(m.relu(m.conv(m.q("x"), 64, taken, kernel=1)), low=True)
        y = m.relu(m.conv(x, taken, 64, kernel=1, integer=m.form == "thin Q"))
        y = m.q(y if m.form == "thin Q" else m.guard(y), low=True)
        return m.q(m.conv(y))

    return build


def _transposed(m: Micro, x: str) -> str:
    weight = m.weight((64, 64, 2, 2), 1, 64, integer=m.form == "int8 weight")
    y = m.guard(m.add("ConvTranspose", [x, weight], kernel_shape=[2, 2], strides=[2, 2]))
    return m.q(y)


def _dynamic_conv(m: Micro) -> str:
    if not m.quantized:
        return m.relu(m.conv(m.relu(m.conv("x"))))
    x = "x"
    for _ in range(2):
        integers, _, _ = m.values((64, 64, 3, 3), 0, 576)
        names = [f"taken_{len(m.nodes)}_{part}" for part in ("x", "scale", "zero")]
        from onnx import helper

        m.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], names))
        y = m.add("ConvInteger", [names[0], m.constant(integers), names[2]], pads=[1, 1, 1, 1])
        scale = m.add("Mul", [names[1], m.constant(np.float32(0.001))])
        x = m.relu(m.add("Mul", [m.add("Cast", [y], to=1), scale]))
    return x


# ------------------------------------------------------------------------- between convolutions


def _silu(m: Micro, x: str) -> str:
    gate = m.q(m.add("Sigmoid", [x]), low=True, scale=1 / 255, when=m.form == "SiLU Q")
    return m.q(m.add("Mul", [x, gate]))


def _sigmoid_only(m: Micro, x: str) -> str:
    """Sigmoid in integers, and what reads it."""
    y = m.add("Sigmoid", [x])
    return m.q(y if m.form == "Sigmoid Q" else m.guard(y), low=True, scale=1 / 255)


def _hard_swish(m: Micro, x: str) -> str:
    if m.form == "HardSwish":
        return m.q(m.add("HardSwish", [x]))
    if m.form == "gate cut off":
        integers = next(one for one in m.nodes if one.output[0] == x).input[0]
        low, high = (m.constant(np.uint8(end)) for end in (128 - 60, 128 + 60))
        gate = m.add("Clip", [integers, low, high])
        gate = m.add("DequantizeLinear", [gate, m.constant(np.float32(1 / 120)), low])
        return m.q(m.add("Mul", [x, gate]))
    gate = m.add("HardSigmoid", [x], alpha=1 / 6, beta=0.5)
    gate = m.q(gate, low=True, scale=1 / 255, when=m.form == "HardSigmoid Q, Mul Q")
    return m.q(m.add("Mul", [x, gate]))


def _squeeze(m: Micro, x: str) -> str:
    whole = m.form == "branch Q, Mul Q"
    y = m.q(m.add("GlobalAveragePool", [x]), low=True, when=whole)
    y = m.q(m.relu(m.conv(y, 64, 16, kernel=1, integer=whole)), low=True, when=whole)
    y = m.q(m.conv(y, 16, 64, kernel=1, integer=whole), when=whole)
    gate = m.add("HardSigmoid", [y], alpha=1 / 6, beta=0.5)
    gate = m.q(gate, low=True, scale=1 / 255, when=m.form != "branch float, Mul float")
    return m.q(m.add("Mul", [x, gate]), low=True)


def _mul(m: Micro, x: str) -> str:
    other = m.q(m.conv(x, kernel=1))
    y = m.add("Mul", [x, other])
    return m.q(y if m.form == "Mul Q" else m.guard(y))


def _add(m: Micro, x: str) -> str:
    other = m.q(m.conv(x, kernel=1))
    y = m.add("Add", [x, other])
    return m.q(y if m.form == "Add Q" else m.guard(y))


def _concat(m: Micro, x: str) -> str:
    shared = m.form == "one scale"
    parts = [m.q(m.conv(x, 64, 32, kernel=1), scale=0.05 if shared else 0.02 + 0.01 * i) for i in range(2)]
    y = m.add("Concat", parts, axis=1)
    return m.q(m.guard(y) if m.form == "Concat float" else y)


def _leaky(m: Micro, x: str) -> str:
    y = m.q(m.conv(x), when=m.form == "Q before and behind")
    return m.q(m.add("LeakyRelu", [y], alpha=0.1))


def _pooled(m: Micro) -> str:
    """A classifier's end."""
    x = m.q(m.relu(m.conv(m.q("x"))), low=True)
    x = m.q(m.relu(m.conv(x, 64, 512, kernel=1)), low=True)
    x = m.q(m.add("GlobalAveragePool", [x]), low=True, when=m.form == "pool Q")
    x = m.q(m.add("Flatten", [x]), low=True)
    return m.add("Gemm", [x, m.weight((512, 1000), 1, 512), m.bias(1000, 512)])


def _average(m: Micro, x: str) -> str:
    y = m.add("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
    return m.q(y if m.form == "pool Q" else m.guard(y), low=True)


def _reduce_mean(m: Micro, x: str) -> str:
    if m.form == "as GlobalAveragePool":
        return m.q(m.add("GlobalAveragePool", [x]), low=True)
    return m.q(m.add("ReduceMean", [x], axes=[2, 3], keepdims=1), low=True)


def _max_pool(m: Micro, x: str) -> str:
    y = m.add("MaxPool", [x], kernel_shape=[2, 2], strides=[2, 2])
    return m.q(
        m.guard(y) if m.form == "pool float" else y, low=True, scale=0.05 if m.form != "own scale" else 0.04
    )


def _resize(mode: str) -> Callable[[Micro, str], str]:
    def middle(m: Micro, x: str) -> str:
        scales = m.constant(np.float32([1, 1, 2, 2]))
        y = m.add("Resize", [x, "", scales], mode=mode, coordinate_transformation_mode="asymmetric",
                  **({"nearest_mode": "floor"} if mode == "nearest" else {}))  # fmt: skip
        return m.q(y, low=True, scale=0.05 if m.form != "own scale" else 0.04)

    return middle


def _shuffle(m: Micro, x: str) -> str:
    """Channels exchanged between groups: a Gather, or Reshape, Transpose, Reshape."""
    if m.form == "one Gather":
        order = np.arange(64).reshape(2, 32).T.reshape(-1)
        return m.q(m.add("Gather", [x, m.constant(order.astype(np.int64))], axis=1), low=True)
    y = m.q(m.add("Reshape", [x, m.constant(np.int64([1, 2, 32, 56, 56]))]), low=True)
    y = m.q(m.add("Transpose", [y], perm=[0, 2, 1, 3, 4]), low=True)
    return m.q(m.add("Reshape", [y, m.constant(np.int64([1, 64, 56, 56]))]), low=True)


def _rows(m: Micro) -> str:
    """An image as rows for a linear layer: Reshape, Transpose."""
    scale = 0.05 if m.form == "shared scale" else 0.04
    x = m.q(m.relu(m.conv(m.q("x"))), low=True)
    y = m.q(m.add("Reshape", [x, m.constant(np.int64([1, 64, 3136]))]), low=True, scale=scale)
    return m.linear(m.q(m.add("Transpose", [y], perm=[0, 2, 1]), low=True, scale=scale), 64, 64)


def _inner_softmax(m: Micro, x: str) -> str:
    """A Softmax over an axis with two behind it, as one operator or in parts."""
    y = m.add("Reshape", [x, m.constant(np.int64([1, 16, 4, 3136]))])
    if m.form == "in parts":
        power = m.add("Exp", [m.add("Sub", [y, m.add("ReduceMax", [y], axes=[1], keepdims=1)])])
        y = m.add("Div", [power, m.add("ReduceSum", [power, m.constant(np.int64([1]))], keepdims=1)])
    else:
        y = m.add("Softmax", [y], axis=1)
    return m.q(m.add("Reshape", [y, m.constant(np.int64([1, 64, 56, 56]))]), low=True)


def _sub(m: Micro, x: str) -> str:
    return m.q(m.add("Sub", [x, m.q(m.conv(x, kernel=1))]))


def _tanh(m: Micro, x: str) -> str:
    return m.q(m.add("Tanh", [x]))


# ------------------------------------------------------------------------------------- linear layers


def _linear_bias(m: Micro) -> str:
    return m.norm(m.linear(m.q(m.norm("x")), float_bias=m.form == "MatMul, float Add"))


def _gemm_bias(m: Micro) -> str:
    x = m.q(m.add("Reshape", ["x", m.constant(np.int64([-1, 768]))]))
    bias = m.bias(768, 768, integer=m.form == "int32 bias")
    return m.norm(m.add("Gemm", [x, m.weight((768, 768), 1, 768), bias]))


def _linear_written(m: Micro) -> str:
    x = m.norm("x")
    if m.form == "MatMulIntegerToFloat":
        return m.norm(m.written("MatMulIntegerToFloat", x, 768, 768))
    if m.form.startswith("dynamic"):
        return m.norm(m.written("DynamicQuantizeMatMul", x, 768, 768))
    return m.norm(m.linear(m.q(x)))


def _linear_result(m: Micro) -> str:
    y = m.linear(m.q(m.norm("x")))
    return m.norm(m.q(y, when=m.form == "Q on the result"))


def _gelu(m: Micro) -> str:
    y = m.q(m.linear(m.q(m.norm("x")), 768, 3072), when=m.form == "Q before Gelu")
    error = m.add("Erf", [m.add("Div", [y, m.constant(np.float32(2**0.5))])])
    gate = m.add("Mul", [y, m.add("Add", [error, m.constant(np.float32(1))])])
    y = m.add("Mul", [gate, m.constant(np.float32(0.5))])
    return m.linear(m.q(y), 3072, 768)


def _norm(m: Micro) -> str:
    x = "x"
    for _ in range(2):
        y = m.linear(m.q(m.norm(m.q(x, when=m.form == "LayerNorm Q"))))
        x = m.add("Add", [y, x])
    return x


def _joined(m: Micro) -> str:
    """A sum in front of LayerNormalization: with Add the runtime makes one operator of both."""
    x = "x"
    for _ in range(2):
        x = m.norm(m.add("Sum" if m.form == "Sum" else "Add", [m.linear(m.q(x)), x]))
    return x


def _stream(m: Micro) -> str:
    x = "x"
    for _ in range(2):
        y = m.linear(m.q(m.norm(x)))
        x = m.add("Add", [m.q(y), m.q(x)]) if m.form == "Add Q" else m.add("Add", [y, x])
        x = m.q(x, when=m.form == "Add Q")
    return x


def _attention(m: Micro) -> str:
    """Products of attention and Softmax, in integers or not; of scores near one, as without denormals."""
    x = m.norm("x")
    products, soft = "products Q" in m.form, "Softmax Q" in m.form
    split = m.constant(np.int64([0, 0, 12, 64]))
    parts = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        rows = m.add("Reshape", [m.linear(m.q(x)), split])
        parts.append(m.add("Transpose", [rows], perm=order))
    parts[0] = m.add("Mul", [parts[0], m.constant(np.float32(1 / 8))])  # by the root of 64
    query, key, value = (m.q(part, when=products) for part in parts)
    scores = m.q(m.add("MatMul", [query, key]), when=soft)
    scores = m.q(m.add("Softmax", [scores], axis=-1), low=True, scale=1 / 255, when=products or soft)
    joined = m.add("Transpose", [m.add("MatMul", [scores, value])], perm=[0, 2, 1, 3])
    return m.linear(m.q(m.add("Reshape", [joined, m.constant(np.int64([0, 0, 768]))])))


def _three_readers(m: Micro) -> str:
    """Three linear layers that read one tensor, as query, key and value do."""
    x = m.norm("x")
    if m.form == "dynamic":
        parts = [m.written("DynamicQuantizeMatMul", x, 768, 768) for _ in range(3)]
    else:
        shared = m.q(x)
        parts = [m.linear(shared if m.form == "one Q" else m.q(x)) for _ in range(3)]
    return m.add("Sum", parts)


def _decoder(m: Micro) -> str:
    x = "x"
    for taken, given in ((768, 3072), (3072, 768)) * 2:
        if m.form.startswith("4-bit"):
            x = m.in_blocks(x, taken, given, bits=4, block=128, level=0 if "level 0" in m.form else 4)
        elif m.form.startswith("dynamic"):
            x = m.written("DynamicQuantizeMatMul", x, taken, given)
        else:
            x = m.linear(x, taken, given)
    return x


def _table(m: Micro) -> str:
    table = m._rng.integers(-127, 128, (30000, 384)).astype(np.int8)
    if not m.quantized:
        return m.add("Gather", [m.constant(table.astype(np.float32)), "ids"])
    scale = [m.constant(np.float32(0.01)), m.constant(np.int8(0))]
    if m.form == "Gather, DQ":
        return m.add("DequantizeLinear", [m.add("Gather", [m.constant(table), "ids"]), *scale])
    return m.add("Gather", [m.add("DequantizeLinear", [m.constant(table), *scale]), "ids"])


def _lstm(hidden: int) -> Callable[[Micro], str]:
    def build(m: Micro) -> str:
        from onnx import helper

        shapes = ((1, 4 * hidden, hidden), (1, 4 * hidden, hidden))
        names = ["steps", "last", "cell"]
        if not m.quantized:
            weights = [m.random(*shape, scale=hidden**-0.5) for shape in shapes]
            m.nodes.append(helper.make_node("LSTM", ["x", *weights], names, hidden_size=hidden))
            return names[0]
        integers = [
            m.constant(m._rng.integers(-127, 128, (1, hidden, 4 * hidden)).astype(np.int8)) for _ in range(2)
        ]
        scales = [m.constant(np.full((1, 4 * hidden), 0.02 / hidden**0.5, np.float32)) for _ in range(2)]
        zeros = [m.constant(np.zeros((1, 4 * hidden), np.int8)) for _ in range(2)]
        inputs = ["x", *integers, "", "", "", "", "", scales[0], zeros[0], scales[1], zeros[1]]
        m.nodes.append(helper.make_node("DynamicQuantizeLSTM", inputs, names, domain=MS, hidden_size=hidden))
        return names[0]

    return build


S8, U8U8 = {"act": "int8"}, {"weight": "uint8"}
ONE: Shapes = {"x": (1, 1, 768)}
LARGE_IMAGE: Shapes = {"x": (1, 3, 224, 224)}

RULES: tuple[Rule, ...] = (
    Rule("uint8, not int8 activations", _two_readers, "u8 s8", "s8 s8", GAINS, types={"s8 s8": S8}),
    Rule("int8, not uint8 weights", _two_readers, "u8 s8", "u8 u8", GAINS, types={"u8 u8": U8U8}),
    Rule(
        "a scale a channel is free", _two_readers, "per channel", "per tensor", NO_SLOWER,
        types={"per tensor": {"per_channel": False}},
    ),
    Rule("QDQ as fast as QOperator", _styles, "QDQ", "QOperator", NO_SLOWER),
    Rule("Q on the result of Conv", _output, "Q on it", "float result"),
    Rule("Q between Conv and residual Add", between(_into_add), "Q before Add", "none"),
    Rule("residual stream of a CNN", _residual, "Add Q", "Add float"),
    Rule(
        "zero point lowest behind Relu", between(_relu_zero), "zero point lowest",
        "zero point in the middle",
    ),
    Rule("int32 bias of Conv as fast as float", between(_bias), "int32 bias", "float bias", NO_SLOWER),
    Rule(
        "stem of 27 products, Relu", _stem(32, 3, "Relu"), "stem float", "stem Q",
        shapes=LARGE_IMAGE, threads=FEW,
    ),
    Rule(
        "stem of 27 products, Relu, many threads", _stem(32, 3, "Relu"), "stem Q", "stem float",
        shapes=LARGE_IMAGE, threads=MANY,
    ),
    Rule(
        "depthwise behind a float stem", _stem(32, 3, "Relu"), "both float", "stem float",
        shapes=LARGE_IMAGE, threads=FEW,
    ),
    Rule(
        "first block with a float stem added", _first_block, "last float", "last Q",
        shapes=LARGE_IMAGE, threads=FEW,
    ),
    Rule(
        "stem of 27 products, SiLU", _stem(16, 3, "SiLU"), "stem float", "stem Q",
        shapes=LARGE_IMAGE, threads=FEW,
    ),
    Rule(
        "stem of 27 products, SiLU, many threads", _stem(16, 3, "SiLU"), "stem Q", "stem float",
        shapes=LARGE_IMAGE, threads=MANY,
    ),
    Rule("stem of 147 products", _stem(64, 7, "Relu"), "stem Q", "stem float", shapes=LARGE_IMAGE),
    Rule(
        "depthwise between 1x1", _depthwise, "depthwise Q", "depthwise float",
        shapes={"x": (1, 24, 56, 56)},
    ),
    Rule(
        "depthwise between float operators", _lone_depthwise, "depthwise float", "depthwise Q",
        shapes={"x": (1, 24, 56, 56)},
    ),
    Rule(
        "depthwise between float operators, small map", _lone_depthwise, "depthwise float", "depthwise Q",
        shapes={"x": (1, 24, 7, 40)},
    ),
    Rule("2 groups", _grouped(2), "grouped Q", "grouped float"),
    Rule("8 groups", _grouped(8), "grouped float", "grouped Q", NO_SLOWER, threads=FEW),
    Rule("32 groups", _grouped(32), "grouped float", "grouped Q"),
    Rule("1x1 Conv of 8 products, not the first", _thin(8), "thin Q", "thin float"),
    Rule("1x1 Conv of 16 products", _thin(16), "thin Q", "thin float", NO_SLOWER),
    Rule("ConvTranspose keeps float weights", between(_transposed), "float weight", "int8 weight"),
    Rule("layers around ConvTranspose gain", between(_transposed), "float weight", "float"),
    Rule("Conv with ranges at run time is slow", _dynamic_conv, "float", "dynamic"),
    Rule("SiLU quantized", between(_silu), "SiLU Q", "SiLU float"),
    Rule("Sigmoid quantized", between(_sigmoid_only), "Sigmoid Q", "Sigmoid float"),
    Rule("HardSwish as a product of integers", between(_hard_swish), "gate cut off", "HardSwish"),
    Rule("HardSwish else as one operator", between(_hard_swish), "HardSwish", "float Mul", NO_SLOWER),
    Rule(
        "squeeze and excite: Mul quantized", between(_squeeze), "branch Q, Mul Q",
        "branch float, Mul float", NO_SLOWER,
    ),
    Rule(
        "squeeze and excite: branch quantized", between(_squeeze), "branch Q, Mul Q",
        "branch float, Mul Q", NO_SLOWER,
    ),
    Rule("Mul quantized", between(_mul), "Mul Q", "Mul float"),
    Rule("Add quantized", between(_add), "Add Q", "Add float"),
    Rule("Concat quantized", between(_concat), "Concat Q", "Concat float"),
    Rule("Concat of unlike scales", between(_concat), "Concat Q", "one scale", NO_SLOWER),
    Rule("LeakyRelu quantized", between(_leaky), "Q before and behind", "Q behind alone"),
    Rule("GlobalAveragePool quantized", _pooled, "pool Q", "pool float", NO_SLOWER),
    Rule("AveragePool stays float", between(_average), "pool float", "pool Q", NO_SLOWER),
    Rule(
        "ReduceMean as GlobalAveragePool", between(_reduce_mean, kernel=1), "as GlobalAveragePool",
        "ReduceMean", NO_SLOWER,
    ),
    Rule("MaxPool shares its scale", between(_max_pool), "shared scale", "own scale", NO_SLOWER),
    Rule("MaxPool quantized", between(_max_pool), "shared scale", "pool float"),
    Rule(
        "nearest Resize shares its scale", between(_resize("nearest")), "shared scale", "own scale",
        NO_SLOWER,
    ),
    Rule("layers around linear Resize gain", between(_resize("linear")), "Resize float", "float"),
    Rule("Reshape and Transpose share scales", _rows, "shared scale", "own scale", NO_SLOWER),
    Rule("channels exchanged by one Gather", between(_shuffle), "one Gather", "Reshape, Transpose"),
    Rule("Softmax over an inner axis in parts", between(_inner_softmax), "in parts", "one operator"),
    Rule("layers around Sub gain", between(_sub), "Sub float", "float"),
    Rule("layers around Tanh gain", between(_tanh), "Tanh float", "float"),
    Rule(
        "linear: int32 bias, fixed shape", _linear_bias, "MatMul, int32 Add", "MatMul, float Add",
        shapes=TEXT,
    ),
    Rule("Gemm: int32 bias", _gemm_bias, "int32 bias", "float bias", shapes=TEXT),
    Rule("linear: Q, MatMulIntegerToFloat", _linear_written, "MatMulIntegerToFloat", "QDQ", NO_SLOWER, TEXT),
    Rule("linear: ranges at run time gain", _linear_written, "dynamic", "float", GAINS, TEXT),
    Rule("linear: static as fast as run time", _linear_written, "QDQ", "dynamic", NO_SLOWER, TEXT),
    Rule(
        "linear: uint8 weights at run time", _linear_written, "dynamic", "dynamic, u8", GAINS, TEXT,
        {"dynamic, u8": U8U8},
    ),
    Rule(
        "linear: float result into LayerNorm", _linear_result, "float result", "Q on the result",
        NO_SLOWER, TEXT,
    ),
    Rule("Gelu: float input", _gelu, "float input", "Q before Gelu", FASTER, TEXT),
    Rule("LayerNormalization stays float", _norm, "LayerNorm float", "LayerNorm Q", NO_SLOWER, TEXT),
    Rule("sum before LayerNorm not joined with it", _joined, "Sum", "Add", FASTER, TEXT, threads=FEW),
    Rule("sum joined with LayerNorm, many threads", _joined, "Add", "Sum", NO_SLOWER, TEXT, threads=MANY),
    Rule("residual stream of a transformer float", _stream, "Add float", "Add Q", NO_SLOWER, TEXT),
    Rule("Softmax stays float", _attention, "products Q", "products Q, Softmax Q", FASTER, TEXT),
    Rule("products of attention stay float", _attention, "products float", "products Q", NO_SLOWER, TEXT),
    Rule("one Q for three readers", _three_readers, "one Q", "a Q each", NO_SLOWER, TEXT),
    Rule("three readers: static", _three_readers, "one Q", "dynamic", NO_SLOWER, TEXT),
    Rule("one token: 4-bit blocks of 128", _decoder, "4-bit blocks", "dynamic", FASTER, ONE),
    Rule("128 tokens: dynamic int8", _decoder, "dynamic", "4-bit blocks", FASTER, TEXT),
    Rule("accuracy level 4, not 0", _decoder, "4-bit blocks", "4-bit blocks, level 0", GAINS, ONE),
    Rule(
        "tables: rows first, then DQ", _table, "Gather, DQ", "DQ, Gather", GAINS, {"ids": (1, 128)},
        integers=("ids",), most=30000,
    ),
    Rule(
        "LSTM of 512 at run time", _lstm(512), "dynamic", "float", GAINS, {"x": (32, 1, 512)}, threads=FEW,
    ),
    Rule("LSTM of 64 at run time", _lstm(64), "dynamic", "float", NO_SLOWER, {"x": (32, 1, 64)}),
    Rule("LSTM of 32 stays float", _lstm(32), "float", "dynamic", NO_SLOWER, {"x": (32, 1, 32)}),
)  # fmt: skip
