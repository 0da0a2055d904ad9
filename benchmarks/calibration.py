"""What calibration costs beside plain inference, and against ``onnxruntime.quantization``.

    python benchmarks/calibration.py
    python benchmarks/calibration.py --nets resnet50 --part turns
    python benchmarks/calibration.py --nets resnet50 --samples 20 --stock-samples 4 --memory-samples 10,40

All of it takes about half an hour of CPU; ``--part`` runs one of its three parts, a few minutes for a net.

Two models built in code (`_nets.py`): one shaped like ResNet-50, one like BERT-base, with random weights. One
thread. Observed are the tensors that Octavo's plan for them measures.

*turns.* Against inference. In one process, plain inference, calibration of extremes, calibration with
histograms (which serves every method; of large maps a lattice is counted), the same with every value counted
and with a stride of 16 take turns, a few samples each, so that all of them see the same noise of the machine.
The figure is the median over the turns of CPU seconds divided by those of inference in the same turn.

*stock.* Octavo's whole calibration for every method and stock's Entropy calibrator, each in a process of its
own, from the path of the model to the thresholds: CPU seconds and peak RSS. Stock keeps every activation of
every sample: 100 samples of ResNet-50 take about 12 GB, 50 of BERT-base more.

*memory.* Peak RSS of Octavo's calibration with histograms for two numbers of samples.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import _nets
import numpy as np
from _measure import (
    Feed,
    Feeds,
    Figures,
    Meter,
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

NETS: dict[str, tuple[Callable[[], Any], Callable[[int], list[Feed]], int]] = {
    "resnet50": (_nets.resnet50, _nets.images, 100),
    "bert-base": (_nets.bert_base, _nets.texts, 50),
}
PARTS = ("turns", "stock", "memory")
TURN = 10  # samples of a turn
STRIDE = 16
MOST = {"resnet50": {"minmax": 1.15, "histograms": 1.6}, "bert-base": {"minmax": 1.15, "histograms": 1.15}}
MIN_STOCK, MAX_MEMORY, MAX_GROWTH = 3.0, 0.1, 1.05


# -------------------------------------------------------------------------------------- the tasks


def stream(net: str, count: int) -> Iterator[Feed]:
    """So many samples, a few different ones again and again, so that data takes no room."""
    return itertools.islice(itertools.cycle(NETS[net][1](TURN)), count)


def task_make(payload: Figures) -> Figures:
    import onnx

    onnx.save(NETS[payload["net"]][0](), payload["path"])
    return {"bytes": Path(payload["path"]).stat().st_size}


def task_turns(payload: Figures) -> Figures:
    """Seconds of each way in each turn."""
    octavo = import_octavo()
    from octavo.calibration import sampled
    from octavo.calibration.observe.collect import Collector
    from octavo.core.requests import Histogram, Request

    path, feeds = payload["path"], NETS[payload["net"]][1](TURN)
    tensors = octavo.plan(path).needs()
    model = octavo.ready(path)
    session = open_session(path)
    every = dict.fromkeys(tensors, Request(Histogram()))
    needs = {
        "minmax": dict.fromkeys(tensors, Request()),
        "histograms": sampled(model, every, None),
        "every value": sampled(model, every, 1),
        f"stride {STRIDE}": sampled(model, every, STRIDE),
    }
    ways: dict[str, Callable[[], object]] = {"inference": lambda: [session.run(None, f) for f in feeds]}
    for name, wanted in needs.items():
        collector = Collector(model, wanted, threads=1)
        ways[name] = lambda collector=collector: collector.collect(feeds)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, -(-payload["samples"] // TURN)):
        for name, way in ways.items():
            start = cpu_seconds()
            way()
            if turn >= 0:
                seconds[name].append(cpu_seconds() - start)
    return {"tensors": len(tensors), "seconds": seconds}


def task_octavo(payload: Figures) -> Figures:
    """Calibration for every method, and a reading of each."""
    octavo = import_octavo()
    from octavo import calibration, pipeline

    feeds = Feeds(lambda: stream(payload["net"], payload["samples"]))
    with Meter(feeds) as meter:
        plan = octavo.plan(payload["path"])
        stats = octavo.calibrate(payload["path"], plan, feeds, threads=1, engine="serial", every_method=True)
        if payload["read"]:
            schemes = pipeline.schemes(plan)
            wanted = {t: s.but(method=octavo.Entropy()) for t, s in schemes.items()}
            calibration.ranges(stats, wanted)
    return {**meter.figures, "tensors": len(stats)}


def task_stock(payload: Figures) -> Figures:
    import_whole("onnxruntime.quantization")
    import onnxruntime
    from onnxruntime.quantization import CalibrationMethod, create_calibrator

    feeds = Feeds(lambda: stream(payload["net"], payload["samples"]))
    one_thread(onnxruntime)
    with Meter(feeds) as meter, tempfile.TemporaryDirectory() as folder:
        calibrator = create_calibrator(
            Path(payload["path"]),
            None,
            augmented_model_path=str(Path(folder) / "augmented.onnx"),
            calibrate_method=CalibrationMethod.Entropy,
        )
        calibrator.collect_data(stock_reader(feeds))
        found = calibrator.compute_data()
    return {**meter.figures, "tensors": len(list(found.keys()))}


def one_thread(onnxruntime: Any) -> None:
    """Stock has no option for threads: give its sessions one."""
    options = onnxruntime.SessionOptions

    def single() -> Any:
        made = options()
        made.intra_op_num_threads = 1
        return made

    onnxruntime.SessionOptions = single


# ------------------------------------------------------------------------------ parent: run, report


def measure(net: str, path: Path, wanted: argparse.Namespace) -> Figures:
    samples = wanted.samples or NETS[net][2]
    found: Figures = {"net": net, "samples": samples, "turns": {}, "memory": {}}
    payload: Figures = {"net": net, "path": str(path), "read": True}

    def run(key: str, task: Callable[[Figures], Figures], **more: Any) -> None:
        outcome = run_task(task, {**payload, **more}, timeout=wanted.timeout)
        found[key] = {"error": outcome.error} if outcome.error else outcome.figures
        print(f"{net} {key}: {outcome.error or 'done'}", file=sys.stderr, flush=True)

    if "turns" in wanted.part:
        run("turns", task_turns, samples=samples)
    race = samples if wanted.stock_samples is None else wanted.stock_samples
    if race and "stock" in wanted.part:
        run("octavo", task_octavo, samples=race)
        run("stock", task_stock, samples=race)
    for count in wanted.memory_samples if "memory" in wanted.part else ():
        run(f"memory {count}", task_octavo, samples=count, read=False)
        found["memory"][count] = found[f"memory {count}"].get("peak_rss_mib")
    return found


def ratios(found: Figures) -> dict[str, float]:
    """CPU of each way as a multiple of inference."""
    seconds = found["turns"].get("seconds", {})
    base = seconds.get("inference", [])
    return {
        name: median([a / b for a, b in zip(values, base, strict=True)])
        for name, values in seconds.items()
        if name != "inference"
    }


def turn_rows(rows: Sequence[Figures]) -> Iterator[list[str]]:
    for found in rows:
        seconds = found["turns"].get("seconds", {})
        spread = ratios(found)
        for name, values in seconds.items():
            base = seconds["inference"]
            parts = sorted(a / b for a, b in zip(values, base, strict=True))
            low, high = np.quantile(parts, [0.25, 0.75])
            yield [
                found["net"],
                name,
                str(found["turns"]["tensors"]),
                number(1000 * median(values) / TURN),
                number(spread.get(name), ".2f", " ×"),
                f"{low:.2f} … {high:.2f}" if name in spread else "–",
            ]


def stock_rows(rows: Sequence[Figures]) -> Iterator[list[str]]:
    for found in rows:
        for tool in ("octavo", "stock"):
            if tool not in found:
                continue
            figures = found[tool]
            yield [
                found["net"],
                tool,
                str(figures.get("tensors", "–")),
                number(figures.get("cpu_s")),
                number(figures.get("peak_rss_mib"), ".0f"),
                number(figures.get("rss_before_mib"), ".0f"),
                figures.get("error", ""),
            ]


def verdicts(rows: Sequence[Figures]) -> Iterator[Verdict]:
    for found in rows:
        net, got = found["net"], ratios(found)
        for name, most in MOST[net].items():
            if not found["turns"]:
                break
            ratio = got.get(name)
            claim = f"{net}: {name} at most {most} × inference"
            yield Verdict(claim, None if ratio is None else ratio <= most, number(ratio, ".2f", " ×"))
        yield from stock_verdicts(found)
        sizes = [(count, size) for count, size in found["memory"].items() if size]
        if len(sizes) > 1:
            (few, small), (many, large) = sizes[0], sizes[-1]
            yield Verdict(
                f"{net}: peak memory of {many} samples within 5 % of that of {few}",
                large <= MAX_GROWTH * small,
                f"{large:.0f} MB, {small:.0f} MB: {large / small:.3f} ×",
            )


def stock_verdicts(found: Figures) -> Iterator[Verdict]:
    own, stock = found.get("octavo", {}), found.get("stock", {})
    if "cpu_s" not in own or "cpu_s" not in stock:
        return
    ratio = stock["cpu_s"] / own["cpu_s"]
    yield Verdict(
        f"{found['net']}: at least {MIN_STOCK:g} × less CPU than stock Entropy",
        ratio >= MIN_STOCK,
        f"{own['cpu_s']:.1f} s, stock {stock['cpu_s']:.1f} s: {ratio:.1f} ×",
    )
    share = own["peak_rss_mib"] / stock["peak_rss_mib"]
    yield Verdict(
        f"{found['net']}: under a tenth of stock's memory",
        share < MAX_MEMORY,
        f"{own['peak_rss_mib']:.0f} MB, stock {stock['peak_rss_mib']:.0f} MB: {share:.2f}",
    )


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nets", default=",".join(NETS), metavar="NAME,NAME", help="which models")
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="which parts; may be repeated (default: all)"
    )
    parser.add_argument("--samples", type=int, metavar="N", help="for the turns (default: 100 and 50)")
    parser.add_argument(
        "--stock-samples", type=int, metavar="N", help="for the race with stock (default: as many); 0: none"
    )
    parser.add_argument(
        "--memory-samples", type=numbers, default=[100, 1000], metavar="N,N", help="for peak memory"
    )
    parser.add_argument(
        "--timeout", type=float, default=1800, metavar="S", help="limit of each child process"
    )
    parser.add_argument("--dir", type=Path, metavar="DIR", help="where the models go (default: temporary)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    wanted = parser.parse_args()
    wanted.part = wanted.part or list(PARTS)
    return wanted


def main() -> int:
    wanted = arguments()
    leave_on_termination()
    rows = []
    with tempfile.TemporaryDirectory(prefix="octavo-calibration-", dir=wanted.dir) as folder:
        for net in wanted.nets.split(","):
            path = Path(folder) / f"{net}.onnx"
            made = run_task(task_make, {"net": net, "path": str(path)})
            if made.error:
                raise SystemExit(f"cannot make {net}: {made.error}")
            rows.append(measure(net, path, wanted))
            path.unlink()
    print(", ".join(f"{key} {value}" for key, value in machine().items()) + "\n")
    if "turns" in wanted.part:
        header = ("net", "way", "tensors", "CPU ms / sample", "/ inference", "quartiles")
        print(markdown(header, turn_rows(rows), words=("way",)) + "\n")
    if "stock" in wanted.part:
        header = ("net", "tool", "tensors", "CPU s", "peak MB", "before MB", "notes")
        print(markdown(header, stock_rows(rows), words=("tool", "notes")))
    found = list(verdicts(rows))
    print_verdicts(found)
    content = {"machine": machine(), "rows": rows, "verdicts": [vars(verdict) for verdict in found]}
    write_json(wanted.json, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
