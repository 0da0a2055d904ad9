"""The entry point: parse, run a verb, print its answer, turn errors into a sentence and an exit code.

====  ==========================================================
0     the promise held: the result was written, and verified
1     the model, the data or the output is at fault
2     the request is wrong: a flag, a recipe, a pattern
70    an error nobody foresaw
130   interrupted
====  ==========================================================
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from octavo._version import __version__
from octavo.cli import guarded, isolated
from octavo.cli.console import Console
from octavo.cli.data import separate_data
from octavo.cli.verb import Answer, Verb, as_json_text
from octavo.core.lazy import load_entry, uncollected
from octavo.errors import OctavoError, OutputError, RecipeError, closest

_VERBS = (  # modules of octavo.cli with a VERB, in the order in which they are listed
    "quantize",
    "qat",
    "plan",
    "calibrate",
    "stats",
    "doctor",
    "compare",
    "evaluate",
    "bench",
    "report",
    "prepare",
    "import_gguf",
    "inspect",
    "lint",
    "ops",
    "targets",
    "steps",
)
with uncollected():
    VERBS: tuple[Verb, ...] = tuple(load_entry("octavo.cli", f"{module}:VERB") for module in _VERBS)

FAULT, WRONG_REQUEST, UNFORESEEN, INTERRUPTED, BROKEN_PIPE = 1, 2, 70, 130, 141  # exit codes; 128 + signal
_STOPPED = "interrupted; nothing half-written is left behind."

_EPILOG = """\
examples:
  octavo quantize model.onnx --data calib.npz        writes model.int8.onnx
  octavo evaluate model.onnx model.int8.onnx --data val/ --preprocess imagenet
  octavo bench model.onnx model.int8.onnx

'octavo VERB --help' explains a verb, with examples.
"""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are raised like any other wrong request."""

    def error(self, message: str) -> NoReturn:
        from octavo.cli.wording import wrong_request

        raise RecipeError(wrong_request(message, self))


def parser(arguments: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Return the command line; with arguments, verbs that they do not mention have no flags: it is faster."""
    common = _Parser(add_help=False)
    group = common.add_argument_group("common")
    for flag, text in (
        ("--json", "answer in JSON on standard output, with nothing else there"),
        ("--quiet", "no remarks and no progress; nothing at all from verbs that write a file"),
        ("--debug", "show tracebacks"),
        (
            "--isolate",
            "run in a process of its own, with limits and without network: for untrusted files",
        ),
    ):
        group.add_argument(flag, action="store_true", default=argparse.SUPPRESS, help=text)
    group.add_argument(
        "--limits",
        metavar="LIMITS",
        default=argparse.SUPPRESS,
        help="isolate, with these limits, for example memory=4GiB,seconds=600,file-size=8GiB",
    )
    top = _Parser(
        prog="octavo",
        description="Quantize ONNX models: smaller and faster, with measured accuracy.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common],
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"octavo {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs", parser_class=_Parser)
    for verb in VERBS:
        verb.add_to(verbs, [common], with_flags=arguments is None or verb.name in arguments)
    return top


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Arguments as options; an unknown flag is an error that names the closest one."""
    arguments = separate_data([_with_home(word) for word in arguments])
    top = parser(arguments)
    _refuse_unknown_verb(arguments)
    options, unknown = top.parse_known_args(arguments)
    if options.verb is None and not unknown:
        raise RecipeError(
            "say what to do: " + ", ".join(verb.name for verb in VERBS) + "; see 'octavo --help'."
        )
    if unknown:
        known = _flags(top, options.verb)
        flag = unknown[0].partition("=")[0]
        place = f"octavo {options.verb}" if options.verb else "octavo"
        if flag.startswith("-"):
            hint = closest(flag, _long(flag, known) or known)
        else:
            hint = "; data is given with --data." if "--data" in known else ""
        raise RecipeError(f"{place} does not take {unknown[0]!r}{hint or '.'} See '{place} --help'.")
    for name in ("json", "quiet", "debug", "isolate"):
        setattr(options, name, getattr(options, name, False))
    options.limits = getattr(options, "limits", None)
    options.command = list(arguments)
    return options


def _long(flag: str, known: Sequence[str]) -> list[str]:
    """Return the flags that one letter may stand for."""
    return [name for name in known if name.startswith(f"-{flag}")] if len(flag) == len("-x") else []


def _with_home(word: str) -> str:
    """Put the home folder where the shell left its ``~``: in quotes, or behind a flag's ``=``."""
    flag, equals, path = word.partition("=") if word.startswith("--") else ("", "", word)
    return f"{flag}{equals}{Path(path).expanduser()}" if path.startswith("~/") else word


def _refuse_unknown_verb(arguments: Sequence[str]) -> None:
    """Raise where the first word is not a verb, with the verb that is closest to it."""
    words = [word for word in arguments if not word.startswith("-")]
    names = [verb.name for verb in VERBS]
    if not words or words[0] in names or set(names) & set(words):
        return
    hint = closest(words[0], names, 1) or f"; the verbs are {', '.join(names)}."
    raise RecipeError(f"There is no verb {words[0]!r}{hint} See 'octavo --help'.")


def _flags(top: argparse.ArgumentParser, verb: str | None) -> list[str]:
    parsers = [top]
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction) and verb in action.choices:
            parsers.append(action.choices[verb])
    return [flag for one in parsers for action in one._actions for flag in action.option_strings]


def _refuse_empty(options: argparse.Namespace) -> None:
    """Raise for a path or name without a character: a variable of the shell that is not set, as a rule."""
    for name, value in vars(options).items():
        if "" in (value if isinstance(value, list) else [value]):
            shown = name.upper() if name in ("model", "first", "second") else f"--{name.replace('_', '-')}"
            raise RecipeError(f"{shown} is empty; give a value, or check the variable that it comes from.")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    as_json, debug = "--json" in given, "--debug" in given
    console = Console(quiet="--quiet" in given)
    try:
        if given[:1] == ["help"]:  # octavo help, octavo help VERB
            given = [*given[1:2], "--help"]
        options = parse(given)
        _refuse_empty(options)
        verb = next(one for one in VERBS if one.name == options.verb)
        # Libraries that print must not get between a machine and its JSON.
        with contextlib.redirect_stdout(sys.stderr):
            if options.isolate or options.limits is not None:
                answer = isolated.run(given, options, console)
            else:
                answer = verb.run(options, console)
        console.end_phase()
        if as_json or not (options.quiet and verb.makes_file):
            _print(answer, as_json)
        if answer.complaint:
            _complain(answer.complaint)
    except BrokenPipeError:
        return _closed_pipe()
    except KeyboardInterrupt:
        console.end_phase()
        _complain(_STOPPED)
        return INTERRUPTED
    except MemoryError as error:
        console.end_phase()
        why = f"Memory ran out ({error})" if str(error) else "Memory ran out"
        advice = "use fewer --samples, fewer --workers or a larger machine"
        return _failed(OctavoError(f"{why}; the outputs are as before: {advice}."), FAULT, as_json, debug)
    except Exception as error:
        console.end_phase()
        if (asked := guarded.stopped()) is not None:  # a library made another error of it
            if asked == INTERRUPTED:
                _complain(_STOPPED)
            return asked
        error = _foreseen(error)
        return _failed(error, _code_of(error), as_json, debug, _flags_of(given))
    return answer.code


def _foreseen(error: Exception) -> Exception:
    """Return what is said of a path that no file can have, and of a working folder that is gone."""
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return RecipeError(f"{error.filename} is no path: {error.strerror}; give a shorter one.")
    if isinstance(error, FileNotFoundError):
        try:
            Path.cwd()
        except FileNotFoundError:
            return OctavoError("The working folder was removed; change to another one, and run this again.")
    return error


def _code_of(error: Exception) -> int:
    if isinstance(error, RecipeError):
        return WRONG_REQUEST
    return FAULT if isinstance(error, OctavoError) else UNFORESEEN


def _flags_of(given: Sequence[str]) -> list[str]:
    """Return the flags of the verb that a command line names."""
    named = next((word for word in given if any(word == verb.name for verb in VERBS)), None)
    return _flags(parser(given), named)


def _failed(error: Exception, code: int, as_json: bool, debug: bool, flags: Sequence[str] = ()) -> int:
    """Say what went wrong, and return the exit code."""
    from octavo.cli.wording import in_flags
    from octavo.reporting.text import one_line

    message = in_flags(one_line(error), flags)
    if code == UNFORESEEN:
        advice = "this is a defect, please report it" if debug else "run again with --debug for the details"
        message = f"unexpected error: {type(error).__name__}: {message or 'no message'}; {advice}."
    if debug:
        import traceback

        traceback.print_exception(error)
    _complain(message)
    if as_json:
        with contextlib.suppress(OSError):  # what was written is not read, or finds no room
            _write_json({"error": {"type": type(error).__name__, "message": message, "exit_code": code}})
    return code


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):  # such as a log on a full disk: the exit code still tells
        print(f"octavo: {message}", file=sys.stderr)


def _print(answer: Answer, as_json: bool) -> None:
    try:
        if as_json:
            _write_json(answer.data)
        else:
            _write_text(answer.text)
    except BrokenPipeError:
        raise
    except OSError as error:
        _closed_pipe()
        raise OutputError(
            f"The answer can't be written to standard output: {error.strerror}; files that were written stay."
        ) from error


def _write_text(answer: str) -> None:
    from octavo.reporting.text import printable

    text = printable(answer)
    if sys.stdout.isatty():
        from octavo.cli.console import show

        show(text)
    else:
        print(text, flush=True)


def _write_json(data: dict[str, Any]) -> None:
    print(as_json_text(data), flush=True)


def _closed_pipe() -> int:
    """Say nothing more, not even when the interpreter ends: the output has no reader, or no room."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE


def _open_streams() -> None:
    """Connect standard streams that are closed with the null device.

    Otherwise the next files that are opened take their places, and what a library prints goes into them.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
            setattr(sys, name, os.fdopen(opened, "r" if number == 0 else "w"))


def entry() -> NoReturn:
    """Run the console script."""
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    given = sys.argv[1:]
    try:
        if guarded.is_wanted(given):
            guarded.split(given)
        else:
            guarded.accept_signals()
    except OctavoError as error:
        sys.exit(_failed(error, FAULT, "--json" in given, debug=False))
    sys.exit(main(given))
