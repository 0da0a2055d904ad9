"""``octavo bench``: is a model faster, smaller, lighter, and where does its time go?"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from octavo.cli.console import Console
from octavo.cli.data import add_data, count, data_of
from octavo.cli.paths import check_outputs, check_report, shown, write_text
from octavo.cli.verb import Answer, Verb, as_json_text


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, as a rule the float one")
    parser.add_argument("other", metavar="QUANTIZED", nargs="?", help="a second model, timed in turn with it")
    add_data(parser)
    how = parser.add_argument_group("how it is measured")
    how.add_argument(
        "--threads", metavar="N", type=count, help="threads of the runtime (default: its own choice)"
    )
    how.add_argument(
        "--seconds", metavar="X", type=_seconds, default=3.0, help="how long to time (default: 3)"
    )
    how.add_argument(
        "--clock", choices=("wall", "cpu"), default="wall", help="cpu time is steadier on a busy machine"
    )
    how.add_argument("--no-profile", action="store_true", help="leave out the times of op types")
    how.add_argument("--no-memory", action="store_true", help="leave out memory and load time")
    how.add_argument("--report", metavar="FILE", help="write the result, as .html, .md, .txt or .json")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; give seconds above 0")
    return value


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.reporting.bench import bench_table

    check_report(options.report)
    check_outputs(options.model, {"--report": options.report})
    batch, options.batch = options.batch, None
    result = octavo.bench(
        options.model,
        options.other,
        data_of(options),
        batch=batch,
        threads=options.threads,
        seconds=options.seconds,
        clock=options.clock,
        profile=not options.no_profile,
        memory=not options.no_memory,
        progress=console.progress,
    )
    data = result.to_dict()
    text = bench_table(data)
    if options.report is not None:
        write_text(options.report, _report(options.report, data, options.other or options.model))
        text += f"\n\nwritten: {shown(options.report)}"
    return Answer(text, data)


def _report(path: str, data: dict[str, Any], model: str) -> str:
    from octavo.reporting.bench import bench_markdown, bench_table

    match Path(path).suffix.lower():
        case ".html":
            from octavo.reporting.html import report

            return report(model, data)
        case ".json":
            return as_json_text(data) + "\n"
        case ".md":
            names = [Path(model["name"]).name for model in data["models"]]
            return bench_markdown(data, f"Measurement of {' and '.join(names)}")
        case _:
            return bench_table(data) + "\n"


VERB = Verb(
    name="bench",
    summary="measure latency, memory, load time and size, alone or beside another model",
    description="""\
Time a model, or two that take turns on the same samples: medians, and the ratio
with its 95 % confidence interval. Memory and load time come from processes of
their own; the runtime's profiler says where the time goes, and which quantized
parts did not fuse.""",
    examples=(
        "octavo bench model.onnx model.int8.onnx",
        "octavo bench model.onnx model.int8.onnx --data calib.npz --threads 1 --batch 8",
        "octavo bench model.onnx --seconds 10 --report bench.md",
    ),
    arguments=_arguments,
    run=_run,
)
