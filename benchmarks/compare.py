"""What ``octavo.compare`` costs: memory that must not grow with the data, time beside the two inferences.

    python benchmarks/compare.py
    python benchmarks/compare.py --model mobilenet_v2 --samples 50,200

A zoo model is quantized (static QDQ, 32 calibration samples) and compared with itself over two numbers of
samples, each in a process of its own with one thread. Memory is the peak of the process after the imports.
Time is CPU time of the whole comparison, matching and explaining included, over that of running both plain
models on the same samples, in the same process. Making the samples is not counted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
from pathlib import Path

from _measure import (
    Feeds,
    Figures,
    Meter,
    Verdict,
    cpu_seconds,
    import_octavo,
    leave_on_termination,
    machine,
    markdown,
    median,
    number,
    open_session,
    print_verdicts,
    run_task,
    write_json,
)
from _zoo import zoo_module

MAX_GROWTH = 1.05  # memory over more samples
MAX_COST = 2.5  # times the two inferences
RUNS = 3


def samples(payload: Figures) -> Feeds:
    """The zoo's calibration samples, again and again until there are enough."""
    evaluate = zoo_module(payload["zoo"], "evaluate")
    count = int(payload["samples"])
    few = list(evaluate.calibration(payload["model"], limit=min(count, 64)))
    return Feeds(lambda: itertools.islice(itertools.cycle(few), count))


def task_quantize(payload: Figures) -> Figures:
    octavo = import_octavo()
    evaluate = zoo_module(payload["zoo"], "evaluate")
    source = evaluate.model_path(payload["model"])
    octavo.quantize(source, samples(payload), effort="plain", output=payload["output"], threads=1)
    return {"source": str(source)}


def task_compare(payload: Figures) -> Figures:
    octavo = import_octavo()
    feeds = samples(payload)
    source, output = payload["source"], payload["output"]
    with Meter(feeds) as meter:
        found = octavo.compare(source, output, feeds, samples=payload["samples"], threads=1)
    return {
        **meter.figures,
        "inference_cpu_s": inference(payload),
        "samples": found.samples,
        "looked": found.looked,
        "matched": found.matched,
        "unmatched": len(found.unmatched),
        "sqnr_db": found.outputs[0].errors.sqnr,
    }


def inference(payload: Figures) -> float:
    """CPU seconds of both plain models on all samples."""
    sessions = [open_session(payload[name]) for name in ("source", "output")]
    kept = list(itertools.islice(samples(payload), 64))
    for session in sessions:
        session.run(None, kept[0])
    start = cpu_seconds()
    for feed in itertools.islice(itertools.cycle(kept), payload["samples"]):
        for session in sessions:
            session.run(None, feed)
    return cpu_seconds() - start


def main() -> int:
    leave_on_termination()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--zoo", default=os.environ.get("OCTAVO_ZOO_DIR", "../shared/zoo"))
    parser.add_argument("--model", default="efficientnet_lite0")
    parser.add_argument("--samples", default="100,400")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    options = parser.parse_args()
    sizes = [int(text) for text in options.samples.split(",")]
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as folder:
        payload: Figures = {
            "zoo": str(Path(options.zoo).resolve()),
            "model": options.model,
            "output": str(Path(folder) / "int8.onnx"),
            "samples": 32,
        }
        made = run_task(task_quantize, payload)
        if made.error:
            print(f"The model could not be quantized: {made.error}")
            return 1
        payload["source"] = made.figures["source"]
        found = {size: measured({**payload, "samples": size}, options.runs) for size in sizes}
    write_json(options.json, {"machine": machine(), "model": options.model, "figures": found})
    report(options.model, found)
    return 0


def measured(payload: Figures, runs: int) -> Figures:
    """The medians of some runs."""
    all_figures: list[Figures] = []
    for _ in range(runs):
        outcome = run_task(task_compare, payload)
        if outcome.error:
            raise SystemExit(f"The comparison failed: {outcome.error}")
        all_figures.append(outcome.figures)
    last = all_figures[-1]
    keys = ("cpu_s", "wall_s", "peak_rss_mib", "inference_cpu_s")
    return {**last, **{key: median([float(f[key]) for f in all_figures]) for key in keys}, "marks": []}


def report(model: str, found: dict[int, Figures]) -> None:
    header = ["samples", "looked at", "peak MiB", "compare s", "two inferences s", "ratio", "SQNR dB"]
    rows = [
        [
            str(size),
            str(f["looked"]),
            number(f["peak_rss_mib"]),
            number(f["cpu_s"], ".2f"),
            number(f["inference_cpu_s"], ".2f"),
            number(f["cpu_s"] / f["inference_cpu_s"], ".2f"),
            number(f["sqnr_db"]),
        ]
        for size, f in found.items()
    ]
    print(f"{model}, one thread, CPU seconds\n")
    print(markdown(header, rows))
    least, most = min(found), max(found)
    growth = found[most]["peak_rss_mib"] / found[least]["peak_rss_mib"]
    costs = [f["cpu_s"] / f["inference_cpu_s"] for f in found.values()]
    print_verdicts(
        [
            Verdict(
                f"memory over {most} samples at most {MAX_GROWTH:g} × that over {least}",
                growth <= MAX_GROWTH,
                f"{growth:.3f} ×",
            ),
            Verdict(
                f"at most {MAX_COST:g} × the two inferences",
                max(costs) <= MAX_COST,
                ", ".join(f"{cost:.2f} ×" for cost in costs),
            ),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
