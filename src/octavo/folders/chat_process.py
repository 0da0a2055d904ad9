"""A process that renders conversations with the chat template of a folder, which may come from anybody.

Run as a script, it reads a line of JSON after the other: the template and its special tokens, then
conversations. Each is answered by a line: a text, or what went wrong. A template is a program: here it has
neither files nor time nor memory without end, whatever it does.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

LONGEST_TEXT = 1 << 24  # characters of one conversation
SECONDS = 3.0  # of processor time for one conversation
_MEMORY = 1 << 30  # bytes beyond what the process has when it starts


def _limit() -> None:
    with contextlib.suppress(ImportError, OSError, ValueError):  # a system without such limits
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        room = pages * resource.getpagesize() + _MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (room, room))


def _set_timer(seconds: float) -> None:
    """Ends the process after so much processor time, in native code too; 0 takes it back."""
    with contextlib.suppress(ImportError, AttributeError):
        import signal

        signal.setitimer(signal.ITIMER_PROF, seconds)


def _refuse(message: object) -> None:
    """What templates call where a conversation is not as they need it."""
    raise ValueError(str(message))


def _compiled(source: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(source)


def _answer(template: Any, conversation: list[Any], tokens: dict[str, str]) -> dict[str, str]:
    text = template.render(messages=conversation, add_generation_prompt=False, **tokens)
    if len(text) > LONGEST_TEXT:
        return {"error": f"it makes {len(text)} characters of it"}
    return {"text": text}


def main() -> int:
    """Answer until there is nothing more to read."""
    _limit()
    template: Any = None
    tokens: dict[str, str] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        _set_timer(SECONDS)
        try:
            if template is None:
                template, tokens = _compiled(asked["template"]), asked["tokens"]
                answer = {"text": ""}
            else:
                answer = _answer(template, asked, tokens)
        except Exception as error:  # a template may fail in any way
            answer = {"error": f"{error}" or type(error).__name__}
        _set_timer(0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
