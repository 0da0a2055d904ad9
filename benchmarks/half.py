"""Half precision: what Octavo and two converters make of models in float16.

::

    python benchmarks/half.py [--zoo ../shared/zoo] [--models NAME,…] [--json FILE]

For every model of the zoo, and for small ones built here that converters are known to break (overflow, masks,
Loop, If, Resize, positions, a small constant under a root): does the float16 model load, is it finite, how
close is it to float32, how many bytes, how fast (CPU time, one thread). The converters of onnxruntime and of
onnxconverter-common stand beside it where they are installed (``pip install onnxconverter-common==1.16.0``).

ONNX Runtime's CPU computes most float16 operators in float32 and does not round between them. The second
figure in dB is of a model that rounds after each operator, as hardware with float16 does.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
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
MORE_MODELS = (
    "resemblyzer_old", "resemblyzer_dynamo", "nakdimon", "tashkeel", "plcmos_v2", "aecmos", "dnsmos",
    "layout_cdla", "mtcnn_onet_dynamo", "crepe_tiny_old",
)  # fmt: skip
FEEDS = 4  # for calibration
HELD_BACK = 8  # for the figures
RUNS = 3
LARGEST_ROUNDED = 200 << 20  # bytes; larger models are not run with rounding
FEW_TOKENS = 32  # of each text that larger models read
MIN_SQNR_DB = 40.0
MAX_SIZE = 0.51  # of the float bytes, less half of what stays in float32 and the bytes of the graph


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
    turned = [node("MatMul", ["x", "k"], ["a"]), node("Cos", ["a"], ["y"])]
    positions = np.arange(3900, 3964, dtype=np.float32).reshape(64, 1)
    frequencies = (1e4 ** (-np.arange(32) / 32)).astype(np.float32)[None]
    yield "positions", made(turned, {"k": frequencies}, (64, 1)), [{"x": positions}]
    centred = [
        node("Add", ["x", "k"], ["a"]), node("ReduceMean", ["a"], ["m"], axes=[-1]),
        node("Sub", ["a", "m"], ["y"]),
    ]  # fmt: skip
    yield "difference", made(centred, {"k": np.float32(1000)}, (2, 64)), [{"x": normal(2, 64)}]
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


STORED = "octavo, stored"
TOOLS: dict[str, Callable[[Path, Path, list[Feed]], None]] = {
    "octavo, computed": lambda *given: by_octavo(*given, compute=True),
    STORED: lambda *given: by_octavo(*given, compute=False),
    "onnxconverter-common": by_onnxconverter,
    "onnxruntime": by_onnxruntime,
}


def rounding(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model in float32 with every float16 value rounded where it arises."""
    model = onnx.shape_inference.infer_shapes(model)
    _round(model.graph, set())
    return model


def _round(graph: onnx.GraphProto, outer: set[str]) -> None:
    half, wide = TensorProto.FLOAT16, TensorProto.FLOAT
    infos = [*graph.input, *graph.value_info, *graph.output]
    rounded = outer | {one.name for one in infos if one.type.tensor_type.elem_type == half}
    for one in infos:
        if one.name in rounded - outer:
            one.type.tensor_type.elem_type = wide
    for tensor in graph.initializer:
        if tensor.data_type == half:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype("f4"), tensor.name))
    nodes = list(graph.node)
    del graph.node[:]
    for one in nodes:
        for attribute in one.attribute:
            if attribute.HasField("g"):
                _round(attribute.g, rounded)
            elif attribute.t.data_type == half:
                attribute.t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(attribute.t).astype("f4")))
            elif attribute.name == "to" and attribute.i == half:
                attribute.i = wide
        names = [name for name in one.output if name in rounded]
        one.output[:] = [f"{name}/exact" if name in rounded else name for name in one.output]
        graph.node.append(one)
        for name in names:
            graph.node.append(helper.make_node("Cast", [f"{name}/exact"], [f"{name}/half"], to=half))
            graph.node.append(helper.make_node("Cast", [f"{name}/half"], [name], to=wide))


def outputs(model: Path | bytes, feeds: list[Feed], runs: int = RUNS) -> tuple[list[list[Any]], float]:
    """The outputs for each feed, and the least CPU seconds of a run."""
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    source = model if isinstance(model, bytes) else str(model)
    session = ort.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
    found, seconds = [], float("inf")
    for feed in feeds:
        for _ in range(runs):
            start = time.process_time()
            result = session.run(None, feed)
            seconds = min(seconds, time.process_time() - start)
        found.append(result)
    return found, seconds


def is_finite(found: list[list[Any]]) -> bool:
    """Whether all float outputs are finite."""
    floats = [np.asarray(one) for row in found for one in row if np.asarray(one).dtype.kind == "f"]
    return all(np.all(np.isfinite(one)) for one in floats)


def with_rounding(target: Path, due: list[list[Any]], feeds: list[Feed]) -> float | str | None:
    """The figure in dB of a model that rounds after each operator; a word where there is none."""
    if sum(one.stat().st_size for one in target.parent.iterdir()) > LARGEST_ROUNDED:
        return None
    try:
        found, _ = outputs(rounding(onnx.load(target)).SerializeToString(), feeds, 1)
    except Exception as error:
        return f"fails: {str(error).splitlines()[0][:40]}"
    return decibels(due, found) if is_finite(found) else "NaN or infinity"


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
        size = sum(one.stat().st_size for one in Path(folder).iterdir())
        whole = sum(one.stat().st_size for one in source.parent.glob(f"{source.name}*"))
        constants, wide = weight_bytes(target)
        return {
            "tool": tool, "finite": is_finite(found),
            "sqnr_db": decibels(due, found) if is_finite(found) else None,
            "rounded_db": with_rounding(target, due, held_back) if tool != STORED else None,
            "size": size / whole, "speed": float_seconds / seconds,
            "float32": wide / whole, "graph": (size - constants) / whole,
        }  # fmt: skip


def measured_apart(tool: str, source: Path, feeds: list[Feed]) -> dict[str, Any]:
    """The same in a process of its own, as the runtime crashes on some models."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        try:
            return pool.submit(measure, tool, source, feeds).result()
        except BrokenProcessPool:
            return {"tool": tool, "error": "crashes in ONNX Runtime"}


def weight_bytes(path: Path) -> tuple[int, int]:
    """The bytes of all constants of a model, and of those in float32."""
    total = wide = 0

    def add(tensor: onnx.TensorProto) -> None:
        nonlocal total, wide
        size = numpy_helper.to_array(tensor).nbytes
        total += size
        wide += size * (tensor.data_type == TensorProto.FLOAT)

    def walk(graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            add(tensor)
        for one in graph.node:
            for attribute in one.attribute:
                if attribute.HasField("t"):
                    add(attribute.t)
                if attribute.HasField("g"):
                    walk(attribute.g)

    walk(onnx.load(path).graph)
    return total, wide


def zoo_models(zoo: Path, names: list[str]) -> Iterator[tuple[str, Path, list[Feed]]]:
    """The models of the zoo that are there, with calibration feeds; half of them are held back."""
    sys.path.insert(0, str(zoo))
    for name in names:
        inputs = importlib.import_module("more" if name in MORE_MODELS else "inputs")
        try:
            path = Path(inputs.model_path(name))
        except SystemExit:
            print(f"{name}: not built, skipped")
            continue
        feeds = list(itertools.islice(inputs.calibration(name), FEEDS + HELD_BACK))
        if path.stat().st_size > LARGEST_ROUNDED:
            feeds = [{key: value[:, :FEW_TOKENS] for key, value in feed.items()} for feed in feeds]
        yield name, path, feeds


def main() -> int:
    """Print a row for each model and tool; 1 where a model of Octavo's misses its mark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--zoo", type=Path, default=Path("../shared/zoo"))
    parser.add_argument(
        "--models", default=",".join((*ZOO_MODELS, *MORE_MODELS)), help="of the zoo; empty: built ones alone"
    )
    parser.add_argument("--tools", default=",".join(TOOLS), help="some of them, by the first letters")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # one of onnxconverter-common for each number that it changes
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        cases: list[tuple[str, Path, list[Feed]]] = []
        for name, proto, feeds in built():
            path = Path(folder) / f"{name}.onnx"
            onnx.save(proto, path)
            cases.append((name, path, feeds))
        names = [one for one in options.models.split(",") if one]
        zoo = zoo_models(options.zoo, names) if options.zoo.is_dir() else iter(())
        wanted = tuple(one for one in options.tools.split(",") if one)
        for name, path, feeds in itertools.chain(cases, zoo):
            for tool in (one for one in TOOLS if one.startswith(wanted)):
                row = {"model": name, **measured_apart(tool, path, feeds)}
                rows.append(row)
                print(_line(row), flush=True)
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(any(_missed(row) for row in rows if str(row["tool"]).startswith("octavo")))


def _missed(row: dict[str, Any]) -> bool:
    rounded = row.get("rounded_db")
    wrong = isinstance(rounded, str) or (rounded is not None and rounded < MIN_SQNR_DB)
    if "error" in row or not row["finite"] or row["sqnr_db"] < MIN_SQNR_DB or wrong:
        return True
    return bool(row["size"] - row["float32"] / 2 - row["graph"] > MAX_SIZE)


def _line(row: dict[str, Any]) -> str:
    head = f"{row['model']:<20} {row['tool']:<22}"
    if "error" in row:
        return f"{head} {row['error']}"
    level = f"{row['sqnr_db']:6.1f} dB" if row["finite"] else "NaN or infinity"
    rounded = row["rounded_db"]
    hardware = f"{rounded:6.1f} dB" if isinstance(rounded, float) else rounded or "–"
    size = f"{row['size']:.2f} × bytes ({row['float32']:.2f} float32, {row['graph']:.2f} graph)"
    missed = "  MISSED" if _missed(row) and row["tool"].startswith("octavo") else ""
    return f"{head} {level}  {hardware:>9}  {size}  {row['speed']:.2f} × speed{missed}"


if __name__ == "__main__":
    sys.exit(main())
