"""Half precision: what Octavo and two converters make of models in float16.

::

    python benchmarks/half.py [--zoo ../shared/zoo] [--models NAME,…] [--json FILE]

For every model of the zoo, and for small ones built here that converters are known to break (overflow, masks,
Loop, If, Resize, a small constant under a root): does the float16 model load, is it finite, how close is it
to float32, how many bytes, how fast (CPU time, one thread). onnxconverter-common and onnxruntime's converter
stand beside it where they are installed (``pip install onnxconverter-common==1.16.0``).
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Feed = dict[str, Any]
ZOO_MODELS = (
    "fashion_cnn", "mobilenet_v2", "efficientnet_lite0", "yolov8n", "ppocrv4_rec", "ppocrv4_det",
    "silero_vad", "magika", "all_minilm_l6_v2", "minilm_sst2", "smollm2_135m",
)  # fmt: skip
FEEDS = 4
RUNS = 5
MIN_SQNR_DB = 40.0


def built() -> Iterator[tuple[str, onnx.ModelProto, list[Feed]]]:
    """Small models with what converters break, and inputs for them."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype(np.float32)

    def made(nodes: list[Any], arrays: Feed, shape: tuple[int, ...]) -> onnx.ModelProto:
        graph = helper.make_graph(
            nodes, "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.asarray(one), name) for name, one in arrays.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    node = helper.make_node
    weight = normal(64, 64)
    weight[0, 0] = 1e6
    yield (
        "weight overflow",
        made([node("MatMul", ["x", "w"], ["y"])], {"w": weight}, (2, 64)),
        [{"x": normal(2, 64)}],
    )
    layers = [node("Mul", ["x", "big"], ["h"]), node("Mul", ["h", "small"], ["y"])]
    scales = {"big": np.float32(6e4), "small": np.float32(1e-3)}
    yield "activation overflow", made(layers, scales, (2, 8)), [{"x": 3 * normal(2, 8)}]
    mask = np.triu(np.full((8, 8), np.finfo(np.float32).min, np.float32), 1)
    yield (
        "mask",
        made(
            [node("Add", ["x", "m"], ["s"]), node("Softmax", ["s"], ["y"], axis=-1)], {"m": mask}, (2, 8, 8)
        ),
        [{"x": normal(2, 8, 8)}],
    )
    norm = [
        node("Pow", ["x", "two"], ["p"]), node("ReduceMean", ["p"], ["m"], axes=[-1]),
        node("Add", ["m", "eps"], ["a"]), node("Sqrt", ["a"], ["r"]), node("Div", ["x", "r"], ["y"]),
    ]  # fmt: skip
    small = {"two": np.float32(2), "eps": np.float32(1e-12)}
    yield "small constant", made(norm, small, (2, 8)), [{"x": 1e-3 * normal(2, 8)}, {"x": 500 * normal(2, 8)}]
    resize = [node("Resize", ["x", "", "s"], ["y"], mode="linear")]
    yield (
        "Resize",
        made(resize, {"s": np.array([1, 1, 2, 2], np.float32)}, (1, 3, 8, 8)),
        [{"x": normal(1, 3, 8, 8)}],
    )
    value = helper.make_tensor_value_info
    then = helper.make_graph([node("Mul", ["x", "a"], ["t"])], "t", [], [value("t", 1, (2, 4))])
    other = helper.make_graph([node("Add", ["x", "a"], ["o"])], "o", [], [value("o", 1, (2, 4))])
    branch = [
        node("ReduceMax", ["x"], ["m"], keepdims=0), node("Greater", ["m", "z"], ["c"]),
        node("If", ["c"], ["y"], then_branch=then, else_branch=other),
    ]  # fmt: skip
    yield "If", made(branch, {"z": np.float32(0), "a": normal(4)}, (2, 4)), [{"x": normal(2, 4)}]
    body = helper.make_graph(
        [node("Mul", ["v", "f"], ["w"]), node("Identity", ["go"], ["on"])], "b",
        [value("i", 7, ()), value("go", 9, ()), value("v", 1, (2, 4))],
        [value("on", 9, ()), value("w", 1, (2, 4))],
    )  # fmt: skip
    loop = [node("Loop", ["n", "yes", "x"], ["y"], body=body)]
    arrays = {"n": np.int64(3), "yes": np.array(True), "f": normal(4)}
    yield "Loop", made(loop, arrays, (2, 4)), [{"x": normal(2, 4)}]


def by_octavo(source: Path, target: Path, feeds: list[Feed], *, compute: bool) -> None:
    """Convert with Octavo; the feeds are its calibration data."""
    octavo = importlib.import_module("octavo")
    way = "fp16:compute" if compute else "fp16:storage"
    octavo.quantize(source, feeds if compute else None, float_type=way, output=target)


def by_onnxconverter(source: Path, target: Path, feeds: list[Feed]) -> None:
    """Convert with onnxconverter-common, types of inputs and outputs kept."""
    converter = importlib.import_module("onnxconverter_common.float16")
    onnx.save(converter.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def by_onnxruntime(source: Path, target: Path, feeds: list[Feed]) -> None:
    """Convert with the converter that comes with onnxruntime."""
    converter = importlib.import_module("onnxruntime.transformers.float16")
    onnx.save(converter.convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


TOOLS: dict[str, Callable[[Path, Path, list[Feed]], None]] = {
    "octavo, computed": lambda *given: by_octavo(*given, compute=True),
    "octavo, stored": lambda *given: by_octavo(*given, compute=False),
    "onnxconverter-common": by_onnxconverter,
    "onnxruntime": by_onnxruntime,
}


def outputs(path: Path, feeds: list[Feed]) -> tuple[list[list[Any]], float]:
    """The outputs for each feed, and the least CPU seconds of a run."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    session = ort.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    found, seconds = [], float("inf")
    for feed in feeds:
        for _ in range(RUNS):
            start = time.process_time()
            result = session.run(None, feed)
            seconds = min(seconds, time.process_time() - start)
        found.append(result)
    return found, seconds


def decibels(due: list[list[Any]], found: list[list[Any]]) -> float:
    """The signal-to-noise ratio of the worst float output."""
    worst = float("inf")
    for index, one in enumerate(due[0]):
        if np.asarray(one).dtype.kind != "f":
            continue
        signal = np.concatenate([np.ravel(np.asarray(row[index], np.float64)) for row in due])
        other = np.concatenate([np.ravel(np.asarray(row[index], np.float64)) for row in found])
        noise = float(np.sum((signal - other) ** 2))
        if noise:
            worst = min(worst, 10 * float(np.log10(max(float(np.sum(signal**2)), 1e-300) / noise)))
    return worst


def measure(tool: str, source: Path, feeds: list[Feed]) -> dict[str, Any]:
    """What one tool makes of one model; an error is part of the answer."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "half.onnx"
        try:
            TOOLS[tool](source, target, feeds[:FEEDS])
        except ImportError as error:
            return {"tool": tool, "error": f"not installed: {error}"}
        except Exception as error:  # any failure of a tool is a result
            return {"tool": tool, "error": f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"}
        held_back = feeds[FEEDS:] or feeds
        due, float_seconds = outputs(source, held_back)
        try:
            found, seconds = outputs(target, held_back)
        except Exception as error:
            return {"tool": tool, "error": f"does not load or run: {str(error).splitlines()[0][:70]}"}
        finite = all(
            np.all(np.isfinite(np.asarray(one, np.float64)))
            for row in found for one in row if np.asarray(one).dtype.kind == "f"
        )  # fmt: skip
        size = sum(one.stat().st_size for one in Path(folder).iterdir())
        whole = sum(one.stat().st_size for one in source.parent.glob(f"{source.name}*"))
        return {
            "tool": tool, "finite": finite, "sqnr_db": decibels(due, found) if finite else None,
            "size": size / whole, "speed": float_seconds / seconds,
        }  # fmt: skip


def zoo_models(zoo: Path, names: list[str]) -> Iterator[tuple[str, Path, list[Feed]]]:
    """The models of the zoo that are there, with calibration feeds; half of them are held back."""
    sys.path.insert(0, str(zoo))
    inputs = importlib.import_module("inputs")
    for name in names:
        try:
            path = Path(inputs.model_path(name))
        except SystemExit:
            print(f"{name}: not built, skipped")
            continue
        yield name, path, list(itertools.islice(inputs.calibration(name), 2 * FEEDS))


def main() -> int:
    """Print a row for each model and tool; 1 where a model of Octavo's misses its mark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--zoo", type=Path, default=Path("../shared/zoo"))
    parser.add_argument("--models", default=",".join(ZOO_MODELS), help="of the zoo; empty: built ones alone")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        cases: list[tuple[str, Path, list[Feed]]] = []
        for name, proto, feeds in built():
            path = Path(folder) / f"{name}.onnx"
            onnx.save(proto, path)
            cases.append((name, path, feeds))
        names = [one for one in options.models.split(",") if one]
        zoo = zoo_models(options.zoo, names) if options.zoo.is_dir() else iter(())
        for name, path, feeds in itertools.chain(cases, zoo):
            for tool in TOOLS:
                row = {"model": name, **measure(tool, path, feeds)}
                rows.append(row)
                print(_line(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(_missed(row) for row in rows if str(row["tool"]).startswith("octavo")))


def _missed(row: dict[str, Any]) -> bool:
    return "error" in row or not row["finite"] or row["sqnr_db"] < MIN_SQNR_DB


def _line(row: dict[str, Any]) -> str:
    head = f"{row['model']:<20} {row['tool']:<22}"
    if "error" in row:
        return f"{head} {row['error']}"
    level = f"{row['sqnr_db']:6.1f} dB" if row["finite"] else "NaN or infinity"
    return f"{head} {level}  {row['size']:.2f} × bytes  {row['speed']:.2f} × speed"


if __name__ == "__main__":
    sys.exit(main())
