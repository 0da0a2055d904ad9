"""The flags that say what a result has to meet, shared by all verbs that measure: gates for CI.

A verb that has such a flag measures what it is about, says in a line which gate failed, puts ``gates`` into
its JSON and ends with the exit code 1, or 3 where a speed lies too close to its limit to tell.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.cli import guarded
from octavo.cli.data import count, flag, paths_of, positive
from octavo.cli.tasks import TASK_NAMES, add_truth, task_options
from octavo.cli.verb import Answer
from octavo.core.effort import EFFORTS

if TYPE_CHECKING:
    from octavo.tuning.deadline import Limit
    from octavo.tuning.gates import Gate
    from octavo.tuning.requirements import TaskCheck

GATES = ("max_drop", "min_sqnr", "min_speed", "max_size")
NOT_MET = 1  # the exit code where a requirement is not met
UNDECIDED = 3  # where none is missed, and the measurement does not tell whether all are met
_MEASURE = "measure longer, for example with octavo bench --seconds 30, or leave a margin"


def add_effort(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how much ``octavo quantize`` tries."""
    effort = parser.add_argument_group("how much is tried")
    effort.add_argument(
        "--effort",
        choices=EFFORTS,
        help="plain: the recipe and nothing else; standard: a few ways, compared with float and timed; "
        "search: layers left in float too (default: standard with --data; plain where a flag fixes the "
        "recipe)",
    )
    effort.add_argument("--plain", action="store_const", const="plain", dest="effort", help="--effort plain")
    effort.add_argument(
        "--time-limit",
        metavar="S",
        type=_number,
        help="stop after this many seconds with the best so far (default: 180)",
    )
    add_objective(effort)


def add_objective(group: argparse._ArgumentGroup) -> None:
    """Add the flag that says what the automatic choice prefers."""
    group.add_argument(
        "--optimize",
        choices=("balanced", "decode", "prefill", "size"),
        help="what counts most: size; of language models also the speed of writing tokens (decode) or of "
        "reading prompts (prefill) (default: balanced)",
    )


def add_requirements(parser: argparse.ArgumentParser, *, default: bool = False) -> None:
    """Add the flags of requirements, and of the task that ``--max-drop`` is about."""
    group = add_gates(parser, default=default)
    group.add_argument(
        "--evaluate",
        metavar="TASK",
        help=f"the task that --max-drop is about: {', '.join(TASK_NAMES[:-1])}, FILE.py:FUNCTION",
    )
    group.add_argument("--evaluate-data", metavar="DATA", help="its data (default: that of --data)")
    group.add_argument(
        "--evaluate-scale",
        metavar="X",
        type=positive,
        help="divide the values of its arrays by this (default: that of --scale)",
    )
    group.add_argument("--evaluate-samples", metavar="N", type=count, help="use at most this many samples")
    add_truth(parser)


def add_gates(parser: argparse.ArgumentParser, *, default: bool = False) -> argparse._ArgumentGroup:
    """Add the flags of requirements; ``default`` says whether some hold where none is given."""
    group = parser.add_argument_group(
        "what the result has to meet (exit code 1 if it does not, 3 if the measurement does not tell)"
    )
    for name, metavar, kind, text, usual in (
        (
            "--max-drop",
            "X|X%",
            str,
            "how much the task's metric may drop: 0.5%% of float's value, or 0.005 in its unit",
            "",
        ),
        ("--min-sqnr", "DB", _number, "fidelity of the worst output", "20 dB, or 95 %% equal answers"),
        ("--min-speed", "X", _multiple, "speed, as a multiple of float's", "1, as far as noise lets tell"),
        ("--max-size", "X", _multiple, "bytes of weights, as a multiple of float's", "1"),
    ):
        shown = f"{text} (default: {usual})" if default and usual else text
        group.add_argument(name, metavar=metavar, type=kind, help=shown)
    return group


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def _multiple(text: str) -> float:
    """Return a multiple of float's value: 0.3, or 0.3x as it is written elsewhere."""
    return _number(text.removesuffix("x"))


def limits_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the requirements that were given, by their names in Python."""
    return {name: getattr(options, name) for name in GATES if getattr(options, name) is not None}


def task_check(options: argparse.Namespace) -> TaskCheck | None:
    """Return the task of ``--evaluate`` with its data."""
    if options.evaluate is None:
        return None
    from octavo.tuning.requirements import TaskCheck

    own = task_options(options, options.evaluate)
    if options.evaluate_scale is not None:
        own["scale"] = options.evaluate_scale
    return TaskCheck(
        options.evaluate,
        options.evaluate_data or (paths_of(options.data) if options.data is not None else None),
        options.evaluate_samples,
        options.batch,
        own,
    )


def requirements_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as keywords of ``octavo.quantize``."""
    found = {
        **limits_of(options),
        "time_limit": _time_limit(options.time_limit),
        "optimize": options.optimize,
        "task": task_check(options),
    }
    return {name: value for name, value in found.items() if value is not None}


def _time_limit(seconds: float | None) -> Limit | None:
    """Return the limit of a search, counted from the start of the command."""
    if seconds is None:
        return None
    from octavo.tuning.deadline import Limit

    return Limit(seconds, began=guarded.BEGUN)


def with_gates(answer: Answer, gates: Sequence[Gate]) -> Answer:
    """Return an answer with a line for each gate, its JSON, and the exit code where one failed."""
    if not gates:
        return answer
    several = len({gate.model for gate in gates}) > 1
    names = [f"{gate.model}: " if several else "" for gate in gates]
    lines = "\n".join(f"  {name}{gate}" for name, gate in zip(names, gates, strict=True))
    missed, open_ = (
        [
            f"{name}{flag(gate.name)} {gate.limit}, measured {gate.measured}"
            for name, gate in zip(names, gates, strict=True)
            if not gate.passed and gate.decided is decided
        ]
        for decided in (True, False)
    )
    code, complaint = answer.code, answer.complaint
    if missed:
        code, complaint = NOT_MET, f"requirement not met: {'; '.join(missed)}."
    elif open_ and code in (0, UNDECIDED):
        code, complaint = UNDECIDED, f"requirement undecided: {'; '.join(open_)}; {_MEASURE}."
    return replace(
        answer,
        text=f"{answer.text}\n\nrequirements:\n{lines}",
        data={**answer.data, "gates": [gate.to_dict() for gate in gates]},
        code=code,
        complaint=complaint,
    )
