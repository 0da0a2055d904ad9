"""The automatic choice behind ``octavo quantize``: its flags, when it runs, and what it answers."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.console import Console
from octavo.cli.data import count, data_of
from octavo.cli.engine import engine_options
from octavo.cli.evaluate import TASK_NAMES, add_truth, task_options
from octavo.cli.paths import check_outputs, write_text
from octavo.cli.selection import DEFAULT_TARGET, op_types
from octavo.cli.verb import Answer, as_json_text
from octavo.errors import RecipeError

if TYPE_CHECKING:
    from octavo.tuning import Demands, Exam, Tuned

MISSED = 1
USUAL_SQNR = 10.0  # dB
FIXES = (
    "plain", "recipe", "plan", "stats", "table", "dynamic", "stored", "format", "weights", "activations",
    "per", "method", "steps", "no_verify", "no_prepare",
)  # fmt: skip
_OWN = ("evaluate", "max_drop", "min_sqnr", "min_speed", "time_limit")


def add_automatic(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    group = parser.add_argument_group("the automatic choice")
    group.add_argument("--plain", action="store_true", help="try nothing: take the target's recipe as it is")
    group.add_argument(
        "--max-drop",
        metavar="X|X%",
        help="what the task of --evaluate may lose: 0.5%% of float's figure, or 0.005 in its unit",
    )
    group.add_argument(
        "--evaluate",
        metavar="TASK",
        help=f"the task that counts: {', '.join(TASK_NAMES[:-1])}, FILE.py:FUNCTION",
    )
    group.add_argument("--evaluate-data", metavar="DATA", help="its data (default: that of --data)")
    group.add_argument("--evaluate-samples", metavar="N", type=count, help="use at most so many of them")
    group.add_argument(
        "--min-sqnr", metavar="DB", type=_number, help="fidelity of the worst output (default: 10 dB)"
    )
    group.add_argument(
        "--min-speed",
        metavar="X",
        type=_number,
        help="speed, as a multiple of float's (default: 1, as far as noise lets tell)",
    )
    group.add_argument(
        "--time-limit", metavar="S", type=_number, help="start no trial after so many seconds (default: 180)"
    )
    add_truth(parser)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return value


def is_automatic(options: argparse.Namespace) -> bool:
    """Whether ways are tried: there is data to judge by, and nothing fixes the recipe."""
    from octavo.targets import target

    fixed = [f"--{name.replace('_', '-')}" for name in FIXES if getattr(options, name) not in (None, False)]
    wishes = [f"--{name.replace('_', '-')}" for name in _OWN if getattr(options, name) is not None]
    here = target(options.target or DEFAULT_TARGET).runs_here
    if wishes and (fixed or options.data is None or not here):
        why = (
            f"{fixed[0]} has settled it"
            if fixed
            else "there is no --data"
            if here
            else "it does not run here"
        )
        raise RecipeError(
            f"{', '.join(wishes)}: a choice among measured ways is needed for that, and {why}; leave one out."
        )
    if options.max_drop is not None and options.evaluate is None:
        raise RecipeError(
            "--max-drop is a loss in a task's figure; say which with --evaluate TASK, or use --min-sqnr."
        )
    return not fixed and options.data is not None and here


def best_path(output: str) -> str:
    """Where the best goes that does not meet the demands."""
    path = Path(output)
    return str(path.with_name(f"{path.stem}.best{path.suffix}"))


def choose(options: argparse.Namespace, console: Console) -> tuple[Tuned, str]:
    """Try, measure, choose; gives what was found and where the model was written."""
    import octavo

    check_outputs(options.model, {"the name for what misses its demands,": best_path(options.output)})
    tuned = octavo.tune(
        options.model,
        data_of(options),
        target=options.target or DEFAULT_TARGET,
        output=options.output,
        demands=_demands(options),
        exam=_exam(options),
        exclude=tuple(options.exclude),
        include=tuple(options.include),
        op_types=op_types(options),
        samples=options.samples,
        stride=options.stride,
        histograms=options.report is not None and Path(options.report).suffix.lower() in (".html", ".json"),
        progress=console.progress,
        **({"time_limit": options.time_limit} if options.time_limit is not None else {}),
        **engine_options(options),
    )
    written = str(options.output)
    if not tuned.met and tuned.result is not None:
        written = best_path(options.output)
        tuned.result.save(written)
    _remark(tuned, console)
    return tuned, written


def _remark(tuned: Tuned, console: Console) -> None:
    best = tuned.best
    if best is not None and best.speed is not None and best.speed.value < 1 and not best.runs_float:
        advice = "" if tuned.met else "; --min-speed 0 takes what is small and close all the same"
        console.note(f"slower than float on this machine: {best.speed.value:.2f} × its speed{advice}")


def _demands(options: argparse.Namespace) -> Demands:
    """What was asked for; a result is no slower and no larger than float unless another was."""
    from octavo.tuning import Demands, Drop

    return Demands(
        min_speed=options.min_speed if options.min_speed is not None else 1.0,
        min_sqnr=options.min_sqnr if options.min_sqnr is not None else USUAL_SQNR,
        max_drop=Drop.parse(options.max_drop) if options.max_drop is not None else None,
    )


def _exam(options: argparse.Namespace) -> Exam | None:
    if options.evaluate is None:
        return None
    from octavo.tuning import Exam

    return Exam(
        options.evaluate,
        options.evaluate_data or options.data,
        options.evaluate_samples,
        options.batch,
        task_options(options, options.evaluate),
    )


def answer(tuned: Tuned, files: list[str]) -> Answer:
    """What was tried, what was chosen, and what it is."""
    data: dict[str, Any] = {"written": files, "verified": True, "tuning": tuned.to_dict()}
    parts = [str(tuned)]
    if tuned.result is not None:
        parts.append(tuned.result.summary())
        data |= tuned.result.to_dict()
    parts.append(f"written: {', '.join(files)}")
    return Answer("\n\n".join(parts[:-1]) + "\n" + parts[-1], data, code=0 if tuned.met else MISSED)


def write_report(path: str, tuned: Tuned, name: str) -> None:
    """What was tried and what came out, as the suffix says."""
    from octavo.reporting.html import details, report
    from octavo.reporting.plans import plan_table
    from octavo.reporting.summary import markdown, summary
    from octavo.reporting.tuning import markdown as tried

    result, data = tuned.result, tuned.to_dict()
    if result is None:
        return
    match Path(path).suffix.lower():
        case ".html":
            text = report({**details.full(result, name), "tuning": data})
        case ".json":
            text = as_json_text({**details.full(result, name), "tuning": data}) + "\n"
        case ".md":
            text = f"{markdown(result, Path(name).name)}\n\n{tried(data)}\n"
        case _:
            text = f"{tuned}\n\n{summary(result)}\n\n{plan_table(result.plan, tensors=True)}\n"
    write_text(path, text)
