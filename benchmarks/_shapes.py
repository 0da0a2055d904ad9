"""Models built in code, shaped like well-known networks, with random weights: for speed, not for accuracy.

They keep what decides about speed: operators, widths, sizes of tensors, what is read twice. Shortened
where more of the same would say no more: BERT has 6 of 12 layers, ViT-B/16 has 4 of 12, the
YOLOv8n-shaped detector sees images of 320 × 320. Batch normalization is folded, as exporters do. Values
stay near one everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from _measure import Feed
from _nets import (
    IMAGE,
    INNER,
    WIDTH,
    Net,
    attention,
    bert_base,
    conv,
    gelu,
    images,
    linear,
    norm,
    resnet50,
    texts,
)

BERT_LAYERS, VIT_LAYERS, DETECTOR_IMAGE = 6, 4, 320
PATCH = 16


@dataclass(frozen=True)
class Shape:
    """How to build a model, and samples for it."""

    build: Callable[[], Any]
    feeds: Callable[[int], list[Feed]]


def _image_model(net: Net, output: str, size: int = IMAGE) -> Any:
    from onnx import TensorProto, helper

    shape = [1, 3, size, size]
    return net.model([helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)], output)


def _classifier(net: Net, x: str, channels: int) -> str:
    x = net.add("Flatten", [net.add("GlobalAveragePool", [x])])
    return net.add(
        "Gemm", [x, net.random(channels, 1000, scale=channels**-0.5), net.random(1000, scale=0.01)]
    )


# ------------------------------------------------------------------------------------------ MobileNet


def mobilenet_v2() -> Any:
    """Inverted residuals with Clip(0, 6); the narrow ends are linear."""
    net = Net(10)
    bounds = [net.constant(np.float32(0)), net.constant(np.float32(6))]

    def relu6(x: str) -> str:
        return net.add("Clip", [x, *bounds])

    x, channels = relu6(conv(net, "image", 3, 32, kernel=3, stride=2)), 32
    for widen, given, blocks, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):  # fmt: skip
        for block in range(blocks):
            inner = channels * widen
            y = relu6(conv(net, x, channels, inner)) if widen > 1 else x
            y = relu6(conv(net, y, inner, inner, kernel=3, stride=1 if block else stride, group=inner))
            y = conv(net, y, inner, given)
            x = net.add("Add", [x, y]) if block else y
            channels = given
    x = relu6(conv(net, x, channels, 1280))
    return _image_model(net, _classifier(net, x, 1280))


def mobilenet_v3() -> Any:
    """MobileNet v3 large: squeeze-and-excite with HardSigmoid, HardSwish in its deeper half."""
    net = Net(11)

    def hard_swish(x: str) -> str:
        return net.add("Mul", [x, net.add("HardSigmoid", [x], alpha=1 / 6, beta=0.5)])

    def act(x: str, kind: str) -> str:
        return hard_swish(x) if kind == "h" else net.add("Relu", [x])

    def squeeze(x: str, channels: int) -> str:
        inner = max(8, channels // 4 // 8 * 8)
        y = net.add("Relu", [conv(net, net.add("GlobalAveragePool", [x]), channels, inner)])
        y = net.add("HardSigmoid", [conv(net, y, inner, channels)], alpha=1 / 6, beta=0.5)
        return net.add("Mul", [x, y])

    x, channels = hard_swish(conv(net, "image", 3, 16, kernel=3, stride=2)), 16
    for kernel, inner, given, excite, kind, stride in V3_LARGE:
        y = act(conv(net, x, channels, inner), kind) if inner != channels else x
        y = act(conv(net, y, inner, inner, kernel=kernel, stride=stride, group=inner), kind)
        y = conv(net, squeeze(y, inner) if excite else y, inner, given)
        x = net.add("Add", [x, y]) if stride == 1 and given == channels else y
        channels = given
    x = hard_swish(conv(net, x, channels, 960))
    x = net.add("GlobalAveragePool", [x])
    x = hard_swish(conv(net, x, 960, 1280))
    x = net.add("Flatten", [x])
    x = net.add("Gemm", [x, net.random(1280, 1000, scale=1280**-0.5), net.random(1000, scale=0.01)])
    return _image_model(net, x)


V3_LARGE = (  # kernel, inner, given, squeeze, activation, stride
    (3, 16, 16, False, "r", 1), (3, 64, 24, False, "r", 2), (3, 72, 24, False, "r", 1),
    (5, 72, 40, True, "r", 2), (5, 120, 40, True, "r", 1), (5, 120, 40, True, "r", 1),
    (3, 240, 80, False, "h", 2), (3, 200, 80, False, "h", 1), (3, 184, 80, False, "h", 1),
    (3, 184, 80, False, "h", 1), (3, 480, 112, True, "h", 1), (3, 672, 112, True, "h", 1),
    (5, 672, 160, True, "h", 2), (5, 960, 160, True, "h", 1), (5, 960, 160, True, "h", 1),
)  # fmt: skip


# ----------------------------------------------------------------------------------------------- ViT


def vit() -> Any:
    """ViT-B/16: patches by a convolution, a class token, normalization in front of each part."""
    net = Net(12)
    patches = (IMAGE // PATCH) ** 2
    weight = net.random(WIDTH, 3, PATCH, PATCH, scale=(3 * PATCH * PATCH) ** -0.5)
    x = net.add(
        "Conv",
        ["image", weight, net.random(WIDTH, scale=0.01)],
        kernel_shape=[PATCH] * 2,
        strides=[PATCH] * 2,
    )
    x = net.add(
        "Transpose", [net.add("Reshape", [x, net.constant(np.int64([0, WIDTH, -1]))])], perm=[0, 2, 1]
    )
    x = net.add("Concat", [net.random(1, 1, WIDTH, scale=1.0), x], axis=1)
    x = net.add("Add", [x, net.random(1, patches + 1, WIDTH, scale=0.1)])
    for _ in range(VIT_LAYERS):
        x = net.add("Add", [x, attention(net, norm(net, x))])
        y = gelu(net, linear(net, norm(net, x), WIDTH, INNER))
        x = net.add("Add", [x, linear(net, y, INNER, WIDTH)])
    x = net.add("Gather", [norm(net, x), net.constant(np.int64(0))], axis=1)
    x = net.add("Gemm", [x, net.random(WIDTH, 1000, scale=WIDTH**-0.5), net.random(1000, scale=0.01)])
    return _image_model(net, x)


# -------------------------------------------------------------------------------------------- YOLOv8


class _Detector:
    """YOLOv8n: SiLU everywhere, parts that split and concatenate, a pyramid, three heads."""

    def __init__(self) -> None:
        self.net = Net(13)

    def layer(self, x: str, taken: int, given: int, kernel: int = 1, stride: int = 1) -> str:
        y = conv(self.net, x, taken, given, kernel=kernel, stride=stride)
        return self.net.add("Mul", [y, self.net.add("Sigmoid", [y])])

    def parts(self, x: str, taken: int, given: int, blocks: int, *, short: bool) -> str:
        """C2f: half of the channels pass through blocks, and every step of it is kept."""
        half = given // 2
        x = self.layer(x, taken, given)
        kept = self.split(x, half)
        for _ in range(blocks):
            y = self.layer(self.layer(kept[-1], half, half, 3), half, half, 3)
            kept.append(self.net.add("Add", [kept[-1], y]) if short else y)
        return self.layer(self.net.add("Concat", kept, axis=1), (2 + blocks) * half, given)

    def split(self, x: str, half: int) -> list[str]:
        from onnx import helper

        names = [f"{x}_first", f"{x}_second"]
        sizes = self.net.constant(np.int64([half, half]))
        self.net.nodes.append(helper.make_node("Split", [x, sizes], names, f"split_{x}", axis=1))
        return names

    def pooled(self, x: str, channels: int) -> str:
        """SPPF: three MaxPools in a row, all of them kept."""
        kept = [self.layer(x, channels, channels // 2)]
        for _ in range(3):
            kept.append(
                self.net.add("MaxPool", [kept[-1]], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2])
            )
        return self.layer(self.net.add("Concat", kept, axis=1), 2 * channels, channels)

    def twice(self, x: str) -> str:
        scales = self.net.constant(np.float32([1, 1, 2, 2]))
        return self.net.add(
            "Resize",
            [x, "", scales],
            mode="nearest",
            coordinate_transformation_mode="asymmetric",
            nearest_mode="floor",
        )

    def join(self, *parts: str) -> str:
        return self.net.add("Concat", list(parts), axis=1)

    def head(self, x: str, channels: int) -> str:
        boxes = self.layer(self.layer(x, channels, 64, 3), 64, 64, 3)
        classes = self.layer(self.layer(x, channels, 80, 3), 80, 80, 3)
        both = self.join(conv(self.net, boxes, 64, 64), conv(self.net, classes, 80, 80))
        return self.net.add("Reshape", [both, self.net.constant(np.int64([0, 144, -1]))])

    def decoded(self, rows: str) -> str:
        """Distances as expectations over 16 bins, beside the classes' scores."""
        net = self.net
        whole = np.int64(np.iinfo(np.int64).max)
        cut = [net.constant(np.int64([value])) for value in (0, 64, whole, 1)]
        boxes = net.add("Slice", [rows, cut[0], cut[1], cut[3]])
        scores = net.add("Sigmoid", [net.add("Slice", [rows, cut[1], cut[2], cut[3]])])
        bins = net.add("Reshape", [boxes, net.constant(np.int64([0, 4, 16, -1]))])
        bins = net.add("Softmax", [net.add("Transpose", [bins], perm=[0, 2, 1, 3])], axis=1)
        values = net.constant(np.arange(16, dtype=np.float32).reshape(1, 16, 1, 1))
        distances = net.add("Conv", [bins, values])
        return self.join(net.add("Reshape", [distances, net.constant(np.int64([0, 4, -1]))]), scores)


def yolov8() -> Any:
    """Backbone, pyramid and heads of YOLOv8n."""
    d = _Detector()
    x = d.layer(d.layer("image", 3, 16, 3, 2), 16, 32, 3, 2)
    x = d.layer(d.parts(x, 32, 32, 1, short=True), 32, 64, 3, 2)
    large = d.parts(x, 64, 64, 2, short=True)
    middle = d.parts(d.layer(large, 64, 128, 3, 2), 128, 128, 2, short=True)
    x = d.parts(d.layer(middle, 128, 256, 3, 2), 256, 256, 1, short=True)
    small = d.pooled(x, 256)
    up = d.parts(d.join(d.twice(small), middle), 384, 128, 1, short=False)
    first = d.parts(d.join(d.twice(up), large), 192, 64, 1, short=False)
    second = d.parts(d.join(d.layer(first, 64, 64, 3, 2), up), 192, 128, 1, short=False)
    third = d.parts(d.join(d.layer(second, 128, 128, 3, 2), small), 384, 256, 1, short=False)
    rows = [d.head(first, 64), d.head(second, 128), d.head(third, 256)]
    return _image_model(d.net, d.decoded(d.net.add("Concat", rows, axis=2)), DETECTOR_IMAGE)


def _images(size: int) -> Callable[[int], list[Feed]]:
    def make(count: int) -> list[Feed]:
        rng = np.random.default_rng(4)
        return [{"image": rng.standard_normal((1, 3, size, size), np.float32)} for _ in range(count)]

    return make


SHAPES: dict[str, Shape] = {
    "resnet50": Shape(lambda: resnet50(batch=1), images),
    "mobilenet_v2": Shape(mobilenet_v2, _images(IMAGE)),
    "mobilenet_v3": Shape(mobilenet_v3, _images(IMAGE)),
    "bert": Shape(lambda: bert_base(BERT_LAYERS), texts),
    "vit": Shape(vit, _images(IMAGE)),
    "yolov8": Shape(yolov8, _images(DETECTOR_IMAGE)),
}
