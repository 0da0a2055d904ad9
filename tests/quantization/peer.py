"""The drop-in and its peer on the same model: run both, list what differs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from quantizing import run

import octavo.quantization as ours
from octavo.model.runtime.samples import sample_inputs
from octavo.model.runtime.session import Session

Feeds = dict[str, np.ndarray]
QDQ, QOP, DYNAMIC = "qdq", "qoperator", "dynamic"
NUMBERS = ("_scale", "_zero_point", "_quantized", "_scale_convert", "_zero_point_convert")


class Reader(ours.CalibrationDataReader):
    """Samples from a list."""

    def __init__(self, samples: list[Feeds]) -> None:
        self._samples = samples
        self._left: Iterator[Feeds] = iter(samples)

    def get_next(self) -> Feeds | None:
        return next(self._left, None)

    def __len__(self) -> int:
        return len(self._samples)

    def set_range(self, start_index: int, end_index: int) -> None:
        self._left = iter(self._samples[start_index:end_index])


def samples(model: onnx.ModelProto, count: int = 3) -> list[Feeds]:
    """Inputs that fit a model."""
    session = Session.open(model.SerializeToString())
    found = []
    for seed in range(count):
        made = sample_inputs(session.inputs, seed=seed)
        found.append({n: (a * np.float32(2)) if a.dtype == np.float32 else a for n, a in made.items()})
    return found


def quantized(
    package: Any,
    model: onnx.ModelProto,
    style: str,
    folder: Path,
    options: Mapping[str, Any] | None = None,
    **more: Any,
) -> onnx.ModelProto:
    """The model as a package quantizes it; types may be given by name."""
    source, target = folder / "float.onnx", folder / "quantized.onnx"
    onnx.save(model, source)
    settings = {key: _named(package, value) for key, value in more.items()}
    chosen = _named(package, dict(options or {}))
    if style == DYNAMIC:
        package.quantize_dynamic(source, target, extra_options=chosen, **settings)
    else:
        settings.setdefault("activation_type", package.QuantType.QUInt8)
        formats = {QDQ: package.QuantFormat.QDQ, QOP: package.QuantFormat.QOperator}
        package.quantize_static(
            source,
            target,
            Reader(samples(model)),
            quant_format=formats[style],
            extra_options=chosen,
            **settings,
        )
    return onnx.load(target)


def _named(package: Any, value: Any) -> Any:
    """Names of types and methods as the package's own members."""
    if isinstance(value, str):
        return getattr(package.QuantType, value, None) or getattr(package.CalibrationMethod, value, value)
    if isinstance(value, dict):
        return {key: _named(package, item) for key, item in value.items()}
    if isinstance(value, list):
        return [_named(package, item) for item in value]
    return value


def differences(peer: onnx.ModelProto, own: onnx.ModelProto, *, tolerance: float = 1e-5) -> list[str]:
    """What differs: op counts, names and types and values of scales, zero points and integers, outputs.

    Constants, and Reshape nodes that read nothing else, do not count: the runtime is rid of them at load.
    """
    found = []
    counts = [Counter(_operators(model)) for model in (peer, own)]
    if counts[0] != counts[1]:
        found.append(f"operators: peer {dict(counts[0] - counts[1])}, own {dict(counts[1] - counts[0])}")
    left, right = ({t.name: t for t in m.graph.initializer if t.name.endswith(NUMBERS)} for m in (peer, own))
    if left.keys() != right.keys():
        found.append(
            f"names: peer {sorted(left.keys() - right.keys())}, own {sorted(right.keys() - left.keys())}"
        )
    for name in sorted(left.keys() & right.keys()):
        if left[name].data_type != right[name].data_type:
            found.append(f"type of {name}")
        elif not _alike(name, left[name], right[name], tolerance):
            found.append(f"value of {name}")
    if [v.name for v in peer.graph.output] != [v.name for v in own.graph.output]:
        found.append("outputs")
    return found


def _operators(model: onnx.ModelProto) -> Iterator[str]:
    stored = {tensor.name for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Constant" and not (node.op_type == "Reshape" and stored.issuperset(node.input)):
            yield f"{node.domain}.{node.op_type}"


def _alike(name: str, left: onnx.TensorProto, right: onnx.TensorProto, tolerance: float) -> bool:
    a, b = (numpy_helper.to_array(t).astype(np.float64).ravel() for t in (left, right))
    if a.shape != b.shape:
        return False
    if "scale" in name:
        return bool(np.allclose(a, b, rtol=tolerance, atol=1e-12))
    if "zero_point" in name:
        return bool(np.array_equal(a, b))
    return bool(np.all(np.abs(a - b) <= 1 + max(1e-4, tolerance) * np.abs(a)))


def error(model: onnx.ModelProto, own: onnx.ModelProto) -> float:
    """The largest difference to float over a few samples, in the runtime's default session."""
    worst = 0.0
    for feeds in samples(model):
        want, got = run(model, feeds), run(own, feeds)
        for name, array in want.items():
            worst = max(
                worst, float(np.abs(array.astype(np.float64) - got[name].astype(np.float64)).max(initial=0))
            )
    return worst


def quiet() -> None:
    """Keep the peer's log lines out of the tests' output."""
    logging.getLogger().setLevel(logging.ERROR)
