"""How often sums of products saturate on CPUs without VNNI, emulated in numpy on real activations.

Without VNNI, x86 kernels multiply uint8 by int8 with ``vpmaddubsw``: two neighbouring products are added in
16 bits, and what does not fit is cut off. This quantizes the zoo's CNNs for several targets, takes the
integers that each layer reads from an unoptimized run, and adds the pairs as that instruction does::

    python benchmarks/saturation.py [--models mobilenet_v2 …] [--images 2] [--json FILE]

Pairs lie along the summed axis in the order in which the runtime's kernels read it: all channels of a pixel,
then the next pixel of the window. Depthwise convolutions do not add pairs and are left out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _measure import SOURCE, import_octavo
from _zoo import zoo_module

ZOO = SOURCE.parents[1] / "shared" / "zoo"
TARGETS = ("ort-cpu-vnni", "ort-cpu-avx2", "portable")
CALIBRATION = 32
LOW, HIGH = -(2**15), 2**15 - 1


@dataclass(frozen=True)
class Layer:
    """A layer's integers: what it reads, as a row of summed values for each result, and its weights."""

    name: str
    rows: np.ndarray  # (results, summed), uint8
    weights: np.ndarray  # (channels, summed), int8
    step: np.ndarray  # what 1 in a sum is worth, for each channel, in steps of the layer's output


@dataclass
class Figures:
    """What was counted for a model and a target."""

    model: str
    target: str
    layers: int = 0
    saturating_layers: int = 0
    pairs: int = 0
    saturated: int = 0
    worst_steps: float = 0.0  # the largest error of a result, in quantization steps


def saturated(layer: Layer) -> tuple[int, float]:
    """How many pair sums are cut off, and the largest error of a result in steps."""
    odd = layer.rows.shape[1] % 2
    rows = np.pad(layer.rows, ((0, 0), (0, odd))).astype(np.int32)
    weights = np.pad(layer.weights, ((0, 0), (0, odd))).astype(np.int32)
    count, error = 0, np.zeros((len(rows), len(weights)), np.int32)
    for pair in range(0, rows.shape[1], 2):
        w = weights[:, pair : pair + 2]
        reach = 255 * np.maximum(np.maximum(w, 0).sum(axis=1), -np.minimum(w, 0).sum(axis=1))
        able = np.flatnonzero(reach > HIGH)  # no uint8 drives the others out of 16 bits
        if able.size:
            sums = rows[:, pair : pair + 2] @ w[able].T
            lost = np.clip(sums, LOW, HIGH) - sums
            count += int(np.count_nonzero(lost))
            error[:, able] += lost
    return count, float(np.abs(error * layer.step).max(initial=0.0))


def windows(x: np.ndarray, node: Any, zero: int, kernel: tuple[int, int]) -> np.ndarray:
    """The rows that a convolution sums over: window by window, pixel by pixel, channel by channel."""
    from octavo.model.graph import query

    pads = query.attribute(node, "pads", (0, 0, 0, 0))
    stride = query.attribute(node, "strides", (1, 1))
    image = np.pad(
        x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])), constant_values=np.uint8(zero)
    ).transpose(0, 2, 3, 1)
    seen = np.lib.stride_tricks.sliding_window_view(image, kernel, axis=(1, 2))
    seen = seen[:, :: stride[0], :: stride[1]].transpose(0, 1, 2, 4, 5, 3)
    return seen.reshape(-1, seen.shape[3] * seen.shape[4] * seen.shape[5])


def layers(model: Any, feeds: list[dict[str, np.ndarray]]) -> Iterator[Layer]:
    """Every layer that adds pairs, on every image."""
    from octavo.linting.view import LintedModel, stored
    from octavo.model.runtime.session import Session
    from octavo.targets import target

    view = LintedModel(model, target("ort-cpu-avx2"))
    found = [p for p in view.products if p.x is not None and p.w is not None and stored(p.w) is not None]
    names = list(dict.fromkeys(p.x.inputs[0].name for p in found))
    session = Session.open(model, optimize=False, outputs=names, threads=1)
    for feed in feeds:
        values = session.run(feed)
        for product in found:
            weight, x = stored(product.w), values[product.x.inputs[0].name]
            node, params = product.node, view.params(product.x)
            if (
                weight.dtype != np.int8
                or x.dtype != np.uint8
                or (node.op_type == "Conv" and weight.shape[1] == 1)
            ):
                continue
            if node.op_type == "Conv":
                rows = windows(x, node, int(params.zeros), weight.shape[2:])
                matrix = np.moveaxis(weight, 1, -1).reshape(len(weight), -1)
            else:
                transposed = "transB" in node.attributes and node.attributes["transB"].value
                rows, matrix = x.reshape(-1, x.shape[-1]), weight if transposed else weight.T
            scale = np.broadcast_to(view.params(product.w).scale.reshape(-1), (len(matrix),))
            yield Layer(node.name, rows, matrix, scale * float(params.scale) / output_step(view, node))


def output_step(view: Any, node: Any) -> float:
    """The scale of what a layer gives; infinite where its result stays float and has no steps."""
    value = node.outputs[0]
    for _ in range(2):
        for reader in value.consumers():
            if reader.op_type == "QuantizeLinear":
                return float(view.params(reader).scale)
        readers = list(value.consumers())
        if len(readers) != 1 or readers[0].op_type not in ("Relu", "Clip"):
            break
        value = readers[0].outputs[0]
    return float("inf")


def measure(octavo: Any, zoo: Any, name: str, target: str, images: int) -> Figures:
    """Quantize a model for a target, and count on some images that calibration has not seen."""
    source = zoo.model_path(name)
    samples = list(itertools.islice(zoo.calibration(name, limit=CALIBRATION + images), CALIBRATION + images))
    result = octavo.quantize(source, samples[:CALIBRATION], target=target)
    figures, touched, seen = Figures(name, target), set(), set()
    for layer in layers(result.model, samples[CALIBRATION:]):
        count, worst = saturated(layer)
        seen.add(layer.name)
        figures.pairs += len(layer.rows) * len(layer.weights) * ((layer.rows.shape[1] + 1) // 2)
        figures.saturated += count
        figures.worst_steps = max(figures.worst_steps, worst)
        if count:
            touched.add(layer.name)
    figures.layers, figures.saturating_layers = len(seen), len(touched)
    return figures


def main() -> int:
    """Print a table; fail if a target that promises no saturation has some."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--zoo", type=Path, default=ZOO)
    parser.add_argument("--models", nargs="+", default=["mobilenet_v2", "efficientnet_lite0"])
    parser.add_argument("--images", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    octavo, zoo = import_octavo(), zoo_module(str(options.zoo), "evaluate")
    found = []
    print(
        f"{'model':<20} {'target':<14} {'layers':>6} {'saturating':>10}"
        f" {'pair sums cut off':>24} {'worst, steps':>12}"
    )
    for name, target in itertools.product(options.models, TARGETS):
        one = measure(octavo, zoo, name, target, options.images)
        found.append(one)
        share = f"{one.saturated} of {one.pairs / 1e6:.0f} M"
        print(
            f"{name:<20} {target:<14} {one.layers:>6} {one.saturating_layers:>10}"
            f" {share:>24} {one.worst_steps:>12.1f}",
            flush=True,
        )
    if options.json:
        options.json.write_text(json.dumps([asdict(one) for one in found], indent=2) + "\n")
    return 1 if any(one.saturated for one in found if one.target != "ort-cpu-vnni") else 0


if __name__ == "__main__":
    sys.exit(main())
