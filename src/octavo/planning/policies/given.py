"""The policy of parameters that the caller gives, by the names of tensors: the plan needs no data.

Inputs without parameters are quantized while the model runs, where that is allowed. In the QOperator style
each result needs parameters, and a missing one is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

from octavo.core import affine
from octavo.core.granularity import PerChannel
from octavo.core.plan import Constant, Dynamic, Fixed, Key
from octavo.core.qparams import QParams
from octavo.core.qtypes import UINT8
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.model.graph import query
from octavo.ops import OpRule
from octavo.ops.listed import GIVEN
from octavo.planning import biases
from octavo.planning.policies.policy import Policy
from octavo.planning.policies.trained import fixed
from octavo.planning.refusals import no_lowering
from octavo.planning.state import name_of
from octavo.targets import Target


@dataclass(frozen=True)
class Given:
    """What the caller knows and requests."""

    style: Style
    weights: Scheme
    inputs: Mapping[str, QParams] = field(default_factory=dict)
    outputs: Mapping[str, QParams] = field(default_factory=dict)
    dynamic: bool = True  # inputs without parameters are quantized while the model runs
    refused: Mapping[str, str] = field(default_factory=dict)  # nodes that stay float, and why


class GivenPolicy(Policy):
    """Quantizes every Conv and MatMul."""

    def __init__(self, given: Given, target: Target) -> None:
        super().__init__(Recipe(given.weights, Scheme(UINT8), given.style, op_types=GIVEN), target)
        self.given = given

    def refusal(self, node: ir.Node) -> str | None:
        """Return the reason that the caller gives."""
        return self.given.refused.get(node.name or "")

    def linear(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize an operator by the parameters of its input and output."""
        lowering, state = rule.lowerings.get(self.style), self.state
        x, w, y = node.inputs[0], node.inputs[1], node.outputs[0]
        bias = query.operand(node, 2)
        if lowering is None or x is None or w is None or not (query.is_float(x) and query.is_float(w)):
            return no_lowering(self.style)
        whole = self.style is Style.QOPERATOR
        if bias is not None and query.constant(bias) is None and whole:
            return "its bias is not constant, as its integer operator needs it"
        self._activation(x, node)
        if query.constant(w) is None:
            self._activation(w, node)
        else:
            state.place(w, Constant(self._weight_scheme(node)), node)
        if whole:
            state.place(y, fixed(_unsigned(self._result(y, node))))
        if whole and bias is not None:
            biases.place(state, bias, node, node)
        state.take(node, lowering)
        return None

    def _weight_scheme(self, node: ir.Node) -> Scheme:
        scheme = self.given.weights
        if not isinstance(scheme.granularity, PerChannel):
            return scheme
        if node.op_type == "Conv":
            return scheme.but(granularity=PerChannel(0))
        return Scheme(scheme.qtype, symmetric=scheme.qtype.symmetric_by_default)

    def _activation(self, value: ir.Value, node: ir.Node) -> None:
        """Quantize an input by its parameters, also where its producer has quantized it by others."""
        params, maker, whole = self.given.inputs.get(name_of(value)), value.producer(), Key(name_of(value))
        entry: Fixed | Dynamic | None = fixed(_unsigned(params)) if params is not None else None
        if maker is not None and maker.name in self.state.quantized and whole in self.state.entries:
            if entry is not None and entry != self.state.entries[whole]:
                self.state.place(value, entry, node)
            return
        if entry is None and not self.given.dynamic:
            raise RecipeError(
                f"There are no parameters for tensor {whole.tensor!r}, which node {node.name!r} reads; give"
                " its zero point and scale, quantize inputs while the model runs, or exclude the node."
            )
        self.state.place(value, entry or Dynamic())

    def _result(self, value: ir.Value, node: ir.Node) -> QParams:
        params = self.given.outputs.get(name_of(value))
        if params is None:
            raise RecipeError(
                f"There are no parameters for tensor {value.name!r}, which node {node.name!r} makes; give its"
                " zero point and scale, or exclude the node."
            )
        return params


def _unsigned(params: QParams) -> QParams:
    """Return the same steps in uint8, the one type that all kernels take."""
    return affine.narrowed(params, UINT8)
