"""Regular expressions of others, matched in linear time: a recipe's pattern can't make a run hang.

Python's engine backtracks, and ``(a+)+$`` takes it time that doubles with each letter. Here an expression in
Python's syntax becomes a program for a set of states that all advance together, so a text costs its length
times the size of the program, whatever both are. What such a set can't express (references to groups) and
looking behind is refused; looking ahead is matched anew at each position, within a budget.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import RecipeError

_PARSER: Any = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_MOST_INSTRUCTIONS = 2_000  # of one expression: repetitions with counts are written out
_MOST_STEPS = 50_000_000  # of one expression over all texts: some seconds

_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda letter: letter.isalnum() or letter == "_",
}


@dataclass
class _Instruction:
    """What a state does: test one letter, or hold at a position, and which states come after."""

    after: list[int]
    letter: Callable[[str], bool] | None = None
    holds: Callable[[str, int], bool] | None = None


@dataclass
class LinearRegex:
    """An expression; :meth:`search` says whether a text contains a match."""

    source: str
    _program: list[_Instruction] = field(default_factory=list)
    _steps: int = 0

    def __post_init__(self) -> None:
        try:
            re.compile(self.source)
            tree = _PARSER.parse(self.source)
        except (re.error, OverflowError, RecursionError) as error:
            raise RecipeError(
                f"The pattern 're:{self.source[:200]}' is not a valid regular expression: {error};"
                " correct it, or write a name or a glob."
            ) from error
        self._start = self._sequence(tree, tree.state.flags, self._add([]))

    def search(self, text: str) -> bool:
        """Whether the expression matches somewhere in the text."""
        return self._run(self._start, text, 0, anchored=False)

    def _run(self, start: int, text: str, begin: int, *, anchored: bool) -> bool:
        states: set[int] = set()
        for at in range(begin, len(text) + 1):
            if not anchored or at == begin:
                states.add(start)
            reached = self._closure(states, text, at)
            if 0 in reached:
                return True
            self._steps += len(reached) + 1
            if self._steps > _MOST_STEPS:
                raise RecipeError(
                    f"The pattern 're:{self.source[:200]}' takes too long to match; simplify it."
                )
            if at == len(text) or (anchored and not reached):
                return False
            states = set()
            for state in reached:
                test = self._program[state].letter
                if test is not None and test(text[at]):
                    states.update(self._program[state].after)
        return False

    def _closure(self, states: Iterable[int], text: str, at: int) -> set[int]:
        """Return all states that are reached without reading a letter; 0 is the end of the expression."""
        found: set[int] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state in found:
                continue
            found.add(state)
            one = self._program[state]
            if one.letter is None and (one.holds is None or one.holds(text, at)):
                todo.extend(one.after)
        return found

    def _add(
        self,
        after: list[int],
        letter: Callable[[str], bool] | None = None,
        holds: Callable[[str, int], bool] | None = None,
    ) -> int:
        if len(self._program) >= _MOST_INSTRUCTIONS:
            raise RecipeError(f"The pattern 're:{self.source[:200]}' is too large; simplify it.")
        self._program.append(_Instruction(after, letter, holds))
        return len(self._program) - 1

    def _sequence(self, items: Any, flags: int, after: int) -> int:
        """Return the first state of a sequence that leads to ``after``; built from its end."""
        for operator, value in reversed(list(items)):
            after = self._item(str(operator), value, flags, after)
        return after

    def _item(self, operator: str, value: Any, flags: int, after: int) -> int:
        match operator:
            case "LITERAL" | "NOT_LITERAL" | "IN" | "ANY" | "RANGE" | "CATEGORY":
                return self._add([after], letter=_letter(operator, value, flags))
            case "SUBPATTERN":
                _, added, removed, inner = value
                return self._sequence(inner, (flags | added) & ~removed, after)
            case "BRANCH":
                return self._add([self._sequence(one, flags, after) for one in value[1]])
            case "MAX_REPEAT" | "MIN_REPEAT":
                return self._repeat(value, flags, after)
            case "AT":
                return self._add([after], holds=_position(str(value), flags))
            case "ASSERT" | "ASSERT_NOT" if value[0] > 0:
                return self._ahead(value[1], flags, after, wanted=operator == "ASSERT")
        raise RecipeError(
            f"The pattern 're:{self.source[:200]}' refers to what was matched before or looks behind, which "
            "is not supported; write it without (?<…), (?>…) and \\1."
        )

    def _repeat(self, value: tuple[Any, Any, Any], flags: int, after: int) -> int:
        least, most, inner = value
        if most is _PARSER.MAXREPEAT:
            again = self._add([after])
            self._program[again].after.append(self._sequence(inner, flags, again))
            after = again
        else:
            end = after
            for _ in range(int(most) - int(least)):
                after = self._add([self._sequence(inner, flags, after), end])
        for _ in range(int(least)):
            after = self._sequence(inner, flags, after)
        return after

    def _ahead(self, inner: Any, flags: int, after: int, *, wanted: bool) -> int:
        start = self._sequence(inner, flags, 0)

        def holds(text: str, at: int) -> bool:
            return self._run(start, text, at, anchored=True) is wanted

        return self._add([after], holds=holds)


def _letter(operator: str, value: Any, flags: int) -> Callable[[str], bool]:
    """Compile the test of one letter."""
    plain = _plain_letter(operator, value, flags)
    if flags & re.IGNORECASE and operator != "ANY":
        return lambda letter: plain(letter) or plain(letter.lower()) or plain(letter.upper())
    return plain


def _plain_letter(operator: str, value: Any, flags: int) -> Callable[[str], bool]:
    match operator:
        case "LITERAL":
            return lambda letter: letter == chr(value)
        case "NOT_LITERAL":
            return lambda letter: letter != chr(value)
        case "ANY":
            return lambda letter: letter != "\n" or bool(flags & re.DOTALL)
        case "RANGE":
            return lambda letter: value[0] <= ord(letter) <= value[1]
        case "CATEGORY":
            name = str(value).removeprefix("CATEGORY_").removeprefix("UNI_")
            test, wanted = _CATEGORIES[name.removeprefix("NOT_")], not name.startswith("NOT_")
            return lambda letter: test(letter) is wanted
    negated = bool(value) and str(value[0][0]) == "NEGATE"
    tests = [_plain_letter(str(kind), one, flags) for kind, one in value[1 if negated else 0 :]]
    return lambda letter: any(test(letter) for test in tests) is not negated


def _position(name: str, flags: int) -> Callable[[str, int], bool]:
    """Return the test of a position: the text before and after it."""
    lines = bool(flags & re.MULTILINE)
    is_word = _CATEGORIES["WORD"]

    def begins(text: str, at: int) -> bool:
        return at == 0 or (lines and text[at - 1] == "\n")

    def ends(text: str, at: int) -> bool:
        return text[at:] in ("", "\n") or (lines and text[at] == "\n")

    def boundary(text: str, at: int) -> bool:
        return (at > 0 and is_word(text[at - 1])) != (at < len(text) and is_word(text[at]))

    found: dict[str, Callable[[str, int], bool]] = {
        "AT_BEGINNING": begins,
        "AT_BEGINNING_STRING": lambda text, at: at == 0,
        "AT_END": ends,
        "AT_END_STRING": lambda text, at: at == len(text),
        "AT_BOUNDARY": boundary,
        "AT_NON_BOUNDARY": lambda text, at: not boundary(text, at),
    }
    return found[name]
