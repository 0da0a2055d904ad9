"""Export small networks trained with PyTorch's fake quantization: the test data of ``quantize_qat``.

    pip install torch onnx onnxscript
    python scripts/export_qat.py tests/quantization/data

A few steps of training on random images give each fake quantization a range of its own. Every network is
written by both of PyTorch's exporters where it has two, as ``NAME.EXPORTER.onnx``, and ``NAME.npz`` holds an
input ``x`` and what PyTorch answered, ``y``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn
from torch.ao import quantization as ao
from torch.ao.nn.quantized import FloatFunctional

SHAPE = (2, 3, 8, 8)
OPSETS = {"torchscript": 17, "dynamo": 18}


class Convolutional(nn.Module):
    """Two convolutions with batch normalization, a residual sum, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = ao.QuantStub(), ao.DeQuantStub()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.sum = FloatFunctional()
        self.pool, self.flat, self.head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The answer to a batch of images."""
        x = self.first(self.quant(x))
        x = self.sum.add(x, self.second(x))
        return self.dequant(self.head(self.flat(self.pool(x))))


def prepared(engine: str) -> nn.Module:
    """The network with the fake quantization that an engine wants; convolution, norm and Relu are one.

    Version 0 is the variant whose fake quantization the exporters know; the later, fused one they refuse.
    """
    torch.manual_seed(0)
    model = Convolutional().train()
    layers = [[f"{name}.{i}" for i in range(3)] for name in ("first", "second")]
    ao.fuse_modules_qat(model, layers, inplace=True)
    model.qconfig = ao.get_default_qat_qconfig(engine, version=0)
    ao.prepare_qat(model, inplace=True)
    return model


class HandWritten(nn.Module):
    """A network that calls the two fake quantization functions itself, with learned weights' scales."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3, groups=3), nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The answer to a batch of images."""
        x = torch.fake_quantize_per_tensor_affine(x, 0.03, 121, 0, 255)
        weight = per_channel(self.conv.weight)
        x = torch.relu(nn.functional.conv2d(x, weight, self.conv.bias, groups=3))
        x = torch.fake_quantize_per_tensor_affine(x.mean(dim=(2, 3)), 0.004, 0, 0, 255)
        x = nn.functional.linear(x, per_channel(self.head.weight), self.head.bias)
        return torch.fake_quantize_per_tensor_affine(x, 0.02, 0, -128, 127)


def per_channel(weight: torch.Tensor) -> torch.Tensor:
    """Weights rounded to 8 bits, symmetric, with a scale for each output channel."""
    scale = weight.detach().abs().flatten(1).amax(1) / 127.0
    zero = torch.zeros(len(weight), dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(weight, scale, zero, 0, -128, 127)


def trained(model: nn.Module, steps: int = 12) -> nn.Module:
    """The model after a few steps, its ranges frozen."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(steps):
        x = torch.randn(SHAPE)
        loss = (model(x) - x.mean(dim=(1, 2, 3))[:, None]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.apply(ao.disable_observer)
    return model.eval()


def export(model: nn.Module, name: str, folder: Path) -> None:
    """Write the model by each exporter that can, and what it answers."""
    torch.manual_seed(2)
    x = torch.randn(SHAPE)
    with torch.no_grad():
        y = model(x)
    np.savez_compressed(folder / f"{name}.npz", x=x.numpy(), y=y.numpy())
    for exporter, opset in OPSETS.items():
        path = folder / f"{name}.{exporter}.onnx"
        try:
            torch.onnx.export(
                model,
                (x,),
                str(path),
                input_names=["x"],
                output_names=["y"],
                opset_version=opset,
                dynamo=exporter == "dynamo",
                external_data=False,
                verbose=False,
            )
        except Exception as error:  # the exporters raise many kinds, and not each can do each network
            sys.stdout.write(f"{name}: {exporter} can't: {str(error).strip().splitlines()[0][:120]}\n")
        else:
            strip(path)
            sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")


def strip(path: Path) -> None:
    """Take out where in the source each node came from, which names folders of this machine."""
    model = onnx.load(path)
    for node in model.graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    onnx.save(model, path)


def main() -> None:
    """Train and export each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    for engine in ("x86", "qnnpack"):
        export(trained(prepared(engine)), f"torch_{engine}", folder)
    export(trained(HandWritten()), "torch_functions", folder)


if __name__ == "__main__":
    main()
