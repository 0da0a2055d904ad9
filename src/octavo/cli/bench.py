"""``octavo bench``: latency, memory and size of models, and where the time goes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.console import Console
from octavo.cli.data import add_data, count, data_of
from octavo.cli.paths import check_outputs, check_report, shown, write_report
from octavo.cli.requirements import add_requirements, limits_of, task_check, with_gates
from octavo.cli.verb import Answer, Verb
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.evaluation.timing.measurements import Bench
    from octavo.tuning.gates import Gate


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="the ONNX model, as a rule the float one")
    parser.add_argument(
        "others", metavar="QUANTIZED", nargs="*", help="further models, timed in turns with the first"
    )
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
    add_requirements(parser)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time; give seconds above 0")
    return value


def _run(options: argparse.Namespace, console: Console) -> Answer:
    import octavo
    from octavo.reporting.bench_tables import bench_table

    check_report(options.report)
    check_outputs(options, {"--report": options.report})
    limits = limits_of(options)
    if limits and not options.others:
        raise RecipeError("A requirement compares with float; give two models: octavo bench FLOAT QUANTIZED.")
    batch, options.batch = options.batch, None
    data = data_of(options)
    result = octavo.bench(
        options.model,
        options.others or None,
        data,
        batch=batch,
        threads=options.threads,
        seconds=options.seconds,
        clock=options.clock,
        profile=not options.no_profile,
        memory=not options.no_memory,
        progress=console.progress,
    )
    plain = result.to_dict()
    text = bench_table(plain)
    gates = _gates(options, result, data)
    if options.report is not None:
        _write(options, with_gates(Answer(text, plain), gates).data)
        text += f"\n\nwritten: {shown(options.report)}"
    return with_gates(Answer(text, plain), gates)


def _write(options: argparse.Namespace, plain: dict[str, Any]) -> None:
    from octavo.reporting.bench_tables import bench_markdown, bench_table
    from octavo.reporting.html import report
    from octavo.reporting.html.report_parts import bench_pairs

    names = [Path(model["name"]).name for model in plain["models"]]
    shown_models = options.others or [options.model]
    pages = [part for pair in zip(shown_models, bench_pairs(plain), strict=True) for part in pair]
    write_report(
        options.report,
        plain,
        page=lambda: report(*pages),
        markdown=lambda: bench_markdown(plain, f"Measurement of {' and '.join(names)}"),
        text=lambda: bench_table(plain),
    )


def _gates(options: argparse.Namespace, result: Bench, data: Any) -> list[Gate]:
    limits = limits_of(options)
    if not limits:
        return []
    from octavo.tuning.gates import check_gates

    return [
        gate
        for path, speed in zip(options.others, result.ratios, strict=True)
        for gate in check_gates(
            options.model,
            path,
            limits,
            data=data,
            task=task_check(options),
            samples=options.samples,
            threads=options.threads,
            speed=speed,
        )
    ]


VERB = Verb(
    name="bench",
    summary="measure latency, memory, load time and size, alone or beside other models",
    description="""\
Time a model, or several that take turns on the same samples: medians, and the
ratio with its 95 % confidence interval. Memory and load time come from processes
of their own; the runtime's profiler says where the time goes, and which quantized
operators did not fuse. With --min-speed or --max-size the exit code is 1 where
the requirement is not met.""",
    examples=(
        "octavo bench model.onnx model.int8.onnx",
        "octavo bench model.onnx a.int8.onnx b.int8.onnx --report bench.html",
        "octavo bench model.onnx model.int8.onnx --data calib.npz --threads 1 --batch 8",
        "octavo bench model.onnx model.int8.onnx --min-speed 1.5 --max-size 0.3",
    ),
    arguments=_arguments,
    run=_run,
)
