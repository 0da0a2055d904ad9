"""Trained parameters → Plan: what training fixed stays as it is, what it left open is completed.

Completion costs nothing where it commutes with rounding: data movement, Concat, and clamps pass parameters on
in both directions, biases become int32 with the product of two scales. A result that training gave no
parameters, and an integer operator needs them, is measured where there is data; without, the node stays float.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.core import affine
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import (
    Constant,
    Derived,
    Dynamic,
    Entry,
    Fixed,
    Key,
    Measured,
    Plan,
    Quantized,
    Shared,
    Skipped,
)
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.model import query
from octavo.ops import MATMUL_TO_FLOAT, Act, Bias, Form, Kind, OpRule, Weight, axis_of, rule_of
from octavo.ops.hooks import clamp_bounds
from octavo.planning import guards, hazards, weights
from octavo.planning.candidates import is_float_work
from octavo.planning.passing import Passing
from octavo.planning.trained import fixed, one_kind
from octavo.targets import Target

_NO_RANGE = "training gave its result no parameters, and its integer operator needs them; give calibration data"


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


class _Planner:
    def __init__(self, model: ir.Model, trained: Mapping[Key, QParams], wish: Wish) -> None:
        self.wish, self.style = wish, wish.style
        self.nodes = list(query.nodes(model))
        self.known: dict[Key, QParams] = dict(trained)
        self.entries: dict[Key, Entry] = {key: fixed(params) for key, params in trained.items()}
        self.quantized: dict[str, Quantized] = {}
        self.absorbed: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.layers: set[str] = set()  # the Adds that are the biases of linear layers
        self.constants = {v.name for node in self.nodes for v in node.inputs if query.constant(v) is not None}

    def plan(self) -> Plan:
        Passing(self.nodes, self.entries, self.known).run()
        for node in self.nodes:
            if node.name not in self.absorbed and node.name not in self.layers:
                self._decide(node)
        if self.style is not Style.QDQ:
            self._drop_idle()
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
            guards=self._guards() if self.style is Style.QDQ else (),
            rounded=self._rounded() if self.style is not Style.QDQ else (),
        )

    def _guards(self) -> tuple[str, ...]:
        level = {
            v
            for node in self.nodes
            for v in (*node.inputs, *node.outputs)
            if v is not None and Key(v.name or "") in self.entries
        }
        return guards.find(self.nodes, self.quantized, level, self.entries, self.wish.target)

    def _drop_idle(self) -> None:
        """Shared parameters between two float nodes serve nobody."""
        made, read = self._touched()
        idle = {
            key
            for key, entry in self.entries.items()
            if isinstance(entry, Shared) and key.tensor not in made and key.tensor not in read
        }
        self.entries = {
            key: Shared(*self._root(key)) if isinstance(entry, Shared) else entry
            for key, entry in self.entries.items()
            if key not in idle
        }

    def _touched(self) -> tuple[set[str], set[str]]:
        """What integer operators make, in integers, and what they read."""
        taken = [node for node in self.nodes if node.name in self.quantized]
        read = {v.name or "" for node in taken for v in node.inputs if v is not None}
        if self.style is Style.INTEGER:
            return set(), read
        made = {v.name or "" for node in taken for v in node.outputs}
        made -= {v.name or "" for node in taken if self._answers_in_float(node) for v in node.outputs}
        return made | {n.outputs[0].name or "" for n in self.nodes if n.name in self.absorbed}, read

    def _answers_in_float(self, node: ir.Node) -> bool:
        return self.quantized[node.name or ""].form == MATMUL_TO_FLOAT.op_type

    def _rounded(self) -> tuple[tuple[str, str | None], ...]:
        """Keys whose rounding float readers have to see, though no integer operator makes the value."""
        made, _ = self._touched()
        values = {v.name: v for n in self.nodes for v in (*n.inputs, *n.outputs) if v is not None}
        found: list[tuple[str, str | None]] = []
        for key, entry in self.entries.items():
            if key.tensor in self.constants or key.tensor in made or isinstance(entry, Dynamic | Derived):
                continue
            value = values[key.tensor]
            if key.reader is not None:
                if key.reader not in self.quantized:
                    found.append((key.tensor, key.reader))
                continue
            floats = [n for n in value.consumers() if n.name not in self.quantized]
            converts = any(Key(key.tensor, n.name) in self.entries for n in value.consumers())
            if value.is_graph_output() or converts or floats:
                found.append((key.tensor, None))
        return tuple(sorted(found, key=lambda key: key[1] is not None))

    def _is_stored(self, key: Key) -> bool:
        return isinstance(self.entries.get(key), Fixed) and key.tensor in self.constants

    # ---- one node

    def _decide(self, node: ir.Node) -> None:
        rule = rule_of(node)
        reason = self.wish.refused.get(node.name or "")
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
        x, w = (self._key(v, node) for v in node.inputs[:2])
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
            self._take(node)
            return None
        form = rule.forms.get(self.style)
        if self.style is Style.QOPERATOR:
            reason = self._no_kernel(node, rule, form, x, w)
            if reason is not None:
                return reason
        bias = self._bias(node, node, rule, x, w)
        if bias is not None:
            return bias
        has_output = self._output(node, must=self.style is Style.QDQ or (form is not None and form.float_output))
        if self.style is Style.QOPERATOR and not has_output and node.op_type not in ("MatMul", "Gemm"):
            return _NO_RANGE
        self._take(node, self._spelling(node, form, has_output), None if has_output else self._layer(node, x, w))
        return None

    def _wrong_scales(self, node: ir.Node, rule: OpRule, x: Key | None, w: Key | None) -> str | None:
        """Scales that the runtime would read along another axis, or has no kernel for."""
        role = rule.role(1)
        params = self._params(w) if w is not None else None
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
        kinds = [p.qtype if (p := self._params(key)) is not None else UINT8 for key in (x, w)]
        if found is None and not form.takes(*kinds):
            found = f"{form.op_type} has no kernel for {kinds[0]} activations with {kinds[1]} weights"
        return found

    def _running(self, node: ir.Node, rule: OpRule, x: Key | None, w: Key) -> str | None:
        """IntegerOps: the input by its trained parameters, or quantized while the model runs."""
        form, params = rule.forms.get(Style.INTEGER), self._params(w)
        if form is None or node.op_type not in ("Conv", "MatMul", "Gemm") or params is None:
            return "it has no integer spelling in the integer style"
        if query.constant(node.inputs[1]) is None:
            return "its weight is computed, not constant"
        if form.one_zero_point and len(np.unique(params.zero_point.astype(np.int64))) > 1:
            return f"{form.op_type} takes one zero point for all channels"
        found = rule.refusal(node)
        kinds = [p.qtype for key in (x, w) if (p := self._params(key)) is not None]
        if any(kind not in (INT8, UINT8) for kind in kinds):
            found = f"{form.op_type} has no kernel for {' and '.join(str(kind) for kind in kinds)}"
        first = node.inputs[0]
        if found is None and x is None and first is not None:
            self.entries[Key(first.name or "", node.name)] = Dynamic()
        if found is None:
            self._take(node, form.op_type)
        return found

    def _spelling(self, node: ir.Node, form: Form | None, has_output: bool) -> str:
        if self.style is Style.QDQ or form is None:
            return node.op_type
        return form.op_type if has_output or form.float_output else MATMUL_TO_FLOAT.op_type

    def _take(self, node: ir.Node, form: str | None = None, add: str | None = None) -> None:
        self.quantized[node.name or ""] = Quantized(node.op_type, form or node.op_type, bias_add=add)
        if add is not None:
            self.layers.add(add)

    def _weights_alone(self, node: ir.Node, rule: OpRule) -> str | None:
        trained = [
            self._key(v, node)
            for i, v in enumerate(node.inputs)
            if v is not None and isinstance(rule.role(i), Weight)
        ]
        if self.style is not Style.QDQ or None in trained:
            return "its weights were trained in float, or have no kernel in this style"
        self._take(node)
        return None

    # ---- biases

    def _bias(self, reader: ir.Node, node: ir.Node, rule: OpRule, x: Key, w: Key) -> str | None:
        """An int32 bias; a reason where the integer operator has to have one and it does not fit."""
        index = next((i for i in range(2, len(node.inputs)) if isinstance(rule.role(i), Bias)), None)
        value = node.inputs[index] if index is not None else None
        if value is None or query.constant(value) is None:
            return None
        self.entries.pop(Key(value.name or ""), None)
        self.known.pop(Key(value.name or ""), None)
        if self._derive(value, reader, node, x, w) or self.style is Style.QDQ:
            return None
        return "its bias does not fit an int32 of the trained scales"

    def _derive(self, bias: ir.Value, reader: ir.Node, node: ir.Node, x: Key, w: Key) -> bool:
        px, pw, content = self._params(x), self._params(w), query.array(bias)
        if pw is None or content is None or not isinstance(pw.granularity, PerTensor | PerChannel):
            return False
        if px is not None and (px.qtype.is_float or not isinstance(px.granularity, PerTensor)):
            return False
        if node.op_type == "ConvTranspose" and query.attribute(node, "group", 1) > 1:
            return False
        weight = node.inputs[1]
        if weight is None or not weights.has_channels(bias, weight, Scheme(pw.qtype, pw.granularity)):
            return False
        if px is not None and np.any(affine.least_weight_scale(content.reshape(-1), px.scale) > pw.scale):
            return False
        self.entries[Key(bias.name or "", reader.name)] = Derived(tuple(x), tuple(w), make_room=False)  # type: ignore[arg-type]
        return True

    def _layer(self, node: ir.Node, x: Key, w: Key) -> str | None:
        """The Add that is the bias of a MatMul whose result stays float between the two."""
        layer = query.linear_layer(node)
        if layer is None or layer.add is None or layer.bias is None or layer.add.name in self.wish.refused:
            return None
        if Key(layer.bias.name or "") in self.entries:
            return None
        if self.style is Style.QDQ and not self._derive(layer.bias, layer.add, node, x, w):
            return None
        return layer.add.name

    # ---- results

    def _output(self, node: ir.Node, *, must: bool) -> bool:
        """Whether the node's result has parameters, trained or, where ``must`` does not forbid it, measured."""
        value = self._behind_clamp(node.outputs[0])
        if Key(value.name or "") in self.entries:
            return True
        needed = node.op_type in self.wish.target.needs_output or not must
        if not (self.wish.data and needed):
            return False
        kind = next((p.qtype for k, p in self.known.items() if not self._is_stored(k)), UINT8)
        scheme = Scheme(kind if kind in (UINT8, INT8) else UINT8)
        self.entries[Key(self._clamped(value, Measured(scheme)).name or "")] = Measured(scheme)
        return True

    def _behind_clamp(self, value: ir.Value) -> ir.Value:
        """The output of a Relu or Clip whose work the trained range behind it does; the clamp goes."""
        clamp = query.only_reader(value)
        if clamp is None or clamp.op_type not in ("Relu", "Clip") or clamp.domain:
            return value
        entry = self.entries.get(Key(clamp.outputs[0].name or ""))
        return self._clamped(value, entry) if entry is not None else value

    def _clamped(self, value: ir.Value, entry: Entry) -> ir.Value:
        clamp = query.only_reader(value)
        own = self.entries.get(Key(value.name or ""))
        if clamp is None or clamp.op_type not in ("Relu", "Clip") or clamp.graph is not value.graph:
            return value
        bounds, output = clamp_bounds(clamp), clamp.outputs[0]
        if clamp.name in self.wish.refused or bounds is None or bounds[0] != 0.0 or bounds[1] <= 0.0:
            return value
        if own is not None and own != Shared(output.name or ""):
            return value
        if not hazards.holds_clamp(entry, bounds[1]):
            return value
        self.entries.pop(Key(value.name or ""), None)
        self.absorbed[clamp.name or ""] = f"the trained range of {output.name} starts at zero as it does"
        return output

    # ---- between products

    def _follower(self, node: ir.Node, rule: OpRule) -> str | None:
        values = [(i, v) for i, v in enumerate(node.inputs) if v is not None and isinstance(rule.role(i), Act)]
        for _, value in values:
            if self._key(value, node) is None and not self._single(node, value):
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
        if not self._output(node, must=self.style is Style.QDQ):
            return "training gave its result no parameters"
        self._take(node, form.op_type if form is not None and self.style is Style.QOPERATOR else None)
        return None

    def _not_eight(self, node: ir.Node) -> str | None:
        """Integer operators but the plainest take 8 bits, one scale, and the same type for all they read."""
        keys = [self._key(v, node) for v in (*node.inputs, *node.outputs) if v is not None]
        found = [params for key in keys if (params := self._params(key)) is not None]
        if any(p.qtype not in (INT8, UINT8) or not isinstance(p.granularity, PerTensor) for p in found):
            return "it has no integer spelling for types other than 8 bits with one scale"
        return None

    def _has_steps_of_256(self, node: ir.Node) -> bool:
        params = self._params(Key(node.outputs[0].name or ""))
        return params is not None and float(params.scale) == 1 / 256 and int(params.zero_point) == params.qtype.qmin

    def _single(self, node: ir.Node, value: ir.Value) -> bool:
        """A constant of one number is exact in any type: it gets parameters of its own."""
        if query.scalar(value) is None or self.style is Style.INTEGER:
            return False
        kinds = [p.qtype for v in node.inputs if (p := self._params(self._key(v, node))) is not None]
        self.entries[Key(value.name or "", node.name)] = Constant(Scheme(kinds[0] if kinds else UINT8))
        return bool(kinds)

    def _passenger(self, node: ir.Node, rule: OpRule) -> str | None:
        first = node.inputs[0]
        before = self._key(first, node)
        if before is None:
            return "training gave its input no parameters"
        if rule.kind is Kind.CLAMP:
            return None if self.style is Style.QDQ else "its integers are clamped as floats"
        outputs = [Key(v.name or "") for v in node.outputs if query.is_float(v)]
        same = all(
            key in self.entries and self._root(key) == self._root(before)
            or (a := self._params(key)) is not None and (b := self._params(before)) is not None and a.same_as(b)
            for key in outputs
        )
        form = rule.forms.get(self.style)
        if self.style is Style.INTEGER or not same or (self.style is Style.QOPERATOR and form is None):
            return "its result stays float, or has other parameters than its input"
        if self.style is Style.QOPERATOR:
            reason = rule.refusal(node) or _form_refusal(form, node) or self._not_eight(node)
            if reason is not None:
                return reason
        self._take(node, form.op_type if form is not None else None)
        return None

    # ---- keys

    def _key(self, value: ir.Value | None, node: ir.Node) -> Key | None:
        name = value.name or "" if value is not None else ""
        for key in (Key(name, node.name), Key(name)):
            if key in self.entries and not isinstance(self.entries[key], Dynamic):
                return key
        return None

    def _root(self, key: Key) -> Key:
        while isinstance(entry := self.entries.get(key), Shared):
            key = entry.key
        return key

    def _params(self, key: Key | None) -> QParams | None:
        return self.known.get(self._root(key)) if key is not None else None


def _form_refusal(form: Form | None, node: ir.Node) -> str | None:
    return form.refuse(node) if form is not None and form.refuse is not None else None


__all__ = ["Wish", "build"]
