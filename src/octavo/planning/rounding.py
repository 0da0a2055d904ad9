"""What the integer styles have to say about rounding where no integer operator does it.

An integer operator that makes a value rounds it. A trained value that a float operator makes is rounded by a
pair of QuantizeLinear and DequantizeLinear, as training did, unless integer operators alone read it.
"""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Derived, Dynamic, Key, Shared
from octavo.core.recipe import Style
from octavo.ops import MATMUL_TO_FLOAT
from octavo.planning.trained import State


def drop_idle(state: State) -> None:
    """Shared parameters between two float nodes serve nobody."""
    made, read = _touched(state)
    idle = {
        key
        for key, entry in state.entries.items()
        if isinstance(entry, Shared) and key.tensor not in made and key.tensor not in read
    }
    state.entries = {
        key: Shared(*state.root(key)) if isinstance(entry, Shared) else entry
        for key, entry in state.entries.items()
        if key not in idle
    }


def _touched(state: State) -> tuple[set[str], set[str]]:
    """What integer operators make, in integers, and what they read."""
    taken = [node for node in state.nodes if node.name in state.quantized]
    read = {v.name or "" for node in taken for v in node.inputs if v is not None}
    if state.style is Style.INTEGER:
        return set(), read
    made = {v.name or "" for node in taken for v in node.outputs}
    made -= {v.name or "" for node in taken if _answers_in_float(state, node) for v in node.outputs}
    return made | {n.outputs[0].name or "" for n in state.nodes if n.name in state.absorbed}, read


def _answers_in_float(state: State, node: ir.Node) -> bool:
    return state.quantized[node.name or ""].form == MATMUL_TO_FLOAT.op_type


def rounded(state: State) -> tuple[tuple[str, str | None], ...]:
    """Keys whose rounding float readers have to see, though no integer operator makes the value."""
    made, _ = _touched(state)
    values = {v.name: v for n in state.nodes for v in (*n.inputs, *n.outputs) if v is not None}
    found: list[tuple[str, str | None]] = []
    for key, entry in state.entries.items():
        if key.tensor in state.constants or key.tensor in made or isinstance(entry, Dynamic | Derived):
            continue
        value = values[key.tensor]
        if key.reader is not None:
            if key.reader not in state.quantized:
                found.append((key.tensor, key.reader))
            continue
        floats = [n for n in value.consumers() if n.name not in state.quantized]
        converts = any(Key(key.tensor, n.name) in state.entries for n in value.consumers())
        if value.is_graph_output() or converts or floats:
            found.append((key.tensor, None))
    return tuple(sorted(found, key=lambda key: key[1] is not None))
