"""``--isolate``: the whole verb in a separate process with limits, which returns its output."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.cli.console import Console
from octavo.cli.verb import Answer

_ENTRY = "octavo.cli.isolated:work"
OUTPUTS = ("output", "report", "fix", "propose", "card")


def run(arguments: Sequence[str], options: argparse.Namespace, console: Console) -> Answer:
    """Run a command isolated."""
    from octavo.isolation.handle import progress_of, refuse_network
    from octavo.isolation.limits import Limits
    from octavo.isolation.parent import Call
    from octavo.isolation.parent import run as run_isolated

    refuse_network(getattr(options, "engine", None))
    limits = Limits.parse(options.limits or "")

    def listen(message: dict[str, Any]) -> None:
        match message["kind"]:
            case "progress":
                console.progress(*progress_of(message))
            case "note":
                console.note(str(message.get("text", "")))
            case "isolation":
                _say_what_is_missing(message, console)

    places = [getattr(options, name, None) for name in OUTPUTS]
    folders = tuple(Path(place).absolute().parent for place in places if isinstance(place, str))
    call = Call(_ENTRY, {"arguments": list(arguments)}, folders, options.debug)
    answer = run_isolated(call, limits, listen)
    data, code = answer.get("data"), answer.get("code")
    return Answer(
        str(answer.get("text", "")),
        data if isinstance(data, dict) else {},
        code if isinstance(code, int) else 70,
        str(answer.get("complaint", "")),
    )


def _say_what_is_missing(message: Mapping[str, Any], console: Console) -> None:
    if message.get("network") is not False:
        console.note("isolated, but this system does not let a process give up the network")
    if message.get("files") is not False:
        console.note(
            "isolated, but this system does not keep a process from writing elsewhere (Landlock, Linux 6.2)"
        )


def work(call: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Run the worker's side of an isolated command."""
    from octavo.cli.main import VERBS, parse

    options = parse(call["arguments"])
    verb = next(one for one in VERBS if one.name == options.verb)
    answer = verb.run(options, _Remote(emit, options.quiet))
    return {
        "text": answer.text,
        "data": answer.data if options.json else {},
        "code": answer.code,
        "complaint": answer.complaint,
    }


class _Remote(Console):
    """A console at the other end."""

    def __init__(self, emit: Callable[[dict[str, Any]], None], quiet: bool) -> None:
        super().__init__(quiet=quiet)
        self._emit = emit

    def note(self, text: str) -> None:
        if not self.quiet:
            self._emit({"kind": "note", "text": text})

    def progress(self, phase: str, done: int, total: int | None) -> None:
        if not self.quiet:
            self._emit({"kind": "progress", "phase": phase, "done": done, "total": total})
