"""Which nodes a recipe means: names, globs, ``re:…``, ``op:…``, ``between:a,b`` and callables.

A pattern that matches nothing is an error: it is a typing mistake, or meant for another model.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from octavo.core.linear_regex import LinearRegex
from octavo.core.recipe import Pattern, Placement, Recipe
from octavo.errors import RecipeError, closest
from octavo.model.graph.query import subgraphs
from octavo.ops import RULES

_MOST_TRIES = 1 << 24  # of patterns on nodes: seconds for globs, more for expressions


def check_tries(patterns: int, names: int, what: str) -> None:
    """Refuse more patterns than can be tried on all names; a name itself is looked up, and costs nothing."""
    if patterns * names > _MOST_TRIES:
        raise RecipeError(f"{patterns} patterns for {names} {what} take too long; give fewer, or names.")


class Selection:
    """The nodes that a recipe lets in, and why the others are out.

    ``original`` are the op types of the nodes before preparation, by name: to exclude one that has been
    folded into another is no mistake, to ask for one is.
    """

    def __init__(
        self, nodes: Sequence[ir.Node], recipe: Recipe, original: Mapping[str, str] | None = None
    ) -> None:
        self._nodes = nodes
        self._by_name = {node.name or "": node for node in nodes}
        self._op_of = {name: node.op_type for name, node in self._by_name.items()}
        self._original = original or {}
        wanted = (*recipe.include, *recipe.exclude, *recipe.dynamic_nodes)
        check_tries(sum(callable(one) or one not in self._by_name for one in wanted), len(nodes), "nodes")
        self._op_types = frozenset(recipe.op_types) if recipe.op_types is not None else None
        if self._op_types is not None and recipe.placement is not Placement.LISTED:
            self._check_op_types(self._op_types)
        self._included = self._all(recipe.include) if recipe.include else None
        self._excluded = {n: p for p in recipe.exclude for n in self.matches(p, folded=True)}
        self.dynamic_nodes = frozenset(self._all(recipe.dynamic_nodes))

    def is_excluded(self, node: ir.Node) -> bool:
        """Whether a pattern takes this very node out."""
        return (node.name or "") in self._excluded

    def refusal(self, node: ir.Node) -> str | None:
        """Return why the recipe leaves this node out, or None where it lets it in."""
        name = node.name or ""
        if name in self._excluded:
            pattern = self._excluded[name]
            return "excluded by its name" if pattern == name else f"excluded by {_text(pattern)}"
        if self._included is not None and name not in self._included:
            return "not among the requested nodes"
        if self._op_types is not None and not self._op_types:
            return "nothing is to be quantized"
        if self._op_types is not None and node.op_type not in self._op_types:
            return "not among the requested op types"
        return None

    def matches(self, pattern: Pattern, *, folded: bool = False) -> set[str]:
        """Return the names of the nodes that a pattern means; none is an error, unless they were folded."""
        found = self._find(pattern)
        if found:
            return found
        gone = _named(pattern, self._original) if isinstance(pattern, str) else set()
        if gone and folded:
            return set()
        if gone:
            raise RecipeError(
                f"The pattern {_text(pattern)} matches only nodes that preparation has folded into others,"
                f" such as {min(gone)!r}; name the node they went into, or leave preparation out."
            )
        hint = closest(pattern, self._known(pattern)) if isinstance(pattern, str) else ""
        raise RecipeError(
            f"The pattern {_text(pattern)} matches no node{hint or '.'}"
            " 'octavo plan MODEL' lists the nodes; op types are written op:Conv."
        )

    def _known(self, pattern: str) -> Iterable[str]:
        return {f"op:{node.op_type}" for node in self._nodes} if pattern.startswith("op:") else self._by_name

    def _all(self, patterns: Iterable[Pattern]) -> set[str]:
        return {name for pattern in patterns for name in self.matches(pattern)}

    def _find(self, pattern: Pattern) -> set[str]:
        if callable(pattern):
            return {n for n, node in self._by_name.items() if pattern(node)}
        if pattern.startswith("between:") and pattern not in self._by_name:
            return self._between(pattern, pattern.removeprefix("between:"))
        return _named(pattern, self._op_of)

    def _between(self, pattern: str, rest: str) -> set[str]:
        """Return the nodes on a path from the first tensor to the second."""
        ends = [name.strip() for name in rest.split(",")]
        if len(ends) != 2:
            raise RecipeError(f"The pattern {pattern!r} needs two tensors: between:FIRST,LAST.")
        values = {
            v.name or "": v for node in self._nodes for v in (*node.inputs, *node.outputs) if v is not None
        }
        for name in ends:
            if name not in values:
                raise RecipeError(
                    f"The pattern {pattern!r}: no tensor is named {name!r}{closest(name, values) or '.'}"
                )
        owners = {graph: node for node in self._nodes for graph in subgraphs(node)}
        after = _reach(values[ends[0]], owners, forward=True)
        before = _reach(values[ends[1]], owners, forward=False)
        return {n for n in after & before if n in self._by_name}

    def _check_op_types(self, op_types: Iterable[str]) -> None:
        known = {op for _, op in RULES}
        for op in op_types:
            if op not in known:
                raise RecipeError(
                    f"No rule is known for the op type {op!r}{closest(op, known)} See 'octavo ops'."
                )


def _named(pattern: str, op_of: Mapping[str, str]) -> set[str]:
    """Return the names that a name, a glob, ``re:…`` or ``op:…`` means."""
    if pattern in op_of:
        return {pattern}
    kind, _, rest = pattern.partition(":")
    if kind == "op":
        return {n for n, op in op_of.items() if fnmatch.fnmatchcase(op, rest)}
    if kind == "re":
        expression = LinearRegex(rest)
        return {n for n in op_of if expression.search(n)}
    return {n for n in op_of if fnmatch.fnmatchcase(n, pattern)}


def _reach(value: ir.Value, owners: Mapping[ir.Graph, ir.Node], *, forward: bool) -> set[str]:
    """Return the names of all nodes after (or before) a value, into and out of subgraphs."""
    found: set[str] = set()
    todo = [value]
    while todo:
        here = todo.pop()
        steps = list(here.consumers()) if forward else [n for n in [here.producer()] if n is not None]
        leaves = here.is_graph_output() if forward else here.is_graph_input()
        owner = owners.get(here.graph) if leaves and here.graph is not None else None
        if owner is not None:
            steps.append(owner)
        for node in steps:
            if node.name in found:
                continue
            found.add(node.name or "")
            todo.extend(v for v in (node.outputs if forward else node.inputs) if v is not None)
            for graph in subgraphs(node):
                todo.extend(graph.inputs if forward else graph.outputs)
    return found


def _text(pattern: Pattern) -> str:
    return (
        repr(pattern) if isinstance(pattern, str) else f"the function {getattr(pattern, '__name__', 'given')}"
    )
