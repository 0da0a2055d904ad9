"""Two models built in code, shaped like ResNet-50 and BERT-base, with random weights.

They say how long things take, and nothing about accuracy. Weights are scaled so that activations stay near
one in every layer. `_shapes.py` builds more of them with the same parts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from _measure import Feed

OPSET = 17
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))  # blocks and their inner width: ResNet-50
IMAGE = 224
LAYERS, WIDTH, HEADS, INNER, WORDS, LENGTH = 12, 768, 12, 3072, 30522, 128  # BERT-base


@dataclass
class Net:
    """A graph in the making."""

    seed: int
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = np.random.default_rng(self.seed)

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node; returns its output."""
        from onnx import helper

        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attributes))
        return name

    def constant(self, array: np.ndarray) -> str:
        """Append an initializer; returns its name."""
        from onnx import numpy_helper

        name = f"constant_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def random(self, *shape: int, scale: float) -> str:
        """Append an initializer of normally distributed values; returns its name."""
        return self.constant(self._rng.standard_normal(shape, np.float32) * np.float32(scale))

    def model(self, inputs: list[Any], output: str) -> Any:
        """The model that returns one tensor."""
        from onnx import TensorProto, helper

        graph = helper.make_graph(
            self.nodes,
            "net",
            inputs,
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


# ---------------------------------------------------------------------------------------- ResNet-50


def resnet50(batch: str | int = "batch") -> Any:
    """Convolutions with folded batch normalization, bottleneck blocks, 1,000 classes."""
    from onnx import TensorProto, helper

    net = Net(0)
    x = net.add("Relu", [conv(net, "image", 3, 64, kernel=7, stride=2)])
    x = net.add("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for stage, (blocks, inner) in enumerate(STAGES):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            x = _bottleneck(net, x, channels, inner, stride, widen=block == 0)
            channels = 4 * inner
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    x = net.add("Gemm", [x, net.random(channels, 1000, scale=channels**-0.5), net.random(1000, scale=0.01)])
    image = helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, IMAGE, IMAGE])
    return net.model([image], x)


def conv(
    net: Net, x: str, taken: int, given: int, *, kernel: int = 1, stride: int = 1, group: int = 1
) -> str:
    """A convolution with a bias; its output is as large as its input divided by the stride."""
    scale = (2.0 * group / (taken * kernel * kernel)) ** 0.5
    weight = net.random(given, taken // group, kernel, kernel, scale=scale)
    bias = net.random(given, scale=0.01)
    attributes = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2, "pads": [kernel // 2] * 4}
    return net.add("Conv", [x, weight, bias], group=group, **attributes)


def _bottleneck(net: Net, x: str, channels: int, inner: int, stride: int, *, widen: bool) -> str:
    y = net.add("Relu", [conv(net, x, channels, inner)])
    y = net.add("Relu", [conv(net, y, inner, inner, kernel=3, stride=stride)])
    y = conv(net, y, inner, 4 * inner)
    short = conv(net, x, channels, 4 * inner, stride=stride) if widen else x
    return net.add("Relu", [net.add("Add", [y, short])])


def images(count: int) -> list[Feed]:
    """Samples for :func:`resnet50`."""
    rng = np.random.default_rng(1)
    return [{"image": rng.standard_normal((1, 3, IMAGE, IMAGE), np.float32)} for _ in range(count)]


# ---------------------------------------------------------------------------------------- BERT-base


def bert_base(layers: int = LAYERS) -> Any:
    """Encoder layers on word and position embeddings, with a mask."""
    from onnx import TensorProto, helper

    net = Net(2)
    words = net.add("Gather", [net.random(WORDS, WIDTH, scale=0.5), "ids"])
    x = norm(net, net.add("Add", [words, net.random(LENGTH, WIDTH, scale=0.1)]))
    wide = net.add("Unsqueeze", [net.add("Cast", ["mask"], to=1), net.constant(np.int64([1, 2]))])
    away = net.add("Sub", [net.constant(np.float32(1)), wide])
    bias = net.add("Mul", [away, net.constant(np.float32(-10000))])
    for _ in range(layers):
        x = _encoder(net, x, bias)
    shape = ["batch", LENGTH]
    inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("ids", "mask")]
    return net.model(inputs, x)


def linear(net: Net, x: str, taken: int, given: int) -> str:
    """A product with a constant, and a bias."""
    product = net.add("MatMul", [x, net.random(taken, given, scale=taken**-0.5)])
    return net.add("Add", [net.random(given, scale=0.02), product])


def norm(net: Net, x: str) -> str:
    """LayerNormalization over the width of BERT-base."""
    gamma, beta = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    return net.add("LayerNormalization", [x, net.constant(gamma), net.constant(beta)], axis=-1)


def _encoder(net: Net, x: str, mask: str) -> str:
    x = norm(net, net.add("Add", [attention(net, x, mask), x]))
    up = linear(net, x, WIDTH, INNER)
    return norm(net, net.add("Add", [linear(net, gelu(net, up), INNER, WIDTH), x]))


def attention(net: Net, x: str, mask: str | None = None) -> str:
    """Self-attention of BERT-base's width, written out; a mask is added to the scores."""
    split = net.constant(np.int64([0, 0, HEADS, WIDTH // HEADS]))
    parts = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        rows = net.add("Reshape", [linear(net, x, WIDTH, WIDTH), split])
        parts.append(net.add("Transpose", [rows], perm=order))
    query, key, value = parts
    scores = net.add("MatMul", [query, key])
    scores = net.add("Div", [scores, net.constant(np.float32((WIDTH // HEADS) ** 0.5))])
    masked = net.add("Add", [scores, mask]) if mask is not None else scores
    weights = net.add("Softmax", [masked], axis=-1)
    context = net.add("Transpose", [net.add("MatMul", [weights, value])], perm=[0, 2, 1, 3])
    joined = net.add("Reshape", [context, net.constant(np.int64([0, 0, WIDTH]))])
    return linear(net, joined, WIDTH, WIDTH)


def gelu(net: Net, x: str) -> str:
    """Gelu written with Erf, as exporters write it."""
    error = net.add("Erf", [net.add("Div", [x, net.constant(np.float32(2**0.5))])])
    gate = net.add("Mul", [x, net.add("Add", [error, net.constant(np.float32(1))])])
    return net.add("Mul", [gate, net.constant(np.float32(0.5))])


def texts(count: int) -> list[Feed]:
    """Samples for :func:`bert_base`; the last words of each are padding."""
    rng = np.random.default_rng(3)
    feeds = []
    for _ in range(count):
        mask = np.ones((1, LENGTH), np.int64)
        mask[:, rng.integers(LENGTH // 2, LENGTH) :] = 0
        feeds.append({"ids": rng.integers(0, WORDS, (1, LENGTH)), "mask": mask})
    return feeds
