"""Products with parameters that the caller gives, by the names of tensors: the plan asks for no data.

Inputs without parameters are quantized while the model runs, where that is allowed. In the QOperator style
each result needs parameters, and a missing one is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.core import affine
from octavo.core.granularity import PerChannel
from octavo.core.plan import Constant, Derived, Dynamic, Entry, Key, Plan, Quantized, Skipped
from octavo.core.qparams import QParams
from octavo.core.qtypes import UINT8
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.model import query
from octavo.ops import rule_of
from octavo.planning.trained import fixed

PRODUCTS = ("Conv", "MatMul")


@dataclass(frozen=True)
class Given:
    """What is known, and what is wanted."""

    style: Style
    weights: Scheme
    inputs: Mapping[str, QParams] = field(default_factory=dict)
    outputs: Mapping[str, QParams] = field(default_factory=dict)
    dynamic: bool = True  # inputs without parameters are quantized while the model runs
    refused: Mapping[str, str] = field(default_factory=dict)  # nodes that stay float, and why


def build(model: ir.Model, given: Given) -> Plan:
    """The plan for every Conv and MatMul of a model."""
    return _Planner(model, given).plan()


class _Planner:
    def __init__(self, model: ir.Model, given: Given) -> None:
        self.model, self.given = model, given
        self.entries: dict[Key, Entry] = {}
        self.quantized: dict[str, Quantized] = {}
        self.reasons: list[Skipped] = []

    def plan(self) -> Plan:
        for node in query.nodes(self.model):
            if node.op_type in PRODUCTS and not node.domain:
                reason = self.given.refused.get(node.name or "") or self._product(node)
                if reason is not None:
                    self.reasons.append(Skipped(node.name or "", node.op_type, reason))
        return Plan(self.given.style, self.entries, self.quantized, skipped=tuple(self.reasons))

    def _product(self, node: ir.Node) -> str | None:
        rule = rule_of(node)
        form = rule.forms.get(self.given.style) if rule is not None else None
        x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if form is None or x is None or w is None or not (query.is_float(x) and query.is_float(w)):
            return "it has no integer spelling for what it reads"
        constant = query.constant(w) is not None
        if bias is not None and query.constant(bias) is None and self.given.style is Style.QOPERATOR:
            return "its bias is computed, and its integer operator takes a constant one"
        x_key = self._activation(x, node)
        w_key = self._weight(w, node) if constant else self._activation(w, node)
        if self.given.style is Style.QOPERATOR:
            self.entries[Key(y.name or "")] = fixed(self._result(y, node))
            if bias is not None:
                self.entries[Key(bias.name or "", node.name)] = Derived(tuple(x_key), tuple(w_key))  # type: ignore[arg-type]
        self.quantized[node.name or ""] = Quantized(node.op_type, form.op_type)
        return None

    def _weight(self, value: ir.Value, node: ir.Node) -> Key:
        scheme = self.given.weights
        if isinstance(scheme.granularity, PerChannel):
            scheme = scheme.but(granularity=PerChannel(0)) if node.op_type == "Conv" else _whole(scheme)
        self.entries[Key(value.name or "", node.name)] = Constant(scheme)
        return Key(value.name or "", node.name)

    def _activation(self, value: ir.Value, node: ir.Node) -> Key:
        whole, edge = Key(value.name or ""), Key(value.name or "", node.name)
        params = self.given.inputs.get(whole.tensor)
        made = value.producer()
        if made is not None and made.name in self.quantized and whole in self.entries:
            result = fixed(_unsigned(params)) if params is not None else None
            if result is None or result == self.entries[whole]:
                return whole
            self.entries[edge] = result
            return edge
        if params is not None:
            self.entries[whole] = fixed(_unsigned(params))
            return whole
        if not self.given.dynamic:
            raise RecipeError(
                f"There are no parameters for tensor {whole.tensor!r}, which node {node.name!r} reads; give"
                " its zero point and scale, quantize inputs while the model runs, or leave the node out."
            )
        self.entries[whole] = Dynamic()
        return whole

    def _result(self, value: ir.Value, node: ir.Node) -> QParams:
        params = self.given.outputs.get(value.name or "")
        if params is None:
            raise RecipeError(
                f"There are no parameters for tensor {value.name!r}, which node {node.name!r} makes; give its"
                " zero point and scale, or leave the node out."
            )
        return _unsigned(params)


def _whole(scheme: Scheme) -> Scheme:
    return Scheme(scheme.qtype, symmetric=scheme.qtype.symmetric_by_default)


def _unsigned(params: QParams) -> QParams:
    """The same steps in uint8, the one type that all kernels take."""
    return affine.narrowed(params, UINT8)
