"""Taking fake quantization out of a model: what is left is the float model, and the trained parameters.

A parameter belongs to a tensor where every reader saw it rounded, and to an edge where one reader did. What
can't be said so (a pair between an input and an output, a reader that sees a value both ways) stays in place.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core import kernels
from octavo.core.granularity import PerBlock, PerChannel, PerTensor, moved
from octavo.core.plan import Key
from octavo.core.qparams import QParams
from octavo.model.fake_quant.chains import chain
from octavo.model.fake_quant.forms import FakeQuant, operator, pair, stored
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.graph.tensors import computed

# ---- Trained weights: their values rounded as training rounded them, carried through data movement
#
# Moving values and rounding them commute, so that what exporters put behind the fake quantization of a kernel
# (Transpose from channels-last, Reshape of a depthwise one) is done to the weight and to its scales instead.

_RESHAPES = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten"})


def content_of(found: FakeQuant) -> ir.LazyTensor:
    """Return the float values that readers of a fake-quantized constant see, computed when they are read."""
    tensor = query.constant(found.source)
    if tensor is None:
        raise ValueError(f"{found.source.name!r} is not a constant")

    def values() -> npt.NDArray[np.float32]:
        array = np.asarray(tensor.numpy())
        if found.stored:
            return kernels.dequantize(array, found.params).astype(np.float32, copy=False)
        whole = kernels.fake_quantize(array, found.params, limits=found.limits)
        return whole.astype(np.float32, copy=False)

    return computed(values, ir.DataType.FLOAT, tensor.shape.numpy(), keep=True)


def moved_by(
    node: ir.Node, tensor: ir.TensorProtocol, params: QParams
) -> tuple[ir.TensorProtocol, QParams] | None:
    """Return a weight after data movement, with its parameters; None where scales can't follow."""
    if node.domain or len(node.outputs) != 1 or node.outputs[0].is_graph_output():
        return None
    shape = tuple(int(d) for d in tensor.shape.numpy())
    if node.op_type == "Identity":
        return tensor, params
    if node.op_type == "Transpose":
        perm = tuple(query.attribute(node, "perm", None) or reversed(range(len(shape))))
        dims = [shape[i] for i in perm]
        turned = computed(lambda: tensor.numpy().transpose(perm), tensor.dtype, dims, keep=True)
        return turned, replace(params, granularity=moved(params.granularity, perm))
    if node.op_type in _RESHAPES:
        after = query.static_shape(node.outputs[0])
        follows = _reshaped(params, shape, after) if after is not None else None
        if after is not None and follows is not None:
            return computed(lambda: tensor.numpy().reshape(after), tensor.dtype, after, keep=True), follows
    return None


def _reshaped(params: QParams, before: tuple[int, ...], after: tuple[int, ...]) -> QParams | None:
    """Return parameters along the axis that the channels have after a Reshape."""
    match params.granularity:
        case PerTensor():
            return params
        case PerBlock():
            return None
        case PerChannel(axis):
            axis = axis or 0
    inside = math.prod(before[axis + 1 :])
    outside = math.prod(before[:axis])
    for here, dim in enumerate(after):
        if math.prod(after[:here]) != outside or dim % before[axis]:
            continue
        times = dim // before[axis]
        if math.prod(after[here + 1 :]) * times == inside:
            scale, zero = (np.repeat(a, times) for a in (params.scale, params.zero_point))
            return QParams(scale, zero, params.qtype, PerChannel(here))
    return None


_STORED = "_quantized"  # the ending of the names of stored integers


@dataclass
class Peeled:
    """The trained parameters, by tensor or edge, and what there is to say about them."""

    params: dict[Key, QParams] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    clipped: int = 0  # activations whose integers were fewer than their type has


def peel(model: ir.Model, *, exact: bool = True, before: Peeled | None = None) -> Peeled:
    """Take all fake quantization out of a model, in place; ``before`` is what was taken out of it already.

    Training may use a part of a type's integers (0 … 127 of uint8). ``exact`` keeps that as a Clip in front,
    which runtimes do not fuse; otherwise the whole type is used, which differs only for values beyond.
    """
    return _Peeler(model, exact, before if before is not None else Peeled()).run()


class _Peeler:
    def __init__(self, model: ir.Model, exact: bool, before: Peeled) -> None:
        self.model, self.exact = model, exact
        self.edit = Editor(model)
        self.out = Peeled(dict(before.params), [], before.clipped)
        self.stands_for: dict[ir.Value, ir.Value] = {}  # a result that is gone → what its readers read now
        self.constants: dict[Hashable, ir.Value] = {}
        self.left = 0

    def run(self) -> Peeled:
        groups: dict[ir.Value, list[FakeQuant]] = {}
        taken: set[ir.Node] = set()
        for node in query.nodes(self.model):
            found = _recognised(node)
            if found is not None and not taken & set(found.nodes):
                taken |= set(found.nodes)
                groups.setdefault(found.source, []).append(found)
        for group in groups.values():
            for found in [f for f in group if query.constant(f.source) is not None]:
                self._weight(found)
            flowing = [f for f in group if query.constant(f.source) is None]
            if flowing:
                self._activation(flowing)
        if self.left:
            self.out.notes.append(
                f"{self.left} fake quantizations stay in the model: their tensors are also read without them"
            )
        if self.out.clipped and not self.exact:
            self.out.notes.append(
                f"{self.out.clipped} activations were trained with a part of the integers of their type, "
                "and now use all of them"
            )
        return self.out

    # ---- activations

    def _activation(self, group: list[FakeQuant]) -> None:
        source = self._current(group[0].source)
        heads = {f.nodes[0] for f in group}
        if any(Key(source.name or "", head.name) in self.out.params for head in heads):
            self.left += len(group)  # it rounds what is rounded on this edge alone
            return
        narrow = [f for f in group if f.limits is not None]
        if narrow:
            self.out.clipped += len(narrow)
            if self.exact:
                for found in narrow:
                    self._bounded(found, source)
                group = [f for f in group if f.limits is None]
        if group:
            self._plain(group, source, heads)

    def _plain(self, group: list[FakeQuant], source: ir.Value, heads: set[ir.Node]) -> None:
        whole = Key(source.name or "")
        known = self.out.params.get(whole)
        alike = all(f.params.same_as(group[0].params) for f in group)
        others = [n for n in query.readers(source) if n not in heads]
        if known is not None:
            for found in group:
                self._conversion(found, source, known)
        elif alike and not others and not source.is_graph_output() and self._take_all(group, source):
            self.out.params[Key(source.name or "")] = group[0].params
        else:
            for found in group:
                self._edges(found, source)

    def _bounded(self, found: FakeQuant, source: ir.Value) -> None:
        """Put a Clip to the integers that were used in front, and the whole type behind it."""
        low, high = found.limits or (0, 0)
        scale, zero = found.params.scale.astype(np.float64), found.params.zero_point.astype(np.float64)
        if scale.size != 1:
            self.left += 1
            return
        base = source.name or ""
        bounds = [
            self.edit.constant(f"{base}_{what}", np.asarray((end - zero) * scale, np.float32))
            for what, end in (("lowest", low), ("highest", high))
        ]
        kind = ir.DataType.FLOAT
        clip = self.edit.node(
            "Clip", [source, *bounds], name=f"{base}_clipped", dtype=kind, shape=source.shape
        )
        found.nodes[0].prepend(clip)
        found.nodes[0].replace_input_with(_index(found.nodes[0], source), clip.outputs[0])
        if self._take_all([found], clip.outputs[0]):
            self.out.params[Key(clip.outputs[0].name or "")] = found.params
        else:
            self.left += 1

    def _current(self, value: ir.Value) -> ir.Value:
        while value in self.stands_for:
            value = self.stands_for[value]
        return value

    def _take_all(self, group: Sequence[FakeQuant], source: ir.Value) -> bool:
        """Let all that read the results read the source; False where a graph output stands in the way."""
        results = [r for f in group for r in f.results]
        shown = [r for r in results if r.is_graph_output()]
        if len(shown) > 1 or (shown and (source.producer() is None or source.graph is not shown[0].graph)):
            self.left += len(group)
            return False
        for result in results:
            if result in shown:
                continue
            self._instead(result, source)
        for result in shown:
            self.stands_for[result] = source
            self.edit.take_over(source, result)
        self._remove(group)
        return True

    def _conversion(self, found: FakeQuant, source: ir.Value, known: QParams) -> None:
        """Rounding what is rounded: nothing where it is the same again, a change of type where it is not."""
        if found.params.same_as(known) and not any(r.is_graph_output() for r in found.results):
            for result in found.results:
                self._instead(result, source)
            self._remove([found])
        else:
            self._edges(found, source)

    def _edges(self, found: FakeQuant, source: ir.Value) -> None:
        """Let each reader of the results read the source, rounded on that edge alone."""
        readers = {n for r in found.results for n in query.readers(r)}
        direct = set(query.readers(source))
        clash = any(n in direct or Key(source.name or "", n.name) in self.out.params for n in readers)
        if clash or any(r.is_graph_output() for r in found.results) or not readers:
            self.left += 1
            return
        for result in found.results:
            self._instead(result, source)
        for reader in readers:
            self.out.params[Key(source.name or "", reader.name)] = found.params
        self._remove([found])

    def _instead(self, result: ir.Value, source: ir.Value) -> None:
        for node, index in tuple(result.uses()):
            node.replace_input_with(index, source)
        self.stands_for[result] = source

    def _remove(self, group: Sequence[FakeQuant]) -> None:
        for found in group:
            self.edit.remove(reversed(found.nodes))

    # ---- weights

    def _weight(self, found: FakeQuant) -> None:
        if any(r.is_graph_output() for r in found.results):
            self.left += 1
            return
        slot = (found.source, found.identity)
        uses = [use for r in found.results for use in tuple(r.uses())]
        tensor = self.constants[slot].const_value if slot in self.constants else content_of(found)
        name = found.source.name or "weight"
        if found.stored:
            name = name.removesuffix(_STORED)
        if tensor is not None:
            self._carry(uses, tensor, found.params, name, slot)
        self._remove([found])
        kept = self.constants.get(slot)
        if kept is not None and name not in self.edit.values.taken:
            self._rename(kept, name)

    def _carry(
        self,
        uses: Sequence[tuple[ir.Node, int]],
        tensor: ir.TensorProtocol,
        params: QParams,
        name: str,
        slot: Hashable,
    ) -> None:
        """Give a trained constant to its readers, behind the data movement that some of them are."""
        for node, index in uses:
            further = moved_by(node, tensor, params) if index == 0 else None
            if further is not None:
                result = node.outputs[0]
                self._carry(tuple(result.uses()), *further, result.name or name, (slot, result))
                self.edit.remove([node])
                continue
            if slot not in self.constants:
                self.constants[slot] = self.edit.constant(name, tensor)
                self.out.params[Key(self.constants[slot].name or "")] = params
            node.replace_input_with(index, self.constants[slot])

    def _rename(self, value: ir.Value, name: str) -> None:
        """Give a constant the name of the one that it took the place of."""
        params = self.out.params.pop(Key(value.name or ""))
        initializers = self.model.graph.initializers
        initializers.pop(value.name or "")
        self.edit.values.taken.discard(value.name or "")
        value.name = self.edit.values.claim(name)
        if value.const_value is not None:
            value.const_value.name = value.name
        initializers.add(value)
        self.out.params[Key(value.name)] = params


def _recognised(node: ir.Node) -> FakeQuant | None:
    for look in (pair, stored, operator, chain):
        found = look(node)
        if found is not None:
            return found
    return None


def _index(node: ir.Node, value: ir.Value) -> int:
    return next(i for i, v in enumerate(node.inputs) if v is value)
