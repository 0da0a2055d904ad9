"""Small quantized models with one fault each, beside a twin without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto

VNNI = "ort-cpu-vnni"
U8, S8, U16, F32 = np.uint8, np.int8, np.uint16, np.float32
MS = "com.microsoft"
MIDDLE, LEAST = U8(128), U8(0)


def f32(*values: float) -> np.ndarray:
    """A float32 scalar, or a row of them."""
    return np.array(values if len(values) > 1 else values[0], F32)


def integers(*shape: int, seed: int = 0, top: int = 60) -> np.ndarray:
    """int8 weights that no pair of products drives out of 16 bits."""
    return np.random.default_rng(seed).integers(-top, top + 1, shape).astype(S8)


@dataclass
class Net:
    """A graph in the making; every method returns the name of its result."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def const(self, name: str, array: Any) -> str:
        self.arrays[name] = np.asarray(array)
        return name

    def op(self, kind: str, inputs: list[str], out: str, **attributes: Any) -> str:
        self.nodes.append(node(kind, inputs, [out], f"{out}.{kind}", **attributes))
        return out

    def q(self, x: str, scale: Any, zero: Any, tag: str = "", **attributes: Any) -> str:
        base = f"{x}{tag}"
        s = scale if isinstance(scale, str) else self.const(f"{base}.s", scale)
        given = [] if zero is None else [self.const(f"{base}.z", zero)]
        return self.op("QuantizeLinear", [x, s, *given], f"{base}.q", **attributes)

    def dq(self, q: str, scale: Any, zero: Any, tag: str = "", **attributes: Any) -> str:
        base = f"{q}{tag}"
        s = scale if isinstance(scale, str) else self.const(f"{base}.ds", scale)
        given = [] if zero is None else [self.const(f"{base}.dz", zero)]
        return self.op("DequantizeLinear", [q, s, *given], f"{base}.d", **attributes)

    def pair(self, x: str, scale: Any = 0.05, zero: Any = None, tag: str = "", **more: Any) -> str:
        zero = U8(128) if zero is None else zero
        return self.dq(self.q(x, f32(scale), zero, tag, **more), f32(scale), zero, tag, **more)

    def weight(
        self, name: str, array: Any, scale: Any, zero: Any = "zeros", axis: int | None = 0, **more: Any
    ) -> str:
        scale = np.asarray(scale, F32)
        if isinstance(zero, str):
            zero = np.zeros(scale.shape, array.dtype)
        kind = {"axis": axis} if scale.ndim and axis is not None else {}
        return self.dq(self.const(name, array), scale, zero, **kind, **more)

    def done(self, y: str, shape: list[Any], out: list[Any], **more: Any) -> onnx.ModelProto:
        more = {"opset": 17, "ir_version": 8, "domains": {MS: 1}, **more}
        kind = more.pop("dtype", TensorProto.FLOAT)
        return model(self.nodes, [tensor("x", shape, kind)], [tensor(y, out, kind)], self.arrays, **more)


C, IMAGE = 8, [1, 8, 6, 6]
W_SCALE = np.linspace(0.01, 0.02, C).astype(F32)
BIAS = np.linspace(-1, 1, C)


def conv(
    *, x_zero: Any = MIDDLE, y_zero: Any = LEAST, w: Any = None, w_zero: Any = "zeros", w_axis: int = 0,
    bias_factor: float = 1.0, bias_zero: int | None = None, bias: Any = BIAS, relu: bool = True,
    out_q: bool = True, int32: bool = True, y_scale: float = 0.1, attributes: dict[str, Any] | None = None,
    **more: Any,
) -> onnx.ModelProto:  # fmt: skip
    """x → pair → Conv (int8 weight per channel, int32 bias) → Relu → pair → y."""
    net = Net()
    x = net.pair("x", zero=x_zero, **(attributes or {}))
    weight = net.weight("w", integers(C, C, 3, 3) if w is None else w, W_SCALE, w_zero, w_axis)
    step = np.float64(0.05) * W_SCALE.astype(np.float64) * bias_factor
    if int32:
        shift = bias_zero or 0
        stored = (np.rint(np.asarray(bias) / step) + shift).astype(np.int32)
        zero = None if bias_zero is None else np.full(C, bias_zero, np.int32)
        b = net.dq(net.const("b", stored), step.astype(F32), zero, axis=0)
    else:
        b = net.const("b", np.asarray(bias, F32))
    y = net.op("Conv", [x, weight, b], "c", pads=[1, 1, 1, 1])
    y = net.op("Relu", [y], "r") if relu else y
    if out_q:
        y = net.pair(y, y_scale, y_zero, **(attributes or {}))
    return net.done(y, IMAGE, IMAGE, **more)


def gemm(
    *,
    bias_factor: float = 1.0,
    zero: Any = "zeros",
    out_q: bool = False,
    float_bias: bool = False,
    top: int = 60,
) -> onnx.ModelProto:
    """x → pair → Gemm → y, with a float result."""
    net = Net()
    x = net.pair("x")
    w = net.weight("w", integers(16, C, top=top), W_SCALE, zero, axis=1)
    step = np.float64(0.05) * W_SCALE.astype(np.float64) * bias_factor
    b = (
        net.const("b", BIAS.astype(F32))
        if float_bias
        else net.dq(net.const("b", np.rint(BIAS / step).astype(np.int32)), step.astype(F32), None, axis=0)
    )
    y = net.op("Gemm", [x, w, b], "g")
    return net.done(net.pair(y, 0.1) if out_q else y, [2, 16], [2, C])


def matmul(
    *, axis: int | None = 1, count: int = C, x_scale: Any = 0.05, x_axis: int | None = None, blocks: int = 0,
    w: Any = None, w_zero: Any = "zeros", zero: Any = MIDDLE, out_q: bool = False, scalar: bool = False,
    relu_pair: float | None = None, **more: Any,
) -> onnx.ModelProto:  # fmt: skip
    """x → pair → MatMul with a square weight → y."""
    net = Net()
    kind = {"axis": x_axis} if x_axis is not None else {}
    x_scale = np.asarray(x_scale, F32)
    x_zero = np.full(x_scale.shape, zero, np.asarray(zero).dtype)
    x = net.dq(net.q("x", x_scale, x_zero, **kind), x_scale, x_zero, **kind)
    if relu_pair is not None:
        x = net.pair(x, relu_pair, tag="again")
    weights = integers(C, C) if w is None else w
    if blocks:
        net.const("w", weights)
        w_dq = net.dq("w", np.full((C // blocks, C), 0.01, F32), np.zeros((C // blocks, C), S8), axis=0,
                      block_size=blocks)  # fmt: skip
    else:
        scale = f32(0.01) if scalar else np.resize(W_SCALE, count)
        w_dq = net.weight("w", weights, scale, w_zero, axis)
    y = net.op("MatMul", [x, w_dq], "m")
    y = net.pair(y, 0.1, zero) if out_q else y
    return net.done(y, [4, C], [4, C], **more)


def two_quantizers(same: bool) -> onnx.ModelProto:
    """Two readers of x; each has a pair to itself, or both share one."""
    net = Net()
    one = net.pair("x")
    other = one if not same else net.pair("x", tag="2")
    a = net.op("MatMul", [one, net.weight("w", integers(C, C), W_SCALE, axis=1)], "a")
    b = net.op("MatMul", [other, net.weight("v", integers(C, C, seed=1), W_SCALE, axis=1)], "b")
    return net.done(net.op("Max", [a, b], "y"), [4, C], [4, C])


def chain(kind: str) -> onnx.ModelProto:
    """A quantized value with something between it and the MatMul that reads it."""
    net = Net()
    net.const("s", f32(0.05))
    zero = U8(0) if kind.startswith("relu") else U8(128)
    x = net.dq(net.q("x", "s", zero), "s", zero)
    if kind == "round trip":
        x = net.dq(net.q(x, "s", zero, "2"), "s", zero, "2")
    elif kind == "relu":
        x = net.op("Relu", [x], "r")
    y = net.op("MatMul", [x, net.weight("w", integers(C, C), W_SCALE, axis=1)], "m")
    return net.done(y, [4, C], [4, C])


def computed(faulty: bool) -> onnx.ModelProto:
    """The scale of x comes out of a node, or is stored."""
    net = Net()
    scale = net.const("s", f32(0.05))
    if faulty:
        scale = net.op("Add", [scale, net.op("ReduceMin", ["x"], "least", keepdims=0)], "sum")
    x = net.dq(net.q("x", scale, U8(128)), scale, U8(128))
    return net.done(
        net.op("MatMul", [x, net.weight("w", integers(C, C), W_SCALE, axis=1)], "m"), [4, C], [4, C]
    )


def unfolded(faulty: bool) -> onnx.ModelProto:
    """A weight in float behind QuantizeLinear, or its integers."""
    net = Net()
    whole = integers(C, C)
    zero = np.zeros(C, S8)
    if faulty:
        real = net.const("w", (whole * W_SCALE).astype(F32))
        w = net.dq(net.q(real, W_SCALE, zero, axis=1), W_SCALE, zero, axis=1)
    else:
        w = net.weight("w", whole, W_SCALE, axis=1)
    return net.done(net.op("MatMul", [net.pair("x"), w], "m"), [4, C], [4, C])


def softmax(op: str, faulty: bool) -> onnx.ModelProto:
    """Softmax or LayerNormalization between conversions, or with a float result."""
    net = Net()
    x = net.pair("x") if faulty else "x"
    more = [net.const("gamma", np.ones(C, F32))] if op == "LayerNormalization" else []
    y = net.op(op, [x, *more], "y")
    return net.done(net.pair(y, 1 / 255, U8(0)) if faulty else y, [4, C], [4, C])


def table(faulty: bool) -> onnx.ModelProto:
    """A table that is dequantized as a whole, or row by row."""
    net = Net()
    net.const("t", integers(32, C))
    net.const("s", f32(0.1))
    net.const("one", f32(1))
    ids = net.op("Cast", ["x"], "ids", to=TensorProto.INT64)
    if faulty:
        rows = net.op("Gather", [net.dq("t", "s", S8(3)), ids], "rows")
    else:
        rows = net.dq(net.op("Gather", ["t", ids], "rows"), "s", S8(3))
    return net.done(net.op("Mul", [rows, "one"], "y"), [4], [4, C])


def dynamic(kind: Any) -> onnx.ModelProto:
    """DynamicQuantizeLinear and MatMulInteger, with weights of either type."""
    net = Net()
    shift = 128 if kind is U8 else 0
    w = net.const("w", (integers(C, C).astype(np.int64) + shift).astype(kind))
    z = net.const("wz", np.asarray(shift, kind))
    net.nodes.append(node("DynamicQuantizeLinear", ["x"], ["q", "s", "zp"], "dynamic"))
    total = net.op("Cast", [net.op("MatMulInteger", ["q", w, "zp", z], "i")], "f", to=TensorProto.FLOAT)
    scale = net.op("Mul", ["s", net.const("ws", f32(0.01))], "scale")
    return net.done(net.op("Mul", [total, scale], "y"), [4, C], [4, C])


def conv_integer(per_channel: bool) -> onnx.ModelProto:
    """ConvInteger behind DynamicQuantizeLinear."""
    net = Net()
    net.const("w", integers(C, C, 3, 3))
    z = net.const("wz", np.zeros(C, S8) if per_channel else S8(0))
    net.nodes.append(node("DynamicQuantizeLinear", ["x"], ["q", "s", "zp"], "dynamic"))
    total = net.op("ConvInteger", ["q", "w", "zp", z], "i", pads=[1, 1, 1, 1])
    total = net.op("Cast", [total], "f", to=TensorProto.FLOAT)
    return net.done(net.op("Mul", [total, "s"], "y"), IMAGE, IMAGE)


def qlinear(act: Any, weight: Any) -> onnx.ModelProto:
    """QLinearMatMul with operands of these types."""
    net = Net()
    net.const("s", f32(0.05))
    az = net.const("az", np.asarray(128 if act is U8 else 0, act))
    w = net.const("w", integers(C, C).astype(weight))
    wz = net.const("wz", np.asarray(0, weight))
    q = net.op("QuantizeLinear", ["x", "s", az], "q")
    y = net.op("QLinearMatMul", [q, "s", az, w, "s", wz, "s", az], "y.q")
    return net.done(net.op("DequantizeLinear", [y, "s", az], "y"), [4, C], [4, C])


def concat(other: Any) -> onnx.ModelProto:
    """Two tensors joined, of one type or two."""
    net = Net()
    one = net.pair("x", tag="1")
    zero = np.asarray(128 if other is U8 else 0, other)
    two = net.dq(net.q("x", f32(0.06), zero, "2"), f32(0.06), zero, "2")
    return net.done(net.op("Concat", [one, two], "y", axis=1), [4, C], [4, 2 * C])


def half(kind: Any) -> onnx.ModelProto:
    """A product in float16 or float32."""
    net = Net()
    scale, zero = np.asarray(0.05, kind), U8(128)
    x = net.dq(net.q("x", scale, zero), scale, zero)
    w = net.dq(net.const("w", integers(C, C)), np.asarray(0.01, kind), S8(0))
    y = net.op("MatMul", [x, w], "m")
    dtype = TensorProto.FLOAT16 if kind is np.float16 else TensorProto.FLOAT
    return net.done(y, [4, C], [4, C], opset=21, ir_version=10, dtype=dtype)


def float_layer(guard: bool, out_q: bool = True) -> onnx.ModelProto:
    """A Conv with float weights between conversions; a Max keeps the runtime from rounding them."""
    net = Net()
    w = net.const("w", (integers(C, C, 3, 3) / 50).astype(F32))
    first = net.weight("v", integers(C, C, 1, 1), W_SCALE)
    x = net.pair(net.op("Conv", [net.pair("x"), first], "first"), 0.1)
    y = net.op("Conv", [x, w], "c", pads=[1, 1, 1, 1])
    if guard:
        y = net.op("Max", [y, net.const("low", f32(-3e38))], "guarded")
    return net.done(net.pair(y, 0.2) if out_q else y, IMAGE, IMAGE)


def float_input(quantized: bool) -> onnx.ModelProto:
    """A MatMul whose weight is float, with an input that is quantized or not."""
    net = Net()
    w = net.const("w", (integers(C, C) / 50).astype(F32))
    return net.done(net.op("MatMul", [net.pair("x") if quantized else "x", w], "m"), [4, C], [4, C])


def float8(clamp: bool) -> onnx.ModelProto:
    """A float8 pair, behind a Relu or not."""
    net = Net()
    x = net.op("Relu", ["x"], "r") if clamp else net.op("Neg", ["x"], "n")
    proto = net
    proto.const("s", f32(0.05))
    zero = onnx.helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0])
    net.op("QuantizeLinear", [x, "s", "z"], "q")
    made = net.done(net.op("DequantizeLinear", ["q", "s", "z"], "y"), [4, C], [4, C], opset=21, ir_version=10)
    made.graph.initializer.append(zero)
    return made


def grouped(groups: int) -> onnx.ModelProto:
    """A Conv of so many groups of four channels."""
    net = Net()
    channels = 32
    scale = np.full(channels, 0.01, F32)
    w = net.weight("w", integers(channels, channels // groups, 3, 3), scale)
    y = net.op("Conv", [net.pair("x"), w], "c", pads=[1, 1, 1, 1], group=groups)
    return net.done(net.pair(y, 0.1), [1, channels, 6, 6], [1, channels, 6, 6])


def transposed(float_8: bool) -> onnx.ModelProto:
    """A ConvTranspose of int8 or of float8 values."""
    net = Net()
    net.const("s", f32(0.05))
    if not float_8:
        net.const("z", S8(0))
    x = net.op("DequantizeLinear", [net.op("QuantizeLinear", ["x", "s", "z"], "q"), "s", "z"], "d")
    w = net.weight("w", integers(C, C, 2, 2), f32(0.01))
    y = net.op("ConvTranspose", [x, w], "y", strides=[2, 2])
    made = net.done(y, IMAGE, [1, 8, 12, 12], opset=21, ir_version=10)
    if float_8:
        made.graph.initializer.append(onnx.helper.make_tensor("z", TensorProto.FLOAT8E4M3FN, [], [0.0]))
    return made


def gru(quantized: bool) -> onnx.ModelProto:
    """A GRU whose W is stored in 8 bits, or in float."""
    net = Net()
    w = (
        net.weight("w", integers(1, 12, C), f32(0.01))
        if quantized
        else net.const("w", np.ones((1, 12, C), F32))
    )
    r = net.const("rec", np.ones((1, 12, 4), F32) / 8)
    return net.done(net.op("GRU", ["x", w, r], "y", hidden_size=4), [3, 1, C], [3, 1, 1, 4])


def followed(quantized: bool) -> onnx.ModelProto:
    """A Sigmoid that reads a quantized tensor and gives a quantized or a float one."""
    net = Net()
    y = net.op("Sigmoid", [net.pair("x")], "s")
    y = net.pair(y, 1 / 255, U8(0)) if quantized else net.op("Neg", [y], "n")
    return net.done(y, [4, C], [4, C])


def newer(opset: int, ir_version: int = 10) -> onnx.ModelProto:
    """A healthy model of some opset and IR version."""
    return matmul(opset=opset, ir_version=ir_version)


@dataclass(frozen=True)
class Case:
    """A fault, the rule that has to find it, and a twin in which no rule finds anything."""

    rule: str
    what: str
    faulty: Callable[[], onnx.ModelProto]
    healthy: Callable[[], onnx.ModelProto]
    target: str = VNNI
    fixable: bool = False
    runs: bool = True  # the faulty model runs as it is written

    def __str__(self) -> str:
        return f"{self.rule}-{self.what}".replace(" ", "_")


SYM = {"x_zero": S8(0), "y_zero": S8(0), "int32": False, "out_q": False}
OUTLIER = np.where(integers(C, C, 3, 3) > 0, 127, -127).astype(S8)
EDGE = np.where(integers(C, C, 3, 3) < -50, -128, integers(C, C, 3, 3)).astype(S8)
SHIFTED = (integers(C, C, 3, 3).astype(int) + 128).astype(U8)

CASES = [
    Case("OCT101", "computed scale", lambda: computed(True), lambda: computed(False)),
    Case("OCT102", "zero scale", lambda: matmul(x_scale=0.0), matmul),
    Case("OCT102", "negative scale", lambda: matmul(x_scale=-0.05), matmul),
    Case("OCT102", "scale not a number", lambda: matmul(x_scale=np.nan), matmul),
    Case("OCT103", "zero point of another type", lambda: matmul(w_zero=np.zeros(C, U8)), matmul, runs=False),
    Case("OCT104", "pair with two scales", lambda: pair_of(0.06), lambda: pair_of(0.05)),
    Case("OCT105", "MatMul scales along rows", lambda: matmul(axis=0), matmul),
    Case("OCT105", "Conv scales along inputs", lambda: conv(w_axis=1), conv),
    Case("OCT106", "too few scales", lambda: matmul(count=C - 1), matmul, runs=False),
    Case("OCT107", "activation per channel", lambda: matmul(x_scale=[0.05] * C, x_axis=1), matmul),
    Case("OCT108", "Gemm weight without zero point", lambda: gemm(zero=None), gemm, fixable=True),
    Case("OCT109", "range of nothing", lambda: qnn(1e-9), lambda: qnn(0.05), "qnn"),
    Case("OCT110", "8-bit blocks", lambda: matmul(blocks=4, opset=21, ir_version=10), matmul),
    Case("OCT111", "quantized twice unlike", lambda: matmul(relu_pair=0.07), matmul),
    Case("OCT201", "Conv bias scale", lambda: conv(bias_factor=1.5), conv, fixable=True),
    Case("OCT201", "Gemm bias scale", lambda: gemm(bias_factor=3.0), gemm, fixable=True),
    Case("OCT202", "bias without headroom", lambda: conv(bias=np.full(C, 6e5)), conv),
    Case("OCT203", "bias zero point", lambda: conv(bias_zero=7), conv, fixable=True, runs=False),
    Case("OCT204", "int32 bias", lambda: conv(**{**SYM, "int32": True}), lambda: conv(**SYM), "tensorrt",
         fixable=True),
    Case("OCT301", "int8 activations", lambda: conv(x_zero=S8(0), y_zero=S8(-128)), conv, fixable=True),
    Case("OCT302", "uint8 weights", lambda: conv(w=SHIFTED, w_zero=np.full(C, 128, U8)), conv, fixable=True),
    Case("OCT303", "dynamic uint8 weights", lambda: dynamic(U8), lambda: dynamic(S8), fixable=True),
    Case("OCT304", "dynamic Conv", lambda: conv_integer(False), conv),
    Case("OCT305", "int8 by uint8", lambda: qlinear(S8, U8), lambda: qlinear(U8, S8), runs=False),
    Case("OCT305", "ConvInteger zero points", lambda: conv_integer(True), conv),
    Case("OCT306", "uint16 at opset 17", lambda: wide(17), lambda: wide(21), fixable=True, runs=False),
    Case("OCT307", "contrib conversions", lambda: conv(attributes={"domain": MS}), conv, fixable=True),
    Case("OCT308", "Concat of two types", lambda: concat(S8), lambda: concat(U8), "ort-cpu-arm64"),
    Case("OCT309", "float16 scales", lambda: half(np.float16), lambda: half(F32)),
    Case("OCT310", "-128 in weights", lambda: conv(w=EDGE, **SYM), lambda: conv(**SYM), "tensorrt"),
    Case("OCT401", "two QuantizeLinear", lambda: two_quantizers(True), lambda: two_quantizers(False),
         fixable=True),
    Case("OCT402", "round trip", lambda: chain("round trip"), lambda: chain("plain"), fixable=True),
    Case("OCT403", "idle Relu", lambda: chain("relu"), lambda: chain("relu plain"), fixable=True),
    Case("OCT404", "float weight", lambda: unfolded(True), lambda: unfolded(False), fixable=True),
    Case("OCT405", "Softmax", lambda: softmax("Softmax", True), lambda: softmax("Softmax", False)),
    Case("OCT405", "LayerNormalization", lambda: softmax("LayerNormalization", True),
         lambda: softmax("LayerNormalization", False)),
    Case("OCT406", "whole table", lambda: table(True), lambda: table(False), fixable=True),
    Case("OCT407", "rounded layer", lambda: float_layer(False), lambda: float_layer(True)),
    Case("OCT408", "Relu before a middle zero point", lambda: conv(y_zero=U8(128)), conv),
    Case("OCT409", "Relu before float8", lambda: float8(True), lambda: float8(False)),
    Case("OCT410", "many groups", lambda: grouped(8), lambda: grouped(2)),
    Case("OCT411", "float weight beside integers", lambda: float_input(True), lambda: float_input(False)),
    Case("OCT501", "asymmetric", lambda: conv(**{**SYM, "x_zero": S8(9)}), lambda: conv(**SYM), "tensorrt"),
    Case("OCT502", "uint8", lambda: conv(**{**SYM, "x_zero": U8(0)}), lambda: conv(**SYM), "tensorrt"),
    Case("OCT503", "float8 ConvTranspose", lambda: transposed(True), lambda: transposed(False), "tensorrt"),
    Case("OCT504", "QLinear operator", lambda: qlinear(U8, S8), lambda: conv(**SYM), "tensorrt"),
    Case("OCT504", "integer operator", lambda: dynamic(S8), lambda: conv(int32=False), "openvino"),
    Case("OCT505", "MatMul per channel", lambda: matmul(out_q=True),
         lambda: matmul(out_q=True, scalar=True), "qnn"),
    Case("OCT506", "quantized GRU", lambda: gru(True), lambda: gru(False), "tensorrt"),
    Case("OCT507", "float result", lambda: followed(False), lambda: followed(True), "qnn"),
    Case("OCT508", "opset", lambda: conv(**SYM, opset=25, ir_version=10),
         lambda: conv(**SYM, opset=24, ir_version=10), "tensorrt"),
    Case("OCT508", "IR version", lambda: newer(21, 99), lambda: newer(21), fixable=True, runs=False),
    Case("OCT509", "saturating Conv", lambda: conv(w=OUTLIER), conv, "ort-cpu-avx2"),
    Case("OCT509", "saturating Gemm", lambda: gemm(top=127), gemm, "portable"),
    Case("OCT601", "unknown operator", lambda: unknown("Frobnicate"), lambda: unknown("Abs"), runs=False),
    Case("OCT602", "Conv without QuantizeLinear behind it", lambda: conv(out_q=False), conv),
    Case("OCT602", "Gemm with a float bias", lambda: gemm(float_bias=True), gemm),
    Case("OCT701", "weight beyond 65504", lambda: half_weight(np.inf), lambda: half_weight(1.0)),
    Case("OCT702", "vanished constant", lambda: half_root(1e-7), lambda: half_root(1e-3)),
    Case("OCT703", "scales of Resize", lambda: half_resize(True), lambda: half_resize(False), runs=False),
    Case("OCT704", "there and back", lambda: half_casts(True), lambda: half_casts(False)),
    Case("OCT705", "weight cut off at 65504", lambda: half_weight(65504.0), lambda: half_weight(60000.0)),
    Case("OCT705", "weight cut off at 10000", lambda: half_weight(-1e4), lambda: half_weight(-1.1e4)),
]  # fmt: skip


def pair_of(second: float) -> onnx.ModelProto:
    """QuantizeLinear by 0.05, DequantizeLinear by another scale."""
    net = Net()
    x = net.dq(net.q("x", f32(0.05), U8(128)), f32(second), U8(128))
    return net.done(
        net.op("MatMul", [x, net.weight("w", integers(C, C), W_SCALE, axis=1)], "m"), [4, C], [4, C]
    )


def qnn(scale: float) -> onnx.ModelProto:
    """A Sigmoid between pairs, the first with this scale."""
    net = Net()
    y = net.op("Sigmoid", [net.pair("x", scale)], "s")
    return net.done(net.pair(y, 1 / 255, U8(0)), [4, C], [4, C])


def wide(opset: int) -> onnx.ModelProto:
    """16-bit activations, which nothing fuses: moved only."""
    net = Net()
    y = net.op("Neg", [net.pair("x", 0.001, U16(32768))], "y")
    return net.done(y, [4, C], [4, C], opset=opset, ir_version=10)


def unknown(op: str) -> onnx.ModelProto:
    """An operator that may not exist."""
    net = Net()
    return net.done(net.op(op, ["x"], "y"), [4, C], [4, C])


HALF, FLOAT = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT


def half_weight(largest: float) -> onnx.ModelProto:
    """A product in float16 whose weight holds this number."""
    net = Net()
    weight = np.ones((C, C), np.float16)
    weight[0, 0] = largest
    x = net.op("Cast", ["x"], "x16", to=HALF)
    y = net.op("MatMul", [x, net.const("w16", weight)], "y16")
    return net.done(net.op("Cast", [y], "y", to=FLOAT), [4, C], [4, C])


def half_root(small: float) -> onnx.ModelProto:
    """The root of a sum with a small number in float16."""
    net = Net()
    x = net.op("Abs", [net.op("Cast", ["x"], "x16", to=HALF)], "abs16")
    total = net.op("Add", [x, net.const("small", np.float16(small))], "sum16")
    return net.done(net.op("Cast", [net.op("Sqrt", [total], "root")], "y", to=FLOAT), [4, C], [4, C])


def half_resize(faulty: bool) -> onnx.ModelProto:
    """A Resize whose scales are float16, which no opset has."""
    net = Net()
    scales = net.const("scales", np.array([1, 1, 2, 2], np.float16 if faulty else np.float32))
    return net.done(net.op("Resize", ["x", "", scales], "y"), [1, 4, 4, 4], [1, 4, 8, 8])


def half_casts(faulty: bool) -> onnx.ModelProto:
    """Two Casts between float operators."""
    net = Net()
    x = net.op("Relu", ["x"], "relu")
    if faulty:
        x = net.op("Cast", [net.op("Cast", [x], "there", to=HALF)], "back", to=FLOAT)
    return net.done(net.op("Neg", [x], "y"), [4, C], [4, C])
