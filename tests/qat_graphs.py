"""Models with fake quantization, written as training frameworks and their exporters write it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Collects nodes and arrays; every method returns the name of its result."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, Any] = {}
        self.protos: list[onnx.TensorProto] = []

    def const(self, name: str, array: Any) -> str:
        """An initializer."""
        self.arrays[name] = np.asarray(array)
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.3) -> str:
        """A float weight."""
        return self.const(name, (self.rng.standard_normal(shape) * scale).astype(np.float32))

    def op(self, op: str, inputs: Sequence[str], out: str, **attributes: Any) -> str:
        """A node named after its result."""
        self.nodes.append(node(op, inputs, [out], f"n_{out}", **attributes))
        return out

    def fake(
        self,
        x: str,
        scale: Any,
        zero: Any,
        *,
        kind: Any = np.uint8,
        axis: int | None = None,
        domain: str = "",
        clip: tuple[int, int] | None = None,
        out: str | None = None,
    ) -> str:
        """QuantizeLinear and DequantizeLinear behind a tensor."""
        base = f"{x}_{len(self.nodes)}"
        s = self.const(f"{base}_s", np.asarray(scale, np.float32))
        z = self.const(f"{base}_z", np.asarray(zero).astype(kind))
        more: dict[str, Any] = {"axis": axis} if axis is not None else {}
        if domain:
            more["domain"] = domain
        q = self.op("QuantizeLinear", [x, s, z], f"{base}_q", **more)
        if clip is not None:
            bounds = [self.const(f"{base}_{i}", np.asarray(b).astype(kind)) for i, b in enumerate(clip)]
            q = self.op("Clip", [q, *bounds], f"{base}_c")
        return self.op("DequantizeLinear", [q, s, z], out or f"{base}_dq", **more)

    def weight_scales(self, name: str, axis: int | None, top: int = 127) -> Any:
        """Symmetric scales of a weight."""
        values = np.abs(self.arrays[name])
        over = None if axis is None else tuple(i for i in range(values.ndim) if i != axis)
        return (values.max(axis=over) / top).astype(np.float32)

    def fake_weight(
        self, name: str, axis: int | None = 0, kind: Any = np.int8, top: int = 127, **more: Any
    ) -> str:
        """A weight behind a symmetric pair."""
        scale = self.weight_scales(name, axis, top)
        return self.fake(name, scale, np.zeros_like(scale), kind=kind, axis=axis, **more)

    def model(
        self,
        inputs: dict[str, Sequence[Any]],
        outputs: dict[str, Sequence[Any]],
        opset: int = 17,
        **more: Any,
    ) -> onnx.ModelProto:
        """The model."""
        made = model(
            self.nodes,
            [tensor(k, v) for k, v in inputs.items()],
            [tensor(k, v) for k, v in outputs.items()],
            self.arrays,
            opset=opset,
            ir_version=10,
            **more,
        )
        made.graph.initializer.extend(self.protos)
        return made


def torch_cnn(
    opset: int = 17, *, axis: int | None = 0, kind: Any = np.uint8, domain: str = "", seed: int = 0
) -> onnx.ModelProto:
    """Conv, Relu, residual Add, MaxPool, pool, Flatten, Gemm: as PyTorch's exporter writes them."""
    b = Builder(seed)
    zero = 0 if kind is np.uint8 else -128
    mid = 128 if kind is np.uint8 else 0
    act: dict[str, Any] = {"kind": kind, "domain": domain}
    x = b.fake("x", 0.03, mid, **act)
    b.weight("w1", 8, 3, 3, 3)
    b.const("b1", b.rng.standard_normal(8).astype(np.float32))
    h = b.op("Conv", [x, b.fake_weight("w1", axis, domain=domain), "b1"], "c1", pads=[1, 1, 1, 1])
    h = b.fake(b.op("Relu", [h], "r1"), 0.04, zero, **act)
    b.weight("w2", 8, 8, 3, 3, scale=0.15)
    b.const("b2", b.rng.standard_normal(8).astype(np.float32))
    c = b.op("Conv", [h, b.fake_weight("w2", axis, domain=domain), "b2"], "c2", pads=[1, 1, 1, 1])
    c = b.fake(c, 0.06, mid, **act)
    a = b.fake(b.op("Relu", [b.op("Add", [c, h], "a")], "r2"), 0.05, zero, **act)
    p = b.op("MaxPool", [a], "mp", kernel_shape=[2, 2], strides=[2, 2])
    g = b.fake(b.op("GlobalAveragePool", [p], "gap"), 0.02, zero, **act)
    f = b.op("Flatten", [g], "flat")
    b.weight("w3", 5, 8)
    b.const("b3", b.rng.standard_normal(5).astype(np.float32))
    y = b.op("Gemm", [f, b.fake_weight("w3", axis, domain=domain), "b3"], "g", transB=1)
    b.fake(y, 0.05, mid, out="y", **act)
    domains = {"com.microsoft": 1} if domain else {}
    return b.model({"x": ["n", 3, 8, 8]}, {"y": ["n", 5]}, opset, domains=domains)


def tf_cnn() -> onnx.ModelProto:
    """Channels last, kernels transposed behind their pairs, a depthwise one reshaped: as tf2onnx."""
    b = Builder(1)
    t = b.op("Transpose", ["x"], "nchw", perm=[0, 3, 1, 2])
    x = b.fake(t, 0.03, 0, kind=np.int8)
    b.weight("k1", 3, 3, 3, 8)  # HWIO
    k = b.op("Transpose", [b.fake_weight("k1", 3)], "k1t", perm=[3, 2, 0, 1])
    b.const("b1", b.rng.standard_normal(8).astype(np.float32))
    h = b.op("Conv", [x, k, "b1"], "c1", pads=[1, 1, 1, 1])
    b.const("lo", np.float32(0))
    b.const("hi", np.float32(6))
    h = b.fake(b.op("Clip", [h, "lo", "hi"], "r6"), 6 / 255, -128, kind=np.int8)
    b.weight("k2", 3, 3, 8, 1)
    k = b.op("Transpose", [b.fake_weight("k2", 2)], "k2t", perm=[2, 3, 0, 1])
    b.const("dw", np.asarray([8, 1, 3, 3], np.int64))
    k = b.op("Reshape", [k, "dw"], "k2r")
    h = b.op("Conv", [h, k], "c2", pads=[1, 1, 1, 1], group=8)
    h = b.fake(b.op("Relu", [h], "r2"), 0.03, -128, kind=np.int8)
    m = b.op("GlobalAveragePool", [h], "gap")
    b.const("two", np.asarray([-1, 8], np.int64))
    m = b.fake(b.op("Reshape", [m, "two"], "flat"), 0.03, -128, kind=np.int8)
    b.weight("k3", 8, 4)
    y = b.op("MatMul", [m, b.fake_weight("k3", None)], "mm")
    b.const("b3", b.rng.standard_normal(4).astype(np.float32))
    y = b.op("Add", [y, "b3"], "biased")
    b.fake(y, 0.05, 3, kind=np.int8, out="y")
    return b.model({"x": ["n", 8, 8, 3]}, {"y": ["n", 4]})


def chain_linear(*, floor: bool = False, multiply: bool = False, clip_first: bool = False) -> onnx.ModelProto:
    """A linear layer whose fake quantization is written in Div, Round, Clip and Mul."""
    b = Builder(2)

    def rounded(x: str, scale: Any, zero: int, low: int, high: int) -> str:
        s = b.const(f"{x}_s", np.asarray(scale, np.float32))
        z, lo, hi = (b.const(f"{x}_{n}", np.float32(v)) for n, v in (("z", zero), ("lo", low), ("hi", high)))
        if multiply:
            inverse = b.const(f"{x}_i", (1 / np.asarray(scale, np.float64)).astype(np.float32))
            h = b.op("Mul", [x, inverse], f"{x}_d")
        else:
            h = b.op("Div", [x, s], f"{x}_d")
        if clip_first:
            h = b.op("Clip", [b.op("Add", [h, z], f"{x}_a"), lo, hi], f"{x}_c")
        if floor:
            half = b.const(f"{x}_half", np.float32(0.5))
            h = b.op("Floor", [b.op("Add", [h, half], f"{x}_p")], f"{x}_r")
        else:
            h = b.op("Round", [h], f"{x}_r")
        if not clip_first:
            h = b.op("Clip", [b.op("Add", [h, z], f"{x}_a"), lo, hi], f"{x}_c")
        return b.op("Mul", [b.op("Sub", [h, z], f"{x}_m"), s], f"{x}_fq")

    b.weight("w", 16, 6)
    w = rounded("w", b.weight_scales("w", 1).reshape(1, 6), 0, -127, 127)
    y = b.op("MatMul", [rounded("x", 0.037, 120, 0, 255), w], "y0")
    b.op("Identity", [rounded(y, 0.11, 128, 0, 255)], "y")
    return b.model({"x": ["n", 16]}, {"y": ["n", 6]})


def operator_conv(variant: str) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A Conv behind operators of other domains, and the same in pairs, which the runtime can run."""
    models = []
    for foreign in (True, False):
        b = Builder(3)
        b.weight("w", 4, 3, 1, 1)
        ws = b.weight_scales("w", 0)

        def rounded(x: str, scale: float, zero: int, b: Builder = b, foreign: bool = foreign) -> str:
            if not foreign:
                return b.fake(x, np.float32(scale), zero)
            low, high = np.float32(-zero * scale), np.float32((255 - zero) * scale)
            s, z = b.const(f"{x}_s", np.float32(scale)), b.const(f"{x}_z", np.int32(zero))
            match variant:
                case "aten":
                    ends = [b.const(f"{x}_{i}", np.int64(v)) for i, v in enumerate((0, 255))]
                    return b.op(
                        "ATen", [x, s, z, *ends], f"{x}_fq", domain="org.pytorch.aten",
                        operator="fake_quantize_per_tensor_affine",
                    )  # fmt: skip
                case "ms":
                    return b.op(
                        "FakeQuant", [x, s, z], f"{x}_fq", domain="com.microsoft", quant_min=0, quant_max=255
                    )
                case "minmax":
                    ends = [b.const(f"{x}_{n}", v) for n, v in (("min", low), ("max", high))]
                    return b.op(
                        "FakeQuantWithMinMaxVars",
                        [x, *ends],
                        f"{x}_fq",
                        domain="tf",
                        num_bits=8,
                        narrow_range=0,
                    )
                case "attributes":
                    return b.op(
                        "FakeQuantize", [x], f"{x}_fq", domain="custom", scale=float(scale), zero_point=zero,
                        quant_min=0, quant_max=255,
                    )  # fmt: skip
                case _:
                    ends = [
                        b.const(f"{x}_{i}", np.full((1, 1, 1, 1), v)) for i, v in enumerate((low, high) * 2)
                    ]
                    return b.op("FakeQuantize", [x, *ends], f"{x}_fq", domain="ov", levels=256)

        w = b.fake_weight("w", 0) if not foreign else b.op(
            "fake_quantize_per_channel_affine",
            ["w", b.const("ws", ws), b.const("wz", np.zeros(4, np.int32)), b.const("ax", np.int64(0)),
             b.const("lo", np.int64(-128)), b.const("hi", np.int64(127))],
            "w_fq", domain="aten",
        )  # fmt: skip
        h = b.op("Conv", [rounded("x", 0.03125, 128), w], "c")
        h = b.op("Relu", [h], "r")
        b.op("Identity", [rounded(h, 0.015625, 0)], "y")
        domains = dict.fromkeys(("org.pytorch.aten", "com.microsoft", "tf", "custom", "ov", "aten"), 1)
        models.append(
            b.model({"x": ["n", 3, 4, 4]}, {"y": ["n", 4, 4, 4]}, domains=domains if foreign else {})
        )
    return models[0], models[1]


def stored(name: str, values: np.ndarray, kind: int) -> onnx.TensorProto:
    """Integers of any type as an initializer."""
    if kind in (TensorProto.INT4, TensorProto.UINT4):
        return helper.make_tensor(name, kind, values.shape, values.astype(np.int32).reshape(-1).tolist())
    return numpy_helper.from_array(values, name)
