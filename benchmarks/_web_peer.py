"""Variants as transformers.js' conversion script makes them, judged as Octavo judges its own.

The script calls onnxruntime's quantizers with the settings below, and runs nothing that it writes. Its
float16 converter is a patched copy of the one that comes with onnxruntime, which stands in for it here; its
last step, onnxslim, is left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import onnx

from octavo.errors import OctavoError
from octavo.folders.discovery import read_folder
from octavo.folders.generation import Pipeline
from octavo.folders.makers import Makers
from octavo.folders.making import Trial
from octavo.folders.samples import folder_data
from octavo.folders.variants import VARIANTS
from octavo.model.runtime.verification import verify

UINT8_OPS = {"Conv", "GroupQueryAttention", "MultiHeadAttention"}  # where q8 has uint8 weights


def _all_ops(graph: onnx.GraphProto) -> set[str]:
    inner = [one.g for node in graph.node for one in node.attribute if one.HasField("g")]
    return {node.op_type for node in graph.node}.union(*map(_all_ops, inner))


def _dynamic(kind: str | None) -> Callable[[Path], onnx.ModelProto]:
    def made(source: Path) -> onnx.ModelProto:
        stock = importlib.import_module("onnxruntime.quantization")
        model = onnx.load(source)
        name = kind or ("QUInt8" if _all_ops(model.graph) & UINT8_OPS else "QInt8")
        target = source.with_name("peer.onnx")
        stock.quantize_dynamic(
            model, target, weight_type=stock.QuantType[name],
            extra_options={"EnableSubgraph": True, "MatMulConstBOnly": True},
        )  # fmt: skip
        return onnx.load(target)

    return made


def _half(model: onnx.ModelProto) -> onnx.ModelProto:
    converter: Any = importlib.import_module("onnxruntime.transformers.float16")
    made: onnx.ModelProto = converter.convert_float_to_float16(model, keep_io_types=True)
    return made


def _four(source: Path) -> onnx.ModelProto:
    stock = importlib.import_module("onnxruntime.quantization.matmul_nbits_quantizer")
    quantizer = stock.MatMulNBitsQuantizer(onnx.load(source), block_size=32, is_symmetric=True)
    quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made


def _bnb4(source: Path) -> onnx.ModelProto:
    stock = importlib.import_module("onnxruntime.quantization.matmul_bnb4_quantizer").MatMulBnb4Quantizer
    quantizer = stock(onnx.load(source), block_size=64, quant_type=stock.NF4)
    quantizer.process()
    made: onnx.ModelProto = quantizer.model.model
    return made


PEER: Mapping[str, Callable[[Path], onnx.ModelProto]] = {
    "fp16": lambda source: _half(onnx.load(source)),
    "q8": _dynamic(None),
    "int8": _dynamic("QInt8"),
    "uint8": _dynamic("QUInt8"),
    "q4": _four,
    "q4f16": lambda source: _half(_four(source)),
    "bnb4": _bnb4,
}


def peer_rows(folder: Path, data: Path, work: Path, names: list[str]) -> Iterator[str]:
    """A line for each variant of each part: bytes, fidelity and speed, or why Octavo would refuse it."""
    found = read_folder(folder)
    given = folder_data(found, data)
    (work / "feeds").mkdir()
    pipeline = Pipeline(found, work / "feeds", 1)
    pipeline.run(given.samples)
    makers = Makers(found, pipeline, given, threads=1, seconds=0.5)
    for part in found.parts:
        maker = makers.of(part)
        for name in names:
            place = work / f"{part.stem}_{name}.onnx"
            try:
                onnx.save(PEER[name](part.path), place)
                verify(place, feeds=maker.reference.feeds[0], threads=1)
                figures = maker.reference.figures(place)
            except (OctavoError, ValueError, RuntimeError, TypeError) as error:
                yield f"{part.stem} {name}: {' '.join(str(error).split())[:160]}"
                continue
            floor = VARIANTS[name].floor
            missed = next((one for one in figures if not one.holds(floor)), None)
            trial = maker.timed(Trial(part, VARIANTS[name], place, place.stat().st_size, figures))
            speed = f"{trial.speed.value:.1f} ×" if trial.speed is not None else "–"
            refused = f", refused: {missed.limit(floor)}" if missed is not None else ""
            yield f"{part.stem} {name}: {trial.bytes / 1e6:.1f} MB, {figures[0]}, {speed}{refused}"
            place.unlink()
