"""Trained parameters as entries of a plan, and in types that a style has kernels for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from octavo.core import affine
from octavo.core.plan import Dynamic, Entry, Fixed, Key, Quantized, Shared
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.model import query


def fixed(params: QParams) -> Fixed:
    """Parameters as they are; weights use all integers of their type, as their values are rounded already."""
    scale = tuple(float(s) for s in params.scale.reshape(-1))
    zero = tuple(int(z) for z in params.zero_point.reshape(-1).astype(np.int64))
    return Fixed(Scheme(params.qtype, params.granularity), scale, zero)


def one_kind(trained: Mapping[Key, QParams], model: ir.Model, style: Style) -> dict[Key, QParams]:
    """In the QOperator style one signedness for all activations of 8 bits: its operators take no others.

    The same steps are written in the other signedness by moving zero points by 128.
    """
    eight = {params.qtype for params in trained.values()} & {INT8, UINT8}
    if style is not Style.QOPERATOR or eight != {INT8, UINT8}:
        return dict(trained)
    constants = constants_of(list(query.nodes(model)))
    signed = {params.qtype for key, params in trained.items() if key.tensor not in constants} & eight == {
        INT8
    }
    unsigned = any(p.qtype == UINT8 for key, p in trained.items() if key.tensor in constants)
    if signed and not unsigned:
        return dict(trained)
    return {
        key: affine.narrowed(params, UINT8)
        if params.qtype == INT8 and key.tensor not in constants
        else params
        for key, params in trained.items()
    }


def constants_of(nodes: Sequence[ir.Node]) -> set[str]:
    """The names of the constants that nodes read."""
    read = (v for node in nodes for v in node.inputs if v is not None)
    return {v.name or "" for v in read if query.constant(v) is not None}


class State:
    """A plan in the making: entries so far, and the parameters that are known of them."""

    def __init__(self, nodes: Sequence[ir.Node], trained: Mapping[Key, QParams], style: Style) -> None:
        self.nodes, self.style = nodes, style
        self.known: dict[Key, QParams] = dict(trained)
        self.entries: dict[Key, Entry] = {key: fixed(params) for key, params in trained.items()}
        self.quantized: dict[str, Quantized] = {}
        self.absorbed: dict[str, str] = {}
        self.layers: set[str] = set()  # the Adds that are the biases of linear layers
        self.constants = constants_of(nodes)

    def take(self, node: ir.Node, form: str | None = None, add: str | None = None) -> None:
        """Count a node as quantized, in a form, with the Add that is its bias."""
        self.quantized[node.name or ""] = Quantized(node.op_type, form or node.op_type, bias_add=add)
        if add is not None:
            self.layers.add(add)

    def is_stored(self, key: Key) -> bool:
        """Whether a key is that of a trained constant."""
        return isinstance(self.entries.get(key), Fixed) and key.tensor in self.constants

    def key(self, value: ir.Value | None, node: ir.Node) -> Key | None:
        """The key under which a node reads a value by parameters known ahead of time."""
        name = value.name or "" if value is not None else ""
        for key in (Key(name, node.name), Key(name)):
            if key in self.entries and not isinstance(self.entries[key], Dynamic):
                return key
        return None

    def root(self, key: Key) -> Key:
        """The key whose parameters this one has."""
        while isinstance(entry := self.entries.get(key), Shared):
            key = entry.key
        return key

    def params(self, key: Key | None) -> QParams | None:
        """The trained parameters of a key."""
        return self.known.get(self.root(key)) if key is not None else None
