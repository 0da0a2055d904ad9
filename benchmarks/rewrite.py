"""How the time to quantize grows with the number of nodes, Octavo against ``onnxruntime.quantization``.

    python benchmarks/rewrite.py
    python benchmarks/rewrite.py --sizes 100,1000,10000 --stock-sizes ""

The models are chains of Conv, Relu and residual Add on tensors of 1 × 8 × 8 × 8, with 3 × 3 kernels of
8 channels and a bias each. The arithmetic is next to nothing, so what is measured is reading, calibrating,
rewriting and writing a graph of many nodes: static QDQ, per-channel weights, one calibration sample, input
and output by path (on tmpfs where there is one).

Every figure is CPU seconds of a process of its own, all threads included, after the imports: the median of
three runs for Octavo, one run for stock. Each result is loaded and run once, outside the clock, and its
quantized convolutions are counted. The runtime gets one thread where that can be set (stock has no such
option; on tensors this small its second thread does little). "load s" is what the runtime itself takes to
open the result at its default optimization level.

By default Octavo loads and runs what it has written before it hands it over, a large graph in pieces; stock
does not. So there are two rows of Octavo: as it is, and with ``verify=False``, which does what stock does.
The runtime's own time to load a whole graph ("load s") grows with the square of the number of its weights (it
sorts nodes without predecessors, such as the DequantizeLinear of each weight, into a linked list), whatever
wrote the file.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from _measure import (
    Feed,
    Feeds,
    Figures,
    Meter,
    TaskError,
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

CHANNELS, SIDE = 8, 8
MAX_GROWTH = 12 / 10  # time may grow by this much more than the number of nodes
MIN_RATIO, RATIO_AT = 20, 1000  # at least this much faster than stock, at this many nodes
UNCHECKED = "octavo, no check"
RUNS = {"octavo": 3, UNCHECKED: 3, "stock": 1}
KEPT = ("peak_rss_mib", "convolutions", "quantized", "nodes_out", "load_cpu_s")


# ------------------------------------------------------------------------------------- the models


def chain(nodes: int) -> Any:
    """A model of exactly `nodes` nodes: x ← x + Relu(Conv(x)), cut off where the count is reached."""
    import onnx
    from onnx import helper, numpy_helper

    rng = np.random.default_rng(nodes)
    # The residual stream grows by a factor of about 1 + gain / 2 a block: bounded over the whole chain.
    gain = min(0.5, 4 / max(1, nodes // 3)) / np.sqrt(9 * CHANNELS)
    body, weights, stream = [], [], "input"
    for index in itertools.count():
        kernel, bias, conv = f"w{index}", f"b{index}", f"conv{index}"
        weights += [
            numpy_helper.from_array(
                (gain * rng.standard_normal((CHANNELS, CHANNELS, 3, 3))).astype(np.float32), kernel
            ),
            numpy_helper.from_array((0.01 * rng.standard_normal(CHANNELS)).astype(np.float32), bias),
        ]
        body += [
            helper.make_node("Conv", [stream, kernel, bias], [conv], conv, pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [conv], [f"relu{index}"], f"relu{index}"),
            helper.make_node("Add", [f"relu{index}", stream], [f"add{index}"], f"add{index}"),
        ]
        stream = f"add{index}"
        if len(body) >= nodes:
            break
    body = body[:nodes]
    shape = [1, CHANNELS, SIDE, SIDE]
    graph = helper.make_graph(
        body,
        "chain",
        [helper.make_tensor_value_info("input", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(body[-1].output[0], onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def sample() -> Feed:
    rng = np.random.default_rng(1)
    return {"input": rng.standard_normal((1, CHANNELS, SIDE, SIDE)).astype(np.float32)}


# -------------------------------------------------------------------------------------- the tasks


def task_make(payload: Figures) -> Figures:
    import onnx

    onnx.save(chain(payload["nodes"]), payload["path"])
    return {"bytes": Path(payload["path"]).stat().st_size}


def task_quantize(payload: Figures) -> Figures:
    source, output = Path(payload["source"]), Path(payload["output"])
    feeds = Feeds(lambda: [sample()])
    if payload["tool"] != "stock":
        octavo = import_octavo()
        verify = payload["tool"] == "octavo"
        with Meter(feeds) as meter:
            octavo.quantize(source, feeds, effort="plain", output=output, threads=1, verify=verify)
    else:
        import_whole("onnxruntime.quantization")
        from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

        with Meter(feeds) as meter:
            quantize_static(
                source,
                output,
                stock_reader(feeds),
                quant_format=QuantFormat.QDQ,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                per_channel=True,
            )
    return {**meter.figures, **check(output)}


def check(path: Path) -> Figures:
    """The result runs, and its convolutions take integer weights."""
    import onnx

    start = cpu_seconds()
    session = open_session(path)
    load = cpu_seconds() - start
    result = session.run(None, sample())[0]
    if not np.isfinite(result).all():
        raise TaskError("the quantized model gives values that are not finite")
    graph = onnx.load(path).graph
    dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    convolutions = [node for node in graph.node if node.op_type in ("Conv", "QLinearConv")]
    quantized = [node for node in convolutions if node.op_type != "Conv" or node.input[1] in dequantized]
    return {
        "convolutions": len(convolutions),
        "quantized": len(quantized),
        "nodes_out": len(graph.node),
        "load_cpu_s": load,
    }


# ------------------------------------------------------------------------------ parent: run, report


def measure(sizes: dict[str, list[int]], folder: Path, timeout: float) -> list[Figures]:
    rows = []
    for nodes in sorted({size for wanted in sizes.values() for size in wanted}):
        source = folder / f"chain{nodes}.onnx"
        made = run_task(task_make, {"nodes": nodes, "path": str(source)})
        if made.error:
            raise SystemExit(f"cannot make a chain of {nodes} nodes: {made.error}")
        for tool in [tool for tool, wanted in sizes.items() if nodes in wanted]:
            rows.append(measure_tool(tool, nodes, source, timeout))
            print(f"{tool:16s} {nodes:6d} nodes: {rows[-1]}", file=sys.stderr, flush=True)
        source.unlink()
    return rows


def measure_tool(tool: str, nodes: int, source: Path, timeout: float) -> Figures:
    row: Figures = {"tool": tool, "nodes": nodes, "runs": []}
    output = source.with_name(f"quantized{nodes}.onnx")
    for _ in range(RUNS[tool]):
        outcome = run_task(
            task_quantize,
            {"tool": tool, "source": str(source), "output": str(output)},
            timeout=timeout,
        )
        output.unlink(missing_ok=True)
        if outcome.error:
            return {**row, "error": outcome.error}
        row["runs"].append(outcome.figures["cpu_s"])
        row.update({key: outcome.figures[key] for key in KEPT})
    return {**row, "cpu_s": median(row["runs"])}


def growths(rows: list[Figures], tool: str) -> Iterator[tuple[Figures, Figures, float]]:
    """Consecutive sizes of a tool and the factor by which the time grew."""
    done = [row for row in rows if row["tool"] == tool and "cpu_s" in row]
    for small, big in itertools.pairwise(done):
        yield small, big, big["cpu_s"] / small["cpu_s"]


def table_rows(rows: list[Figures]) -> Iterator[list[str]]:
    grown = {(tool, big["nodes"]): factor for tool in RUNS for _, big, factor in growths(rows, tool)}
    seconds = {(row["tool"], row["nodes"]): row["cpu_s"] for row in rows if "cpu_s" in row}
    for row in sorted(rows, key=lambda row: (row["tool"], row["nodes"])):
        key = (row["tool"], row["nodes"])
        stock, own = seconds.get(("stock", row["nodes"])), seconds.get(key)
        yield [
            row["tool"],
            str(row["nodes"]),
            number(own, ".3f"),
            number(grown.get(key), ".1f", " ×"),
            number(stock / own if stock and own else None, ".1f", " ×"),
            number(row.get("load_cpu_s"), ".3f"),
            number(row.get("peak_rss_mib"), ".0f"),
            f"{row['quantized']} of {row['convolutions']}" if "quantized" in row else "–",
            row.get("error", ""),
        ]


def verdicts(rows: list[Figures]) -> Iterator[Verdict]:
    for tool in ("octavo", UNCHECKED):
        for small, big, factor in growths(rows, tool):
            allowed = MAX_GROWTH * big["nodes"] / small["nodes"]
            claim = f"{tool}: {small['nodes']} → {big['nodes']} nodes takes at most {allowed:.3g} × the time"
            yield Verdict(claim, factor <= allowed, f"{factor:.1f} ×")
    at = {row["tool"]: row.get("cpu_s") for row in rows if row["nodes"] == RATIO_AT}
    own, stock = at.get("octavo"), at.get("stock")
    claim = f"at least {MIN_RATIO} × faster than stock at {RATIO_AT} nodes"
    if own and stock:
        yield Verdict(
            claim, stock / own >= MIN_RATIO, f"{own:.3f} s, stock {stock:.2f} s: {stock / own:.1f} ×"
        )
    else:
        yield Verdict(claim, None, "not measured")
    for row in rows:
        if row["tool"] != "stock" and ("error" in row or row["quantized"] < row["convolutions"]):
            yield Verdict(
                f"quantizes all of {row['nodes']} nodes", False, row.get("error", "some left float")
            )


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=numbers, default=[100, 1000, 5000], metavar="N,N", help="for Octavo")
    parser.add_argument("--stock-sizes", type=numbers, default=[100, 1000], metavar="N,N", help="for stock")
    parser.add_argument("--timeout", type=float, default=900, metavar="S", help="limit of each child process")
    parser.add_argument(
        "--dir", type=Path, metavar="DIR", help="where temporary files go (default: /dev/shm)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    arguments = parser.parse_args()
    leave_on_termination()
    memory = Path("/dev/shm")
    root = arguments.dir or (memory if memory.is_dir() else None)
    with tempfile.TemporaryDirectory(prefix="octavo-rewrite-", dir=root) as folder:
        rows = measure(
            {"octavo": arguments.sizes, UNCHECKED: arguments.sizes, "stock": arguments.stock_sizes},
            Path(folder),
            arguments.timeout,
        )
    print(", ".join(f"{key} {value}" for key, value in machine().items()) + "\n")
    header = ("tool", "nodes", "CPU s", "growth", "stock / tool", "load s", "peak MB", "int8 Conv", "notes")
    print(markdown(header, table_rows(rows), words=("notes",)))
    found = list(verdicts(rows))
    print_verdicts(found)
    write_json(
        arguments.json, {"machine": machine(), "rows": rows, "verdicts": [vars(verdict) for verdict in found]}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
