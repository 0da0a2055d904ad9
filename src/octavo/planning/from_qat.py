"""Trained parameters → Plan: what training fixed stays as it is, what it left open is completed.

Completion costs nothing where it commutes with rounding: data movement, Concat, and clamps pass parameters on
in both directions, biases become int32 with the product of two scales. A result without
trained parameters, which an integer operator needs, is measured where there is data; else a node stays float.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import (
    Constant,
    Dynamic,
    Key,
    Plan,
    Skipped,
)
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import MATMUL_TO_FLOAT, Act, Form, Kind, OpRule, Weight, axis_of, rule_of
from octavo.planning import guards, rounding
from octavo.planning.candidates import is_float_work
from octavo.planning.passing import Passing
from octavo.planning.trained import one_kind
from octavo.planning.trained_results import Results
from octavo.targets import Target

_MASK = 1e30  # magnitudes at which a constant is a mask or an infinity, not a signal
_NO_RANGE = (
    "training gave its result no parameters, and its integer operator needs them; give calibration data"
)


@dataclass(frozen=True)
class Wish:
    """What is to become of a trained model."""

    style: Style
    target: Target
    data: bool = False  # missing ranges can be measured
    refused: Mapping[str, str] = field(default_factory=dict)  # nodes that are to stay float, and why


def build(model: ir.Model, trained: Mapping[Key, QParams], wish: Wish) -> Plan:
    """The plan for a model whose fake quantization was taken out."""
    return _Planner(model, one_kind(trained, model, wish.style), wish).plan()


class _Planner(Results):
    def __init__(self, model: ir.Model, trained: Mapping[Key, QParams], wish: Wish) -> None:
        super().__init__(list(query.nodes(model)), trained, wish.style)
        self.target, self.data, self.refused = wish.target, wish.data, wish.refused
        self.reasons: dict[str, str] = {}

    def plan(self) -> Plan:
        Passing(self.nodes, self.entries, self.known).run()
        for node in self.nodes:
            if node.name not in self.absorbed and node.name not in self.layers:
                self._decide(node)
        if self.style is not Style.QDQ:
            rounding.drop_idle(self)
        skipped = tuple(
            Skipped(n.name or "", n.op_type, self.reasons[n.name or ""])
            for n in self.nodes
            if n.name in self.reasons and is_float_work(n) and n.name not in self.layers
        )
        return Plan(
            style=self.style,
            entries=self.entries,
            nodes=self.quantized,
            absorbed=self.absorbed,
            skipped=skipped,
            guards=self._guards(),
            rounded=rounding.rounded(self) if self.style is not Style.QDQ else (),
        )

    def _guards(self) -> tuple[str, ...]:
        level = {
            v
            for node in self.nodes
            for v in (*node.inputs, *node.outputs)
            if v is not None and Key(v.name or "") in self.entries
        }
        return guards.find(self.nodes, self.quantized, level, self.entries, self.target)

    # ---- one node

    def _decide(self, node: ir.Node) -> None:
        rule = rule_of(node)
        reason = self.refused.get(node.name or "")
        if reason is None:
            reason = "no rule for this operator" if rule is None else self._refusal(node, rule)
        if reason is not None:
            self.reasons[node.name or ""] = reason

    def _refusal(self, node: ir.Node, rule: OpRule) -> str | None:
        match rule.kind:
            case Kind.PRODUCT:
                return self._product(node, rule)
            case Kind.RECURRENT:
                return self._weights_alone(node, rule)
            case Kind.FOLLOWER:
                return self._follower(node, rule)
            case _:
                return self._passenger(node, rule)

    def _product(self, node: ir.Node, rule: OpRule) -> str | None:
        x, w = (self.key(v, node) for v in node.inputs[:2])
        reason = self._wrong_scales(node, rule, x, w)
        if reason is not None and w is not None:
            del self.entries[w], self.known[w]
            return reason
        if w is None:
            return "its weight was trained in float"
        if self.style is Style.INTEGER:
            return self._running(node, rule, x, w)
        if x is None:
            if self.style is not Style.QDQ:
                return "training gave its input no parameters"
            self.take(node)
            return None
        form = rule.forms.get(self.style)
        if self.style is Style.QOPERATOR:
            reason = self._no_kernel(node, rule, form, x, w)
            if reason is not None:
                return reason
        bias = self.bias(node, rule, x, w)
        if bias is not None:
            return bias
        has_output = self.output(
            node, optional=self.style is Style.QDQ or (form is not None and form.float_output)
        )
        if self.style is Style.QOPERATOR and not has_output and node.op_type not in ("MatMul", "Gemm"):
            return _NO_RANGE
        self.take(
            node, self._spelling(node, form, has_output), None if has_output else self.layer(node, x, w)
        )
        return None

    def _wrong_scales(self, node: ir.Node, rule: OpRule, x: Key | None, w: Key | None) -> str | None:
        """Scales that the runtime would read along another axis, or has no kernel for."""
        role = rule.role(1)
        params = self.params(w) if w is not None else None
        if params is None or not isinstance(role, Weight):
            return None
        match params.granularity:
            case PerChannel(axis):
                right = axis_of(role.axis, node)
                if axis != right and node.op_type in ("Conv", "MatMul", "Gemm"):
                    return f"its weight has scales along axis {axis}, and its channels are on axis {right}"
            case PerBlock() if x is not None and params.qtype.bits == 8:
                return "8-bit weights in blocks beside quantized activations fail in the runtime"
            case _:
                pass
        return None

    def _no_kernel(self, node: ir.Node, rule: OpRule, form: Form | None, x: Key, w: Key) -> str | None:
        if form is None:
            return "it has no integer spelling in the qoperator style"
        found = rule.refusal(node) or _form_refusal(form, node)
        kinds = [p.qtype if (p := self.params(key)) is not None else UINT8 for key in (x, w)]
        if not self._one_scale(x):
            found = "its input was trained with a scale for each channel"
        if found is None and not form.takes(*kinds):
            found = f"{form.op_type} has no kernel for {kinds[0]} activations with {kinds[1]} weights"
        return found

    def _running(self, node: ir.Node, rule: OpRule, x: Key | None, w: Key) -> str | None:
        """IntegerOps: the input by its trained parameters, or quantized while the model runs."""
        form, params = rule.forms.get(Style.INTEGER), self.params(w)
        if form is None or node.op_type not in ("Conv", "MatMul", "Gemm") or params is None:
            return "it has no integer spelling in the integer style"
        if query.constant(node.inputs[1]) is None:
            return "its weight is computed, not constant"
        if form.one_zero_point and len(np.unique(params.zero_point.astype(np.int64))) > 1:
            return f"{form.op_type} takes one zero point for all channels"
        found = rule.refusal(node)
        kinds = [p.qtype for key in (x, w) if (p := self.params(key)) is not None]
        if not self._one_scale(x):
            found = "its input was trained with a scale for each channel"
        elif any(kind not in (INT8, UINT8) for kind in kinds):
            found = f"{form.op_type} has no kernel for {' and '.join(str(kind) for kind in kinds)}"
        first = node.inputs[0]
        if found is None and x is None and first is not None:
            self.entries[Key(first.name or "", node.name)] = Dynamic()
        if found is None:
            self.take(node, form.op_type)
        return found

    def _one_scale(self, key: Key | None) -> bool:
        params = self.params(key)
        return params is None or isinstance(params.granularity, PerTensor)

    def _spelling(self, node: ir.Node, form: Form | None, has_output: bool) -> str:
        if self.style is Style.QDQ or form is None:
            return node.op_type
        return form.op_type if has_output or form.float_output else MATMUL_TO_FLOAT.op_type

    def _weights_alone(self, node: ir.Node, rule: OpRule) -> str | None:
        trained = [
            self.key(v, node)
            for i, v in enumerate(node.inputs)
            if v is not None and isinstance(rule.role(i), Weight)
        ]
        if self.style is not Style.QDQ or None in trained:
            return "its weights were trained in float, or have no kernel in this style"
        self.take(node)
        return None

    # ---- between products

    def _follower(self, node: ir.Node, rule: OpRule) -> str | None:
        read = [v for i, v in enumerate(node.inputs) if v is not None and isinstance(rule.role(i), Act)]
        open_ = [v for v in read if self.key(v, node) is None]
        for value in open_:
            if not self._single(value) or len(open_) == len(read):
                return f"training gave its input {value.name!r} no parameters"
        form = rule.forms.get(Style.QOPERATOR)
        if self.style is Style.INTEGER:
            return "only products have an integer spelling"
        if self.style is Style.QOPERATOR:
            reason = rule.refusal(node) or ("it has no integer spelling" if form is None else None)
            reason = reason or self._not_eight(node)
            if reason is not None:
                return reason
            if node.op_type == "Softmax" and not self._has_steps_of_256(node):
                return "its integer kernel has 256 steps from 0 to 1, and it was trained with others"
        if not self.output(node, optional=self.style is Style.QDQ):
            return "training gave its result no parameters"
        self.take(node, form.op_type if form is not None and self.style is Style.QOPERATOR else None)
        kinds = [p.qtype for v in read if (p := self.params(self.key(v, node))) is not None]
        for value in open_:
            self.entries[Key(value.name or "", node.name)] = Constant(Scheme(kinds[0] if kinds else UINT8))
        return None

    def _not_eight(self, node: ir.Node) -> str | None:
        """Integer operators but the plainest take 8 bits, one scale, and the same type for all they read."""
        keys = [self.key(v, node) for v in (*node.inputs, *node.outputs) if v is not None]
        found = [params for key in keys if (params := self.params(key)) is not None]
        if any(p.qtype not in (INT8, UINT8) or not isinstance(p.granularity, PerTensor) for p in found):
            return "it has no integer spelling for types other than 8 bits with one scale"
        return None

    def _has_steps_of_256(self, node: ir.Node) -> bool:
        params = self.params(Key(node.outputs[0].name or ""))
        return (
            params is not None
            and float(params.scale) == 1 / 256
            and int(params.zero_point) == params.qtype.qmin
        )

    def _single(self, value: ir.Value) -> bool:
        """Whether a value is a constant of one number, which is exact in any type."""
        number = query.scalar(value)
        return number is not None and abs(number) < _MASK

    def _passenger(self, node: ir.Node, rule: OpRule) -> str | None:
        first = node.inputs[0]
        before = self.key(first, node)
        if before is None:
            return "training gave its input no parameters"
        if rule.kind is Kind.CLAMP:
            return None if self.style is Style.QDQ else "its integers are clamped as floats"
        outputs = [Key(v.name or "") for v in node.outputs if query.is_float(v)]
        same = all(
            (key in self.entries and self.root(key) == self.root(before))
            or (
                (a := self.params(key)) is not None
                and (b := self.params(before)) is not None
                and a.same_as(b)
            )
            for key in outputs
        )
        form = rule.forms.get(self.style)
        if self.style is Style.INTEGER or not same or (self.style is Style.QOPERATOR and form is None):
            return "its result stays float, or has other parameters than its input"
        if self.style is Style.QOPERATOR:
            reason = rule.refusal(node) or _form_refusal(form, node) or self._not_eight(node)
            if reason is not None:
                return reason
        self.take(node, form.op_type if form is not None else None)
        return None


def _form_refusal(form: Form | None, node: ir.Node) -> str | None:
    return form.refuse(node) if form is not None and form.refuse is not None else None


__all__ = ["Wish", "build"]
