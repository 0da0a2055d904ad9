"""Small graphs in which single tensors are quantized or not, for `placement.py`.

A `Micro` builds one graph in one *form*. In the form ``float`` nothing is quantized; in every other one
the layers have int8 weights, and a rule decides from the form's name what else is. Scales are made up:
they do not matter for speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from _nets import OPSET, Net

MS = "com.microsoft"
SCALE = 0.05
LOWEST = {"uint8": 0, "int8": -128}
MIDDLE = {"uint8": 128, "int8": 0}


class Micro(Net):
    """A graph in one form; `act` and `weight` are the types of activations and weights."""

    def __init__(
        self, form: str, *, act: str = "uint8", weight: str = "int8", per_channel: bool = True
    ) -> None:
        super().__init__(0)
        self.form, self.act, self.weight_type, self.per_channel = form, act, weight, per_channel
        self._scales: dict[str, float] = {}  # of dequantized tensors

    @property
    def quantized(self) -> bool:
        return self.form != "float"

    # ---- activations

    def q(self, x: str, *, low: bool = False, scale: float = SCALE, when: bool = True) -> str:
        """`x` behind QuantizeLinear and DequantizeLinear; ``low``: the zero point of a Relu's result."""
        if not self.quantized or not when:
            return x
        return self.dequantized(self.quantize(x, low=low, scale=scale), low=low, scale=scale)

    def quantize(self, x: str, *, low: bool = False, scale: float = SCALE) -> str:
        return self.add("QuantizeLinear", [x, *self.params(low=low, scale=scale)])

    def dequantized(self, x: str, *, low: bool = False, scale: float = SCALE) -> str:
        name = self.add("DequantizeLinear", [x, *self.params(low=low, scale=scale)])
        self._scales[name] = scale
        return name

    def params(self, *, low: bool = False, scale: float = SCALE) -> list[str]:
        zero = (LOWEST if low else MIDDLE)[self.act]
        return [self.constant(np.float32(scale)), self.constant(np.dtype(self.act).type(zero))]

    def guard(self, x: str) -> str:
        """A Max that changes nothing: behind it the runtime leaves a float operator float."""
        return self.add("Max", [x, self.constant(np.float32(-3e38))]) if self.quantized else x

    # ---- layers

    def values(
        self, shape: tuple[int, ...], axis: int, taken: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Integers of a weight, their zero points, and their scales (one for each channel along `axis`)."""
        integers = self._rng.integers(-127, 128, shape).astype(np.int16)
        count = (shape[axis],) if self.per_channel else ()
        scales = np.full(count, 0.02 / taken**0.5, np.float32)
        zero = 128 if self.weight_type == "uint8" else 0
        kind = np.dtype(self.weight_type)
        return (integers + zero).astype(kind), np.full(count, zero, kind), scales

    def weight(self, shape: tuple[int, ...], axis: int, taken: int, *, integer: bool = True) -> str:
        integers, zeros, scales = self.values(shape, axis, taken)
        if not self.quantized or not integer:
            return self.constant((integers.astype(np.float32) * 0.02 / taken**0.5).astype(np.float32))
        inputs = [self.constant(integers), self.constant(scales), self.constant(zeros)]
        return self.add("DequantizeLinear", inputs, **({"axis": axis} if self.per_channel else {}))

    def bias(self, count: int, taken: int, *, x: str = "", integer: bool = True) -> str:
        """A bias: int32 with the scale of the input `x` times that of the weight, or float."""
        if not self.quantized or not integer:
            return self.constant(self._rng.standard_normal(count).astype(np.float32))
        scale = self._scales.get(x, SCALE) * 0.02 / taken**0.5
        scales = np.full((count,) if self.per_channel else (), scale, np.float32)
        values = self._rng.integers(-1000, 1000, count).astype(np.int32)
        inputs = [self.constant(values), self.constant(scales)]
        return self.add("DequantizeLinear", inputs, **({"axis": 0} if self.per_channel else {}))

    def conv(
        self, x: str, taken: int = 64, given: int = 64, *, kernel: int = 3, stride: int = 1, group: int = 1,
        integer: bool = True, float_bias: bool = False,
    ) -> str:  # fmt: skip
        """A Conv; with ``integer=False`` a float one in every form."""
        products = taken // group * kernel * kernel
        weight = self.weight((given, taken // group, kernel, kernel), 0, products, integer=integer)
        bias = self.bias(given, products, x=x, integer=integer and not float_bias)
        attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
        return self.add("Conv", [x, weight, bias], group=group, **attributes)

    def relu(self, x: str) -> str:
        return self.add("Relu", [x])

    def linear(self, x: str, taken: int = 768, given: int = 768, *, float_bias: bool = False) -> str:
        """MatMul and Add."""
        product = self.add("MatMul", [x, self.weight((taken, given), 1, taken)])
        return self.add("Add", [product, self.bias(given, taken, integer=not float_bias)])

    def norm(self, x: str, width: int = 768) -> str:
        gamma, beta = np.ones(width, np.float32), np.zeros(width, np.float32)
        return self.add("LayerNormalization", [x, self.constant(gamma), self.constant(beta)], axis=-1)

    def written(self, op: str, x: str, taken: int, given: int) -> str:
        """A linear layer as one operator of the runtime: the input is float, or quantized ahead of time."""
        integers, zeros, scales = self.values((taken, given), 1, taken)
        weight, scale, zero = self.constant(integers), self.constant(scales), self.constant(zeros)
        bias = self.bias(given, taken, integer=False)
        if op == "DynamicQuantizeMatMul":
            return self.add(op, [x, weight, scale, zero, bias], domain=MS)
        x_scale, x_zero = self.params()
        taken_in = self.quantize(x)
        return self.add(op, [taken_in, weight, x_scale, scale, x_zero, zero, bias], domain=MS)

    def in_blocks(self, x: str, taken: int, given: int, *, bits: int, block: int, level: int) -> str:
        """MatMulNBits, whose kernel scales weights and activations block by block."""
        blocks = taken // block
        packed = self._rng.integers(0, 256, (given, blocks, block * bits // 8)).astype(np.uint8)
        scales = np.full(given * blocks, 0.02 / taken**0.5, np.float32)
        return self.add(
            "MatMulNBits", [x, self.constant(packed), self.constant(scales)],
            domain=MS, K=taken, N=given, bits=bits, block_size=block, accuracy_level=level,
        )  # fmt: skip

    def finished(
        self, shapes: dict[str, tuple[int, ...]], output: str, integers: tuple[str, ...] = ()
    ) -> Any:
        """The model that returns one tensor."""
        from onnx import TensorProto, helper

        inputs = [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name in integers else TensorProto.FLOAT, list(shape)
            )
            for name, shape in shapes.items()
        ]
        result = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
        graph = helper.make_graph(self.nodes, "micro", inputs, result, self.weights)
        imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=imports, ir_version=8)
