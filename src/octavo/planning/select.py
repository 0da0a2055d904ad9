"""Which nodes a recipe means: names, globs, ``re:…``, ``op:…``, ``between:a,b`` and callables.

A pattern that matches nothing is an error: it is a typing mistake or a wish for another model.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence

import onnx_ir as ir

from octavo.core.recipe import Pattern, Recipe
from octavo.errors import RecipeError, closest
from octavo.ops import RULES


class Selection:
    """The nodes that a recipe lets in, and why the others are out."""

    def __init__(self, nodes: Sequence[ir.Node], recipe: Recipe) -> None:
        self._nodes = nodes
        self._by_name = {node.name or "": node for node in nodes}
        self._op_types = frozenset(recipe.op_types) if recipe.op_types is not None else None
        if self._op_types is not None:
            self._check_op_types(self._op_types)
        self._included = self._all(recipe.include) if recipe.include else None
        self._excluded = {n: p for p in recipe.exclude for n in self.matches(p)}

    def refusal(self, node: ir.Node) -> str | None:
        """Why the recipe leaves this node out, or None where it lets it in."""
        name = node.name or ""
        if name in self._excluded:
            return f"excluded by {_text(self._excluded[name])}"
        if self._included is not None and name not in self._included:
            return "not among the nodes asked for"
        if self._op_types is not None and node.op_type not in self._op_types:
            return "not among the op types asked for"
        return None

    def matches(self, pattern: Pattern) -> set[str]:
        """The names of the nodes that a pattern means; none is an error."""
        found = self._find(pattern)
        if not found:
            hint = closest(str(pattern), self._by_name) if isinstance(pattern, str) else ""
            raise RecipeError(
                f"The pattern {_text(pattern)} matches no node{hint or '.'}"
                " 'octavo plan MODEL' lists the nodes; op types are written op:Conv."
            )
        return found

    def _all(self, patterns: Iterable[Pattern]) -> set[str]:
        return {name for pattern in patterns for name in self.matches(pattern)}

    def _find(self, pattern: Pattern) -> set[str]:
        if callable(pattern):
            return {n for n, node in self._by_name.items() if pattern(node)}
        if pattern in self._by_name:
            return {pattern}
        kind, colon, rest = pattern.partition(":")
        if colon and kind == "op":
            return {n for n, node in self._by_name.items() if fnmatch.fnmatchcase(node.op_type, rest)}
        if colon and kind == "re":
            try:
                expression = re.compile(rest)
            except re.error as error:
                raise RecipeError(f"The pattern {pattern!r} is no regular expression: {error}.") from error
            return {n for n in self._by_name if expression.search(n)}
        if colon and kind == "between":
            return self._between(pattern, rest)
        return {n for n in self._by_name if fnmatch.fnmatchcase(n, pattern)}

    def _between(self, pattern: str, rest: str) -> set[str]:
        """Nodes on a path from the first tensor to the second."""
        start, _, end = rest.partition(",")
        values = {v.name: v for node in self._nodes for v in (*node.inputs, *node.outputs) if v is not None}
        for name in (start, end):
            if name not in values:
                raise RecipeError(f"The pattern {pattern!r}: no tensor is named {name!r}{closest(name, map(str, values))}")
        after = _reach(values[start], forward=True)
        before = _reach(values[end], forward=False)
        return {n for n in after & before if n in self._by_name}

    def _check_op_types(self, op_types: Iterable[str]) -> None:
        known = {op for _, op in RULES}
        for op in op_types:
            if op not in known:
                raise RecipeError(f"No rule is known for the op type {op!r}{closest(op, known)} See 'octavo ops'.")


def _reach(value: ir.Value, *, forward: bool) -> set[str]:
    """Names of all nodes after (or before) a value."""
    found: set[str] = set()
    todo = [value]
    while todo:
        here = todo.pop()
        producer = here.producer()
        steps = here.consumers() if forward else ([producer] if producer is not None else [])
        for node in steps:
            if node.name not in found:
                found.add(node.name or "")
                todo.extend(v for v in (node.outputs if forward else node.inputs) if v is not None)
    return found


def _text(pattern: Pattern) -> str:
    return repr(pattern) if isinstance(pattern, str) else f"the function {getattr(pattern, '__name__', 'given')}"
