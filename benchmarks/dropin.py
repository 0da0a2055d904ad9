"""CPU time of the drop-in against ``onnxruntime.quantization``: the same call, the same options, zoo models.

    python benchmarks/dropin.py
    python benchmarks/dropin.py --models mobilenet_v2,yolov8n --formats qdq --json figures.json

Static QDQ and QOperator (uint8 activations, int8 weights, MinMax, two samples) and dynamic quantization, from
path to path. Every figure is CPU time of a process of its own, all threads, after the imports and a first
call on a model of one node: what is done once in a process (one tool registers the operators of ONNX when it
is imported, the other at the first call) counts for neither. Processes of the two tools take turns, three for
each. A call that takes less than 0.2 s is repeated in its process, in five processes for each tool, one that
takes less than 0.02 s in twenty, so that noise does not decide; the garbage of one call is not billed to the
next. A figure is the median of all calls.

A model of more than 300 nodes (of its main graph) is to be quantized 5 times as fast as by stock, any other
at least as fast; each row says whether it is. A row in which stock raises has no ratio. Each result is opened
and run once, outside the clock. The zoo is looked for as :mod:`_zoo` does.
"""

from __future__ import annotations

import argparse
import gc
import logging
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _measure import (
    Figures,
    Outcome,
    Verdict,
    cpu_seconds,
    import_octavo,
    import_whole,
    leave_on_termination,
    machine,
    markdown,
    median,
    number,
    open_session,
    print_verdicts,
    run_task,
    stock_reader,
    write_json,
)
from _zoo import calibration_feeds, zoo_module

MODELS = (
    "fashion_cnn", "magika", "mobilenet_v2", "efficientnet_lite0", "yolov8n", "ppocrv4_rec", "ppocrv4_det",
    "silero_vad", "silero_vad_ifless", "all_minilm_l6_v2",
)  # fmt: skip
FORMATS = ("qdq", "qoperator", "dynamic")
RUNS = 3  # processes for each tool
FAST_CALLS = 5  # of a fast call in a process
FAST, FAST_RUNS = 0.2, 5  # a faster call (seconds) is made in so many processes
FASTER, FASTER_RUNS = 0.02, 20
MANY, MIN_RATIO = 300, 5.0  # models of more nodes are at least so much faster


def package(tool: str) -> Any:
    """The package that a tool is, whole."""
    if tool == "stock":
        import_whole("onnxruntime.quantization")
        import onnxruntime.quantization as found
    else:
        import_octavo()
        import_whole("octavo.quantization")
        import octavo.quantization as found
    return found


def warm_up(tool: Any, folder: Path) -> None:
    """A first call, so that what a process does only once is done."""
    import numpy as np
    from onnx import helper, numpy_helper, save

    x, y = (helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy")
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], "m")], "g", [x], [y], [weight])
    path = folder / "small.onnx"
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    tool.quantize_dynamic(path, folder / "small.q.onnx")
    tool.quantize_static(path, folder / "small.q.onnx", stock_reader([{"x": np.ones((1, 4), np.float32)}]))


def own_copy(model: Path, folder: Path) -> Path:
    """A copy of a model and its weights: stock writes a file beside the model, and the zoo stays as it is."""
    folder.mkdir()
    for path in model.parent.iterdir():
        if path.is_file():
            shutil.copyfile(path, folder / path.name)  # without its mode, which may be read-only
    return folder / model.name


def task_quantize(payload: Figures) -> Figures:
    """Quantize one model with one tool, in a process of its own; a fast call is repeated."""
    import onnx

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    stored = Path(zoo_module(payload["zoo"], "evaluate").model_path(payload["model"]))
    feeds = list(calibration_feeds(payload))
    tool = package(payload["tool"])
    taken: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        source = own_copy(stored, Path(folder) / "model")
        output = Path(folder) / "quantized.onnx"
        warm_up(tool, Path(folder))
        while not taken or (taken[0] < FAST and len(taken) < FAST_CALLS):
            reader = stock_reader(feeds)
            gc.collect()
            started = cpu_seconds()
            call(tool, source, output, payload["format"], reader)
            taken.append(cpu_seconds() - started)
        open_session(output).run(None, feeds[0])
        nodes = len(onnx.load(str(output), load_external_data=False).graph.node)
    return {"cpu_s": taken, "nodes_out": nodes}


def call(tool: Any, source: Path, output: Path, style: str, reader: Any) -> None:
    """Quantize, with the same options whatever the tool."""
    if style == "dynamic":
        tool.quantize_dynamic(source, output)
        return
    formats = {"qdq": tool.QuantFormat.QDQ, "qoperator": tool.QuantFormat.QOperator}
    tool.quantize_static(
        source, output, reader, quant_format=formats[style], activation_type=tool.QuantType.QUInt8
    )


def float_nodes(zoo: str, model: str) -> int:
    import onnx

    path = zoo_module(zoo, "evaluate").model_path(model)
    return len(onnx.load(str(path), load_external_data=False).graph.node)


def measure(zoo: str, model: str, style: str) -> Figures:
    """Both tools on one model in one format."""
    row: Figures = {"model": model, "format": style, "nodes": float_nodes(zoo, model)}
    runs_of: dict[str, list[Outcome]] = {"octavo": [], "stock": []}
    for number_of_run in range(FASTER_RUNS):  # in turns, so that both see the same machine
        if number_of_run >= RUNS and number_of_run >= runs_due(runs_of.values()):
            break
        for tool, runs in runs_of.items():
            payload = {"zoo": zoo, "model": model, "format": style, "tool": tool, "feeds": 2}
            if not runs or runs[-1].error is None:
                runs.append(run_task(task_quantize, payload))
    for tool, runs in runs_of.items():
        failed = next((run.error for run in runs if run.error is not None), None)
        if failed is not None:
            row[f"{tool}_error"] = failed
            continue
        calls = [taken for run in runs for taken in run.figures["cpu_s"]]
        row[f"{tool}_cpu_s"], row[f"{tool}_calls"] = median(calls), len(calls)
        row[f"{tool}_nodes_out"] = runs[0].figures["nodes_out"]
    if "octavo_cpu_s" in row and "stock_cpu_s" in row:
        row["ratio"] = row["stock_cpu_s"] / row["octavo_cpu_s"]
        row["due"] = MIN_RATIO if row["nodes"] > MANY else 1.0
    return row


def runs_due(tools: Iterable[list[Outcome]]) -> int:
    """How many processes each tool gets, by the fastest call so far."""
    calls = [taken for runs in tools for run in runs if run.error is None for taken in run.figures["cpu_s"]]
    fastest = min(calls, default=FAST)
    return FASTER_RUNS if fastest < FASTER else FAST_RUNS if fastest < FAST else RUNS


def verdicts(rows: list[Figures]) -> list[Verdict]:
    """Whether the promises hold: the two on speed over all rows that both tools can do."""
    known = [row for row in rows if "ratio" in row]
    large = [row for row in known if row["nodes"] > MANY]
    slow = [f"{r['model']} {r['format']} {r['ratio']:.1f}" for r in large if r["ratio"] < MIN_RATIO]
    slower = [f"{r['model']} {r['format']} {r['ratio']:.2f}" for r in known if r["ratio"] < 1.0]
    failed = [f"{r['model']} {r['format']}" for r in rows if "octavo_error" in r and "stock_error" not in r]
    return [
        Verdict("quantizes what stock does", not failed, ", ".join(failed) or "all"),
        Verdict(f"at least {MIN_RATIO:g} × faster above {MANY} nodes", not slow, ", ".join(slow) or "all"),
        Verdict("never slower", not slower, ", ".join(slower) or "all"),
    ]


def shown(row: Figures) -> list[str]:
    """One line of the table."""
    octavo, stock = (row.get(f"{tool}_cpu_s") for tool in ("octavo", "stock"))
    verdict = "–" if "ratio" not in row else "pass" if row["ratio"] >= row["due"] else "FAIL"
    return [
        row["model"],
        row["format"],
        str(row["nodes"]),
        number(1000 * octavo, ".1f") if octavo is not None else "raises",
        number(1000 * stock, ".1f") if stock is not None else "raises",
        number(row.get("ratio"), ".2f"),
        number(row.get("due"), "g"),
        "FAIL" if octavo is None and stock is not None else verdict,
    ]


def main() -> int:
    leave_on_termination()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", default="../shared/zoo")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    zoo = str(Path(given.zoo).resolve())
    rows = []
    for model in given.models.split(","):
        for style in given.formats.split(","):
            rows.append(measure(zoo, model, style))
            print(f"{model} {style}", file=sys.stderr)
    header = ["model", "format", "nodes", "octavo ms", "stock ms", "ratio", "due", "verdict"]
    print(markdown(header, [shown(row) for row in rows], words=("model", "format", "verdict")))
    found = verdicts(rows)
    print_verdicts(found)
    write_json(given.json, {"machine": machine(), "rows": rows})
    return 0 if all(verdict.holds for verdict in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
