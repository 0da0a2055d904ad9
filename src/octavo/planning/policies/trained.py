"""The policy of models trained with fake quantization: trained parameters stay, the rest is completed.

Completion costs nothing where it commutes with rounding: data movement, Concat and clamps pass parameters on
in both directions (:mod:`~octavo.planning.sharing`), biases become int32. A result without trained
parameters, which an integer operator needs, is measured where there is data; else a node stays float.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from octavo.core import affine
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Constant, Derived, Dynamic, Entry, Fixed, Key, Measured, Shared
from octavo.core.qparams import QParams
from octavo.core.qtypes import INT8, UINT8, QType
from octavo.core.recipe import Recipe, Style
from octavo.core.scheme import Scheme
from octavo.model.graph import query
from octavo.ops import MATMUL_TO_FLOAT, Act, Bias, Kind, Lowering, OpRule, Weight, axis_of
from octavo.planning import barriers, biases, clamps
from octavo.planning.policies.policy import Policy
from octavo.planning.refusals import NOT_CONSTANT, SIGNAL, kernel_refusal, lowering_refusal, no_lowering
from octavo.planning.sharing import share
from octavo.planning.state import State, name_of
from octavo.targets import Target

_EIGHT = (INT8, UINT8)
_NO_INPUT = "training left its input without parameters"
_NO_RESULT = (
    "training left its output without parameters, which its integer operator needs; give calibration data"
)
_MANY_SCALES = "its input was trained with a scale per channel"


class TrainedPolicy(Policy):
    """Quantizes what was trained so; ``params`` are those of the fake quantization that was taken out.

    With ``measure`` there is data, and missing ranges of results can be measured.
    """

    def __init__(
        self, params: Mapping[Key, QParams], recipe: Recipe, target: Target, *, measure: bool = False
    ) -> None:
        super().__init__(recipe, target)
        self.trained, self.measure = params, measure

    def begin(self, state: State) -> None:
        """Place the trained parameters."""
        super().begin(state)
        read = (v for node in state.nodes for v in node.inputs if v is not None)
        self.constants = {name_of(v) for v in read if query.constant(v) is not None}
        self.known = self._one_signedness()
        state.entries.update({key: fixed(params) for key, params in self.known.items()})

    def survey(self) -> None:
        """Pass parameters on where that changes no result."""
        share(self.state, self.known)

    def _one_signedness(self) -> dict[Key, QParams]:
        """Return the trained parameters; in QOperator activations of 8 bits have one signedness.

        Its operators take no others. Zero points moved by 128 write the same steps in the other one.
        """
        found = dict(self.trained)
        eight = {params.qtype for params in found.values()} & set(_EIGHT)
        if self.style is not Style.QOPERATOR or eight != set(_EIGHT):
            return found
        signed = {p.qtype for key, p in found.items() if key.tensor not in self.constants} & eight == {INT8}
        unsigned = any(p.qtype == UINT8 for key, p in found.items() if key.tensor in self.constants)
        if signed and not unsigned:
            return found
        narrow = (key for key, p in found.items() if p.qtype == INT8 and key.tensor not in self.constants)
        return found | {key: affine.narrowed(found[key], UINT8) for key in narrow}

    def _params(self, key: Key | None) -> QParams | None:
        """Return the trained parameters of a key, its own or shared."""
        return self.known.get(self.state.root(key)) if key is not None else None

    def _kinds(self, *keys: Key | None) -> list[QType]:
        return [params.qtype for key in keys if (params := self._params(key)) is not None]

    # ---- linear operators

    def linear(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize an operator whose weight was trained quantized."""
        state, style = self.state, self.style
        x, w = (state.key(v, node) for v in node.inputs[:2])
        reason = self._wrong_scales(node, rule, x, w)
        if reason is not None and w is not None:
            state.entries.pop(w)
            self.known.pop(w, None)
            return reason
        if w is None:
            return "its weight was trained in float"
        if style is Style.INTEGER:
            return self._integer(node, rule, x, w)
        if x is None:
            if style is not Style.QDQ:
                return _NO_INPUT
            state.take(node)
            return None
        lowering = rule.lowerings.get(style)
        reason = self._no_kernel(node, rule, lowering, x, w) or self._bias(node, rule)
        if reason is not None:
            return reason
        optional = style is Style.QDQ or (lowering is not None and lowering.float_output)
        whole = self._quantizes_result(node, optional=optional)
        if style is Style.QOPERATOR and not whole and not rule.is_matrix_product:
            return _NO_RESULT
        if style is Style.QOPERATOR and lowering is not None and not (whole or lowering.float_output):
            lowering = MATMUL_TO_FLOAT
        state.take(node, lowering, None if whole else self._bias_add(node))
        return None

    def _wrong_scales(self, node: ir.Node, rule: OpRule, x: Key | None, w: Key | None) -> str | None:
        """Return why the scales of a weight would be read along another axis, or have no kernel."""
        role, params = rule.role(1), self._params(w)
        if params is None or not isinstance(role, Weight):
            return None
        match params.granularity:
            case PerChannel(axis) if Style.QOPERATOR in rule.lowerings:  # those that the runtime fuses
                right = axis_of(role.axis, node)
                if axis != right:
                    return f"its weight has scales along axis {axis}, and its channels are on axis {right}"
            case PerBlock() if x is not None and params.qtype.bits == 8:
                return "8-bit weights in blocks beside quantized activations fail in the runtime"
            case _:
                pass
        return None

    def _no_kernel(
        self, node: ir.Node, rule: OpRule, lowering: Lowering | None, x: Key, w: Key
    ) -> str | None:
        if self.style is Style.QDQ:
            return None
        if not self._has_one_scale(x):
            return _MANY_SCALES
        found = lowering_refusal(node, rule, lowering, self.style)
        if found is None and lowering is not None:
            kinds = [p.qtype if (p := self._params(key)) is not None else UINT8 for key in (x, w)]
            found = kernel_refusal(lowering, *kinds)
        return found

    def _integer(self, node: ir.Node, rule: OpRule, x: Key | None, w: Key) -> str | None:
        """Quantize the input by its trained parameters, or while the model runs; the result is float."""
        lowering, params = rule.lowerings.get(Style.INTEGER), self._params(w)
        if lowering is None or not lowering.gives_sums or params is None:
            return no_lowering(self.style)
        if query.constant(node.inputs[1]) is None:
            return NOT_CONSTANT
        if lowering.one_zero_point and len(np.unique(params.zero_point.astype(np.int64))) > 1:
            return f"{lowering.op_type} takes one zero point for all channels"
        kinds = self._kinds(x, w)
        if not self._has_one_scale(x):
            return _MANY_SCALES
        if any(kind not in _EIGHT for kind in kinds):
            return f"{lowering.op_type} has no kernel for {' and '.join(str(kind) for kind in kinds)}"
        reason = rule.refusal(node)
        if reason is not None:
            return reason
        if x is None and node.inputs[0] is not None:
            self.state.place(node.inputs[0], Dynamic(), node)
        self.state.take(node, lowering)
        return None

    def _has_one_scale(self, key: Key | None) -> bool:
        params = self._params(key)
        return params is None or isinstance(params.granularity, PerTensor)

    def _bias(self, node: ir.Node, rule: OpRule) -> str | None:
        """Make a bias int32; a reason where the integer operator has to have one and it can't be."""
        found = [v for v in rule.reads(node, Bias) if query.constant(v) is not None]
        if not found:
            return None
        self.state.entries.pop(Key(name_of(found[0])), None)
        self.known.pop(Key(name_of(found[0])), None)
        if biases.place(self.state, found[0], node, node) or self.style is Style.QDQ:
            return None
        return "its bias does not have one value per channel of its weight"

    def _bias_add(self, node: ir.Node) -> ir.Node | None:
        """Return the Add that is the bias of a MatMul whose result stays float between the two."""
        layer = query.linear_layer(node)
        if layer is None or layer.add is None or layer.bias is None or layer.add.name in self.state.reasons:
            return None
        if self.state.is_quantized(layer.bias):
            return None
        if self.style is Style.QDQ and not biases.place(self.state, layer.bias, layer.add, node):
            return None
        return layer.add

    # ---- results

    def _quantizes_result(self, node: ir.Node, *, optional: bool) -> bool:
        """Whether the result has parameters, trained or measured.

        They are measured where the target, or the operator (not ``optional``), can't do without.
        """
        value, state = node.outputs[0], self.state
        clamp = query.only_reader(value)
        behind = Key(name_of(clamp.outputs[0])) if clamp is not None and clamp.outputs else Key("")
        trained = state.entries.get(state.root(behind))
        if trained is not None:
            value = self._fused(value, trained)
        if state.is_quantized(value):
            return True
        if not self.measure or (optional and node.op_type not in self.target.placement.needs_output):
            return False
        kinds = self._kinds(*(state.key(v, node) for v in node.inputs))
        entry = Measured(Scheme(INT8 if kinds[:1] == [INT8] else UINT8))
        state.place(self._fused(value, entry), entry)
        return True

    def _fused(self, value: ir.Value, entry: Entry) -> ir.Value:
        """Return what the clamp behind a value makes, if ``entry`` does its work; the clamp is fused then."""
        clamp, own = clamps.behind(value, entry, self.state, self.recipe), Key(name_of(value))
        if clamp is None:
            return value
        output = Key(name_of(clamp.outputs[0]))
        if self.state.entries.get(own) not in (None, Shared(output.tensor)):
            before, after = self._params(own), self._params(output)
            if before is None or after is None or not before.same_as(after):
                return value
            self._hand_on(own, output)
        self.state.entries.pop(own, None)
        return clamps.fuse(clamp, self.state)

    def _hand_on(self, before: Key, after: Key) -> None:
        """Let what has the parameters of one key have those of the other, which are the same."""
        entries, root = self.state.entries, self.state.root(before)
        entries[after], self.known[after] = entries[root], self.known[root]
        for key, entry in entries.items():
            if isinstance(entry, Shared) and entry.key == before:
                entries[key] = Shared(*after)

    # ---- between linear operators

    def elementwise(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize an operator that reads trained values, and perhaps constants of one number."""
        read = rule.reads(node, Act)
        left = [v for v in read if self.state.key(v, node) is None]
        for value in left:
            number = query.scalar(value)  # exact in any type
            if number is None or abs(number) >= SIGNAL or len(left) == len(read):
                return f"training gave its input {value.name!r} no parameters"
        lowering = rule.lowerings.get(self.style)
        if self.style is not Style.QDQ:
            reason = lowering_refusal(node, rule, lowering, self.style) or self._not_eight(node)
            if reason is not None:
                return reason
            if lowering is not None and not self._has_built_in_scale(node, lowering):
                steps = round(1 / (lowering.output_scale or 1))
                return f"its integer kernel has {steps} steps from 0 to 1, and it was trained with others"
        if not self._quantizes_result(node, optional=self.style is Style.QDQ):
            return _NO_RESULT
        self.state.take(node, lowering)
        kinds = self._kinds(*(self.state.key(v, node) for v in read))
        for value in left:
            self.state.place(value, Constant(Scheme(kinds[0] if kinds else UINT8)), node)
        return None

    def _not_eight(self, node: ir.Node) -> str | None:
        """Return why an integer operator does not take what a node reads and makes."""
        keys = (self.state.key(v, node) for v in (*node.inputs, *node.outputs) if v is not None)
        found = [params for key in keys if (params := self._params(key)) is not None]
        if any(p.qtype not in _EIGHT or not isinstance(p.granularity, PerTensor) for p in found):
            return "its integer operator takes 8 bits with one scale only"
        return None

    def _has_built_in_scale(self, node: ir.Node, lowering: Lowering) -> bool:
        params = self._params(Key(name_of(node.outputs[0])))
        return lowering.output_scale is None or (
            params is not None
            and float(params.scale) == lowering.output_scale
            and int(params.zero_point) == params.qtype.qmin
        )

    def movement(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize data movement whose results have the parameters of its input."""
        before, lowering = self.state.key(node.inputs[0], node), rule.lowerings.get(self.style)
        if before is None:
            return _NO_INPUT
        if rule.kind is Kind.CLAMP:
            return None if self.style is Style.QDQ else no_lowering(self.style)
        if not all(self._same(before, Key(name_of(v))) for v in node.outputs if query.is_float(v)):
            return "its output was trained in float, or with other parameters than its input"
        if self.style is not Style.QDQ:
            reason = lowering_refusal(node, rule, lowering, self.style) or self._not_eight(node)
            if reason is not None:
                return reason
        self.state.take(node, lowering)
        return None

    def _same(self, one: Key, other: Key) -> bool:
        if other in self.state.entries and self.state.root(one) == self.state.root(other):
            return True
        a, b = self._params(one), self._params(other)
        return a is not None and b is not None and a.same_as(b)

    def recurrent(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize a recurrent layer whose weights were trained quantized."""
        trained = all(self.state.key(v, node) is not None for v in rule.reads(node, Weight))
        if self.style is not Style.QDQ or not trained:
            return "its weights were trained in float, or have no kernel in this style"
        self.state.take(node)
        return None

    # ---- after the walk

    def finish(self) -> None:
        """Find what integer styles have to round though no integer operator does it.

        An integer operator that makes a value rounds it. A trained value that a float operator makes is
        rounded by a pair of QuantizeLinear and DequantizeLinear, as training did, unless integer operators
        alone read it.
        """
        if self.style is Style.QDQ:
            return
        state, made, read = self.state, *self._touched()
        state.entries = {
            key: Shared(*state.root(key)) if isinstance(entry, Shared) else entry
            for key, entry in state.entries.items()
            if not isinstance(entry, Shared) or key.tensor in made or key.tensor in read
        }
        values = {v.name: v for n in state.nodes for v in (*n.inputs, *n.outputs) if v is not None}
        found = [
            key
            for key, entry in state.entries.items()
            if key.tensor not in self.constants
            and key.tensor not in made
            and not isinstance(entry, Dynamic | Derived)
            and self._is_seen_rounded(key, values[key.tensor])
        ]
        state.rounded = tuple(sorted(((k.tensor, k.consumer) for k in found), key=lambda k: k[1] is not None))

    def _touched(self) -> tuple[set[str], set[str]]:
        """Return the names of what integer operators make in integers, and of what they read."""
        state = self.state
        taken = [node for node in state.nodes if node.name in state.quantized]
        read = {name_of(v) for node in taken for v in node.inputs}
        if self.style is Style.INTEGER:
            return set(), read
        made = {
            name_of(v)
            for node in taken
            if state.quantized[node.name or ""].lowering != MATMUL_TO_FLOAT.op_type
            for v in node.outputs
        }
        return made | {name_of(n.outputs[0]) for n in state.nodes if n.name in state.fused}, read

    def _is_seen_rounded(self, key: Key, value: ir.Value) -> bool:
        """Whether something that computes on floats reads a value, or one of its consumers converts it."""
        state = self.state
        if key.consumer is not None:
            return key.consumer not in state.quantized
        return value.is_graph_output() or any(
            n.name not in state.quantized or Key(key.tensor, n.name) in state.entries
            for n in value.consumers()
        )

    def barriers(self, entries: Mapping[Key, Entry]) -> tuple[str, ...]:
        """Return the layers left float that the runtime would round."""
        return barriers.find(self.state.nodes, self.state.quantized, entries, self.target)


def fixed(params: QParams) -> Fixed:
    """Return parameters as an entry; weights use all integers of their type, as they are rounded already."""
    scale = tuple(float(s) for s in params.scale.reshape(-1))
    zero = tuple(int(z) for z in params.zero_point.reshape(-1).astype(np.int64))
    return Fixed(Scheme(params.qtype, params.granularity), scale, zero)
