"""The verbs as the worker runs them: each ends in text, plain data and the files that it wrote."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.core.outputs import changed_files, file_states
from octavo.isolation.child import Emit

Answer = dict[str, Any]
_Verb = Callable[[tuple[Any, ...], dict[str, Any]], Answer]


def work(call: Mapping[str, Any], emit: Emit) -> Answer:
    """Carry out ``{"verb", "arguments", "options", "progress"}``."""
    options = dict(call["options"])
    if call["progress"]:
        options["progress"] = lambda phase, done, total: emit(
            {"kind": "progress", "phase": phase, "done": done, "total": total}
        )
    special = _SPECIAL.get(call["verb"])
    return special(call["arguments"], options) if special is not None else _plain(call, options)


def _plain(call: Mapping[str, Any], options: dict[str, Any]) -> Answer:
    """Run a verb whose result says all about itself; with an ``output`` that is what it has written."""
    import octavo
    from octavo.result import written_files

    output = options.get("output")
    before = file_states(written_files(output, may_miss=True).values())
    result = getattr(octavo, call["verb"])(*call["arguments"], **options)
    return _answer(str(result), result.to_dict(), changed_files(before))


def _prepare(arguments: tuple[Any, ...], options: dict[str, Any]) -> Answer:
    import octavo

    output = options.pop("output", None)
    external = options.pop("external_data", None)
    made = octavo.prepare(*arguments, **options)
    written = made.save(output, external_data=external) if output is not None else []
    return _answer(str(made), {}, written)


def _calibrate(arguments: tuple[Any, ...], options: dict[str, Any]) -> Answer:
    import octavo
    from octavo.reporting.statistics_tables import stats_dict, stats_line

    model, needs, *rest = arguments
    made = octavo.calibrate(model, needs if needs is not None else octavo.plan(model), *rest, **options)
    return _answer(stats_line(made), stats_dict(made), [options["output"]])


def _plan(arguments: tuple[Any, ...], options: dict[str, Any]) -> Answer:
    import octavo
    from octavo.reporting.plan_tables import plan_table

    output = options.pop("output", None)
    made = octavo.plan(*arguments, **options)
    if output is not None:
        made.save(output)
    return _answer(plan_table(made), made.to_dict(), [output] if output is not None else [])


def _inspect(arguments: tuple[Any, ...], options: dict[str, Any]) -> Answer:
    import octavo
    from octavo.reporting.inspection import inspection_table

    found = octavo.inspect(*arguments, **options)
    return _answer(inspection_table(found), found.to_dict(), [])


def _answer(text: str, data: Mapping[str, Any], written: Sequence[Any]) -> Answer:
    return {"text": text, "data": dict(data), "written": [str(Path(path).absolute()) for path in written]}


_SPECIAL: Mapping[str, _Verb] = {
    "prepare": _prepare,
    "calibrate": _calibrate,
    "plan": _plan,
    "inspect": _inspect,
}
