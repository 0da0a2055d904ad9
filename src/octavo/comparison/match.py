"""Which tensor of a quantized model corresponds to which of the float model: by structure, not by name.

Both graphs are walked from their inputs. A unit of the quantized model is matched with a unit of the same
kind that reads the same signals at the same places; where several do (queries, keys and values of one input),
equal names and then the content of weights decide. A clamp that is fused into the quantized range, and a bias
that one model adds by itself and the other within its product, are stepped over. Equal names help where the
walk is stuck, and never where they contradict the kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from octavo.comparison.constant_values import Array, is_constant
from octavo.comparison.lowered_operators import Unit, weight
from octavo.comparison.signals import SignalView, operands
from octavo.core import metrics
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import PrepareOptions, prepare
from octavo.model.prepare.shapes import infer
from octavo.model.prepare.widen import widen
from octavo.ops import CLAMPS, LINEAR
from octavo.ops.patterns import COMMUTE

_COMPARED_WEIGHTS = 1 << 14  # weights looked at when several units could be meant
_CORNER_SIZE = 64  # rows and columns looked at to tell a square matrix from its transpose


@dataclass(frozen=True, eq=False)
class Pair:
    """A unit of the float model and its counterpart.

    ``steps`` are the float nodes up to the tensor ``target``, whose quantized twin is ``twin``.
    """

    float_unit: Unit
    unit: Unit
    steps: tuple[ir.Node, ...]
    target: ir.Value
    twin: ir.Value
    more: tuple[ir.Node, ...] = ()  # nodes of the quantized model behind its unit, up to the twin
    is_main: bool = True


@dataclass
class Matching:
    """What was matched: units in the order of the quantized model, and signals."""

    float_view: SignalView
    view: SignalView
    pairs: list[Pair] = field(default_factory=list)
    signals: dict[ir.Value, ir.Value] = field(default_factory=dict)  # quantized → float
    unmatched: list[Unit] = field(default_factory=list)
    is_rough: bool = False  # the float model has factors that were read off rounded weights

    @property
    def share(self) -> float:
        """Return which part of the quantized units was matched."""
        total = len(self.pairs) + len(self.unmatched)
        return len(self.pairs) / total if total else 1.0


def match(float_model: ir.Model, quantized: ir.Model) -> Matching:
    """Match two models, both in their normal form."""
    return _Matcher(SignalView(float_model), SignalView(quantized)).run()


class _Matcher:
    def __init__(self, plain: SignalView, view: SignalView) -> None:
        self.f, self.q = plain, view
        self.of: dict[ir.Value, ir.Value] = {}
        self.taken: set[Unit] = set()
        self.biases: set[Unit] = set()  # of the quantized model, which belong to the product before
        self.result = Matching(plain, view, signals=self.of)
        self.hints = self._hints()

    def run(self) -> Matching:
        self._pair_values(self.f.model.graph.inputs, self.q.model.graph.inputs, by_name=True)
        for unit in self.q.units:
            if unit in self.biases:
                continue
            found = self._find(unit)
            if found is not None:
                self._accept(found, unit)
            elif self.q.is_quantized(unit):
                self.result.unmatched.append(unit)
        return self.result

    def _pair_values(
        self, plain: Sequence[ir.Value], quantized: Sequence[ir.Value], *, by_name: bool
    ) -> None:
        names = {v.name: v for v in plain} if by_name else {}
        for i, value in enumerate(quantized):
            other = names.get(value.name) or (plain[i] if i < len(plain) else None)
            if other is not None:
                self.of[self.q.signal(value)] = self.f.signal(other)

    def _hints(self) -> dict[ir.Value, ir.Value]:
        """Return the signals that share a name; of several forms of a signal the last one decides."""
        named = {v.name: s for s, forms in self.f.members.items() for v in forms if v.name}
        found: dict[ir.Value, ir.Value] = {}
        for signal, forms in self.q.members.items():
            known = [named[v.name] for v in forms if v.name in named]
            if known:
                found[signal] = known[-1]
        return found

    # ---- finding

    def _find(self, unit: Unit) -> Unit | None:
        scores: dict[Unit, float] = {}
        for slot, operand in operands(unit):
            signal = self.of.get(self.q.signal(operand.value))
            if signal is None or is_constant(operand.value):
                continue
            for other, place in self.f.readers.get(signal, ()):
                if self._may_be(other, unit) and (place == slot or unit.kind in COMMUTE):
                    scores[other] = scores.get(other, 0.0) + 2.0
        hinted = self._hinted(unit)
        if hinted is not None and self._may_be(hinted, unit):
            scores[hinted] = scores.get(hinted, 0.0) + 3.0
        if not scores:
            return None
        for other in scores:
            scores[other] -= 2.0 * self._contradictions(other, unit)
        best = max(scores.values())
        finalists = [other for other, score in scores.items() if score == best]
        if best <= 0:
            return None
        return finalists[0] if len(finalists) == 1 else max(finalists, key=lambda f: _likeness(f, unit))

    def _may_be(self, other: Unit, unit: Unit) -> bool:
        return other.kind == unit.kind and other not in self.taken

    def _hinted(self, unit: Unit) -> Unit | None:
        """Return the float unit that gives a tensor of the same name, also before a clamp or a bias."""
        out = self.q.signal(unit.outputs[0]) if unit.outputs else None
        signal = self.hints.get(out) if out is not None else None
        maker = self.f.maker.get(signal) if signal is not None else None
        for _ in range(2):
            if maker is None or maker.kind == unit.kind or not (maker.kind in CLAMPS or maker.kind == "Add"):
                break
            makers = [self.f.maker.get(self.f.signal(o.value)) for _, o in operands(maker)]
            maker = next((m for m in makers if m is not None), None)
        return maker

    def _contradictions(self, other: Unit, unit: Unit) -> int:
        """Return how many operands are matched with something that the other unit does not read."""
        reads = {self.f.signal(o.value) for _, o in operands(other)}
        found = 0
        for _, operand in operands(unit):
            signal = self.of.get(self.q.signal(operand.value))
            found += signal is not None and signal not in reads
        return found

    # ---- taking

    def _accept(self, other: Unit, unit: Unit) -> None:
        self.taken.add(other)
        for target, twin in zip(other.outputs, unit.outputs, strict=False):
            self.of[self.q.signal(twin)] = self.f.signal(target)
        for mine, its in zip(query.subgraphs(unit.node), query.subgraphs(other.node), strict=False):
            self._pair_values(list(its.inputs), list(mine.inputs), by_name=False)
        if other.outputs and unit.outputs:
            target, twin, steps, more = self._exits(other, unit)
            self.of[self.q.signal(twin)] = self.f.signal(target)
            main = unit.node.graph is self.q.model.graph and other.node.graph is self.f.model.graph
            self.result.pairs.append(Pair(other, unit, steps, target, twin, more, main))

    def _exits(
        self, other: Unit, unit: Unit
    ) -> tuple[ir.Value, ir.Value, tuple[ir.Node, ...], tuple[ir.Node, ...]]:
        """Return where both units give the same: behind a bias that one adds by itself, and fused clamps."""
        target, twin = other.outputs[0], unit.outputs[0]
        steps, more = list(other.nodes), []
        if unit.kind in LINEAR:
            mine, its = _has_bias(unit), _has_bias(other)
            if its and not mine and (add := _bias_add(self.q, twin)) is not None:
                twin = add.outputs[0]
                self.biases.add(add)
                more.append(add.node)
            elif mine and not its and (add := _bias_add(self.f, target)) is not None:
                target = add.outputs[0]
                self.taken.add(add)
                steps.append(add.node)
        while (clamp := self._fused(target, twin)) is not None:
            self.taken.add(clamp)
            target = clamp.outputs[0]
            steps.append(clamp.node)
        return target, twin, tuple(steps), tuple(more)

    def _fused(self, target: ir.Value, twin: ir.Value) -> Unit | None:
        """Return the clamp behind a float tensor that the quantized model has no node for."""
        readers = self.f.readers.get(self.f.signal(target), [])
        if len(readers) != 1 or readers[0][0].kind not in CLAMPS or self.f.signal(target) in self.f.leaving:
            return None
        clamp = readers[0][0]
        mine = [reader.kind for reader, _ in self.q.readers.get(self.q.signal(twin), [])]
        signal = self.q.signal(twin)
        named = self.hints.get(signal) is self.f.signal(clamp.outputs[0])
        return (
            clamp if clamp.kind not in mine and (named or self.q.quantization(signal) is not None) else None
        )


def _has_bias(unit: Unit) -> bool:
    return len(unit.operands) > 2 and unit.operands[2] is not None


def _bias_add(view: SignalView, value: ir.Value) -> Unit | None:
    """Return the Add of a constant that alone reads a value."""
    readers = view.readers.get(view.signal(value), [])
    if len(readers) != 1 or readers[0][0].kind != "Add":
        return None
    add = readers[0][0]
    others = [o for _, o in operands(add) if view.signal(o.value) is not view.signal(value)]
    return add if all(is_constant(o.value) or _lifted(o.value) for o in others) else None


def _lifted(value: ir.Value) -> bool:
    maker = value.producer()
    return maker is not None and maker.op_type in ("Reshape", "Unsqueeze") and is_constant(maker.inputs[0])


def aligned(plain: Array, other: Array) -> Array | None:
    """Return the quantized weight in the float one's layout: as it is, or its last axes exchanged."""
    turned = np.swapaxes(other, -1, -2) if other.ndim in (2, 3) else other
    fits = [other.shape == plain.shape, turned.shape == plain.shape]
    if all(fits) and turned is not other:
        corner = (..., slice(0, _CORNER_SIZE), slice(0, _CORNER_SIZE))
        return max((other, turned), key=lambda c: metrics.cosine(plain[corner], c[corner]))
    if any(fits):
        return other if fits[0] else turned
    return other.reshape(plain.shape) if other.size == plain.size else None


def _likeness(other: Unit, unit: Unit) -> float:
    """Return how much alike the constants of two units are; more where even the names agree."""
    score = 0.5 if other.node.name and other.node.name == unit.node.name else 0.0
    for index in range(min(len(other.operands), len(unit.operands))):
        plain, mine = weight(other, index), weight(unit, index)
        if plain is None or mine is None:
            continue
        turned = aligned(plain, mine)
        if turned is None:
            score -= 1.0
        else:
            score += metrics.cosine(
                plain.reshape(-1)[:_COMPARED_WEIGHTS], turned.reshape(-1)[:_COMPARED_WEIGHTS]
            )
    return score


def weight_pairs(found: Matching) -> Iterator[tuple[Pair, int]]:
    """Yield the constants of matched units: a pair, and the place of the constant."""
    for pair in found.pairs:
        for index in range(min(len(pair.float_unit.operands), len(pair.unit.operands))):
            mine, its = pair.unit.operands[index], pair.float_unit.operands[index]
            if mine is not None and its is not None and is_constant(its.value) and is_constant(mine.value):
                yield pair, index


# ---- The form of the float model that a quantized one was made from: as it is, prepared, or optimized

_ENOUGH_MATCHED = 0.999  # of the quantized units matched: no other form is tried


def prepared(source: io.ModelSource, opset: int | None = None, *, optimize: bool = False) -> ir.Model:
    """Return the float model as ``quantize`` sees it."""
    model = io.load(source)
    wanted = max(opset, query.opset(model)) if opset is not None else None
    prepare(model, PrepareOptions(opset=wanted, runtime_optimization=optimize))
    widen(model)
    return model


def plain(source: io.ModelSource) -> ir.Model:
    """Return a model in its normal form, with nothing folded, and with the types of its tensors."""
    model = io.load(source)
    normalize(model)
    if any(query.element_type(value) is None for node in query.nodes(model) for value in node.outputs):
        infer(model)
    return model


def best_match(source: io.ModelSource, quantized: ir.Model) -> tuple[Matching, str]:
    """Return the matching with that form of the float model that fits best, and the name of the form."""
    opset = query.opset(quantized)
    choices: dict[str, Callable[[], ir.Model]] = {
        "prepared": lambda: prepared(source, opset),
        "as it is": lambda: plain(source),
        "optimized": lambda: prepared(source, opset, optimize=True),
    }
    best: tuple[Matching, str] | None = None
    for name, model in _made(choices):
        found = match(model, quantized)
        if best is None or found.share > best[0].share:
            best = found, name
        if found.share >= _ENOUGH_MATCHED:
            break
    if best is None:
        raise ModelError("The float model can't be brought into a form to compare with; is it a valid model?")
    return best


def _made(choices: dict[str, Callable[[], ir.Model]]) -> Iterator[tuple[str, ir.Model]]:
    for name, make in choices.items():
        try:
            model = make()
        except ModelError:
            if name == "as it is":
                raise
            continue
        yield name, model
