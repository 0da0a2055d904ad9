"""What all styles share: constants for scales and zero points, quantized weights, and positions of new nodes.

Nothing is decided here. All but small weights are quantized when their bytes are needed, so that a model of
many gigabytes passes through one tensor at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.core import kernels
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.plan import Constant, Derived, Fixed, Key, Plan, Shared
from octavo.core.qparams import QParams
from octavo.core.qtypes import QType
from octavo.emission import names
from octavo.emission.operands import Quantized
from octavo.errors import TableError
from octavo.model.files.io import weight_bytes
from octavo.model.graph import query
from octavo.model.graph.edit import Editor, prepend
from octavo.model.graph.meta import set_typed
from octavo.model.graph.tensors import ArrayTensor, dims_of, of_array
from octavo.planning.resolve import Params, stored_granularity
from octavo.planning.weights import weight_of

MS = "com.microsoft"
Axes = tuple[int, ...]

_ARRAYS = (ArrayTensor, ir.Tensor)
KEEP_BYTES = 256 << 20  # the quantized weights of a smaller model stay in memory once computed
_LAZY_ELEMENTS = 1 << 16  # a smaller weight is quantized at once; to defer it costs more than to keep it


class _Known(dict[Key, QParams]):
    """Parameters by key; a key without any is an error of the plan."""

    def __missing__(self, key: Key) -> QParams:
        raise TableError(
            f"The plan quantizes {key} while the model runs, but the operator that reads it needs a scale"
            " ahead of time; measure the tensor, or make the plan again with 'octavo plan'."
        )


class Writer:
    """Edits one model by one plan; the model is changed in place."""

    def __init__(self, model: ir.Model, plan: Plan, params: Params) -> None:
        self.model, self.plan, self.params = model, plan, _Known(params)
        self.editor = Editor(model)
        self.nodes = {node.name or "": node for node in query.nodes(model)}
        self._check_nodes()
        self.keeps = weight_bytes(model) < KEEP_BYTES
        self.shared: dict[Hashable, Any] = {}  # what several lowered nodes have in common
        self._constants: dict[Hashable, tuple[ir.Value, ir.Value]] = {}
        self._scales: dict[Hashable, ir.Value] = {}
        self._zeros: dict[Hashable, ir.Value] = {}
        self._weights: dict[Hashable, ir.Value] = {}
        self._consumers = Counter(key.tensor for key in plan.entries)
        self._permuted: dict[tuple[ir.Value, Axes], ir.Value] = {}
        self._fuse()
        self.values = query.values(model)
        for key in plan.entries:
            if key.consumer is None and self.values[key.tensor].is_initializer():
                self._consumers[key.tensor] = len(self.values[key.tensor].uses())

    def _check_nodes(self) -> None:
        """Raise where the plan was made for another model."""
        missing = [name for name in self.plan.nodes if name not in self.nodes]
        if missing:
            raise TableError(
                f"The plan names {len(missing)} nodes that this model does not have, such as {missing[0]!r};"
                " make a plan for this model, prepared in the same way."
            )

    def _fuse(self) -> None:
        """Remove the clamps that quantized ranges replace; their inputs take over their outputs."""
        for name in self.plan.fused:
            clamp = self.nodes.get(name)
            if clamp is None or clamp.inputs[0] is None:
                raise TableError(f"The plan fuses a node {name!r} that this model does not have.")
            self.editor.take_over(clamp.inputs[0], clamp.outputs[0])
            self.editor.remove([clamp])
            del self.nodes[name]

    # ---- parameters as constants

    def scale_and_zero(self, key: Key, suffix: str = "") -> tuple[ir.Value, ir.Value]:
        """Return initializers with scale and zero point of a key, or of the root that it shares them with."""
        params = self.params[key]
        base = self.plan.root(key).tensor
        if isinstance(self.plan.entries[key], Derived):
            base += names.QUANTIZED
        slot = (base, params.identity)
        known = self._constants.get(slot)
        if known is None:
            zero = self._zero(base + names.ZERO_POINT + suffix, params)
            # The scale of a bias is a list, even of one.
            is_bias = isinstance(self.plan.entries[key], Derived)
            content = np.atleast_1d(params.scale) if is_bias else params.scale
            scale = self.number(base + names.SCALE + suffix, content)
            known = self._constants[slot] = (scale, zero)
        return known

    def _zero(self, name: str, params: QParams) -> ir.Value:
        """Return a zero point; equal ones are one initializer unless the plan's writing is explicit.

        The time that the runtime takes to load a graph grows with the square of the number of initializers.
        """
        if self.plan.writing.explicit:
            return self.number(name, params.zero_point, params.qtype)
        zero = params.zero_point
        slot = (params.qtype, zero.shape, zero.tobytes())
        if slot not in self._zeros:
            self._zeros[slot] = self.constant(names.zero_point(params) or name, zero, params.qtype)
        return self._zeros[slot]

    def _numbers(self, key: Key, suffix: str) -> Sequence[ir.Value]:
        """Return scale and zero point; only the scale of an int32 bias, whose zero point is always zero."""
        if self.plan.writing.explicit or not isinstance(self.plan.entries[key], Derived):
            return self.scale_and_zero(key, suffix)
        name = self.plan.root(key).tensor + names.QUANTIZED + names.SCALE + suffix
        slot = (name, self.params[key].identity)
        if slot not in self._scales:
            self._scales[slot] = self.constant(name, self.params[key].scale)
        return [self._scales[slot]]

    def constant(self, name: str, content: Any, qtype: QType | None = None) -> ir.Value:
        """Add an initializer; of a quantized type where one is given."""
        dtype = ir.DataType(qtype.onnx) if qtype is not None else None
        return self.editor.constant(name, np.asarray(content), dtype)

    def number(self, name: str, content: Any, qtype: QType | None = None) -> ir.Value:
        """Add an initializer that holds scales or zero points."""
        value = self.constant(name, content, qtype)
        tensor = value.const_value
        if self.plan.writing.explicit and tensor is not None and type(tensor) in _ARRAYS:
            set_typed(tensor)
        return value

    # ---- weights

    def is_stored(self, key: Key) -> bool:
        """Return whether a key is a weight, a bias or a constant operand, whose integers are stored."""
        match self.plan.entries[key]:
            case Constant() | Derived():
                return True
            case Fixed():
                return weight_of(self.values[key.tensor]) is not None
            case Shared():
                return self.values[key.tensor].is_initializer()
            case _:
                return False

    def quantized_weight(self, key: Key, *, layout: Axes | None = None) -> ir.Value:
        """Return the integers of a weight or bias, stored once for all consumers with the same parameters.

        A tied weight, read through a Transpose, is stored as it was and transposed when the runtime loads it.
        ``layout`` is a further permutation of axes, for kernels that take another order.
        """
        source = weight_of(self.values[key.tensor])
        if source is None:
            raise TableError(
                f"The plan quantizes {key.tensor!r} as a constant, which it is not in this model."
            )
        origin, perm = source
        if layout is None:
            stored = self._stored(key, origin, perm, None)
            return stored if perm is None else self._transposed(stored, perm, key)
        whole = layout if perm is None else tuple(perm[i] for i in layout)
        if self._consumers[key.tensor] > 1:
            return self._transposed(self._stored(key, origin, perm, None), whole, key)
        return self._stored(key, origin, perm, None if whole == tuple(range(len(whole))) else whole)

    def _stored(self, key: Key, origin: ir.Value, perm: Axes | None, layout: Axes | None) -> ir.Value:
        """Return the initializer with the integers of ``origin``, its axes in the order ``layout``."""
        params = self.params[key]
        if perm is not None:
            params = QParams(params.scale, params.zero_point, params.qtype, stored_granularity(params, perm))
        limits = self._limits(key)
        slot = (origin, params.identity, limits, layout)
        if slot not in self._weights:
            tensor = integers(origin, params, limits, layout, self.keeps)
            self._weights[slot] = self.editor.constant((origin.name or "") + names.QUANTIZED, tensor)
        return self._weights[slot]

    def _limits(self, key: Key) -> tuple[int, int] | None:
        match self.plan.entries[key]:
            case Constant(scheme) | Fixed(scheme) if not scheme.qtype.is_float:
                low, high = scheme.qtype.limits(symmetric=scheme.symmetric, reduced=scheme.reduce_range)
                middle = scheme.symmetric and scheme.reduce_range and not scheme.qtype.signed
                return low, high + 1 if middle else high  # as far above the middle, which is 64, as below
            case _:
                return None

    def _transposed(self, stored: ir.Value, perm: Axes, key: Key) -> ir.Value:
        """Return the integers of a tied weight, transposed for its consumer; the runtime folds that."""
        if (stored, perm) not in self._permuted:
            name = key.tensor + names.QUANTIZED
            node = self.editor.node(
                "Transpose", [stored], {"perm": list(perm)}, name=name, output=name, dtype=stored.dtype
            )
            prepend(self.model.graph, [node])
            self._permuted[stored, perm] = node.outputs[0]
        return self._permuted[stored, perm]

    # ---- positions

    def after(self, value: ir.Value, new: Sequence[ir.Node]) -> None:
        """Insert nodes right after the one that computes a value."""
        producer = value.producer()
        if producer is not None and producer.graph is not None:
            producer.graph.insert_after(producer, new if len(new) > 1 else new[0])
        else:
            graph = value.graph if value.graph is not None and value.is_graph_input() else self.model.graph
            prepend(graph, new)

    def before(self, node: ir.Node, new: Sequence[ir.Node]) -> None:
        """Insert nodes before one."""
        if node.graph is None:
            raise TableError(f"The plan names {node.name!r} twice, or it was removed; make the plan again.")
        node.graph.insert_before(node, new)

    # ---- single nodes

    def quantize(self, value: ir.Value, key: Key, suffix: str = "") -> ir.Node:
        """Return a QuantizeLinear node for a value, not inserted yet."""
        return self._linear("QuantizeLinear", names.QUANTIZE, value, key, suffix, self.params[key].qtype.onnx)

    def dequantize(self, value: ir.Value, key: Key, suffix: str = "") -> ir.Node:
        """Return a DequantizeLinear node for an integer value, not inserted yet."""
        return self._linear("DequantizeLinear", names.DEQUANTIZE, value, key, suffix, ir.DataType.FLOAT)

    def dynamically_quantized(self, value: ir.Value) -> tuple[ir.Node, Quantized]:
        """Return a DynamicQuantizeLinear node for a value, not inserted yet, and its results."""
        base, kinds = value.name or "", (ir.DataType.UINT8, ir.DataType.FLOAT, ir.DataType.UINT8)
        outputs = [
            ir.Value(name=self.editor.values.claim(base + suffix), type=ir.TensorType(kind))
            for suffix, kind in zip((names.QUANTIZED, names.SCALE, names.ZERO_POINT), kinds, strict=True)
        ]
        name = self.editor.nodes.claim(base + names.QUANTIZE)
        node = ir.Node("", "DynamicQuantizeLinear", [value], outputs=outputs, name=name)
        return node, Quantized(*outputs)

    def _linear(self, op: str, infix: str, value: ir.Value, key: Key, suffix: str, dtype: int) -> ir.Node:
        base, end = key.tensor, suffix
        if suffix.startswith(names.CONVERTED):
            base, end = base + suffix, ""
        return self.editor.node(
            op,
            [value, *self._numbers(key, suffix)],
            _axis(self.params[key].granularity),
            name=base + infix + end,
            output=base + infix + names.OUTPUT + end,
            dtype=ir.DataType(dtype),
            domain=self.plan.writing.domain,
        )

    def like(self, node: ir.Node, domain: str, op_type: str, operands: Sequence[ir.Value | None]) -> ir.Node:
        """Return a node to replace another, with new outputs of the same types; not inserted yet."""
        outputs = [
            ir.Value(
                name=self.editor.values.claim(v.name + names.QUANTIZED) if v.name else None,
                type=v.type,
                shape=v.shape,
            )
            for v in node.outputs
        ]
        name = self.editor.nodes.claim((node.name or "") + names.NODE)
        return ir.Node(domain, op_type, operands, outputs=outputs, name=name)

    # ---- replacing

    def replace_node(self, old: ir.Node, new: Sequence[ir.Node]) -> None:
        """Replace a node; the outputs of the last new node take over those of the old one."""
        self.before(old, new)
        for was, now in zip(old.outputs, new[-1].outputs, strict=False):
            if was.name:
                self.rename(now, was)
        self.editor.remove([old])

    def rename(self, new: ir.Value, old: ir.Value) -> None:
        """Replace a value by another, which takes over its name."""
        name = old.name or ""
        self.editor.take_over(new, old)
        self.values[name] = new

    def replace_everywhere(self, old: ir.Value, new: ir.Value, *, keep: Sequence[ir.Node] = ()) -> None:
        """Give every consumer but some another value; a graph output keeps its name."""
        kept = set(keep)
        for node, index in tuple(old.uses()):
            if node not in kept:
                node.replace_input_with(index, new)
        if old.is_graph_output():
            self.output_instead(old, new, names.QUANTIZE + names.INPUT)

    def output_instead(self, old: ir.Value, new: ir.Value, suffix: str) -> None:
        """Make another value a graph output, under its name; the old one has the suffix behind it."""
        graph = old.graph
        if graph is None:
            raise TableError(f"The output {old.name!r} is not part of a graph.")
        name = old.name or ""
        new.shape, new.type = old.shape, old.type
        for i, output in enumerate(graph.outputs):
            if output is old:
                graph.outputs[i] = new
        old.name = self.editor.values.claim(name + suffix)
        new.name = name

    def drop_unused(self, values: Sequence[ir.Value]) -> None:
        """Remove what nothing reads any more: float weights, nodes that only they feed, and zero points."""
        todo = [*values, *self._zeros.values()]
        while todo:
            value = todo.pop()
            if value.uses() or value.is_graph_output():
                continue
            producer = value.producer()
            if producer is not None:
                if len(producer.outputs) == 1 and producer.graph is not None:
                    todo.extend(v for v in producer.inputs if v is not None)
                    self.editor.remove([producer])
            elif value.is_initializer() and value.name and value.name in self.model.graph.initializers:
                self.model.graph.initializers.pop(value.name)


def integers(
    origin: ir.Value, params: QParams, limits: tuple[int, int] | None, layout: Axes | None, keep: bool
) -> ir.TensorProtocol:
    """Return the integers of a weight, computed when their bytes are needed; small ones to keep, at once."""
    source = origin.const_value
    if source is None:
        raise TableError(f"The weight {origin.name!r} has no content.")

    dims = dims_of(source)
    shape = ir.Shape(dims if layout is None else [dims[i] for i in layout])
    dtype = ir.DataType(params.qtype.onnx)

    def compute() -> ir.TensorProtocol:
        whole = kernels.quantize(np.asarray(source.numpy()), params, limits=limits)
        if layout is not None:
            whole = np.ascontiguousarray(whole.transpose(layout))
        return of_array(whole, dtype, shape)

    if keep and math.prod(dims) <= _LAZY_ELEMENTS:
        return compute()
    return ir.LazyTensor(compute, dtype=dtype, shape=shape, cache=keep)


def _axis(grain: Granularity) -> dict[str, int]:
    match grain:
        case PerTensor():
            return {}
        case PerChannel(axis):
            return {"axis": int(axis or 0)}
        case PerBlock(size, axis):
            return {"axis": int(axis or 0), "block_size": size}


class NodeChain:
    """New nodes in order, with names that begin alike."""

    def __init__(self, writer: Writer, base: str) -> None:
        self.w, self.base = writer, base
        self.new: list[ir.Node] = []

    def node(
        self,
        op: str,
        inputs: Sequence[ir.Value | None],
        suffix: str,
        dtype: ir.DataType | None = ir.DataType.FLOAT,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """Add a node and return its result."""
        name, editor = self.base + suffix, self.w.editor
        node = editor.node(op, inputs, attributes, name=name, output=name, dtype=dtype, domain=domain)
        self.new.append(node)
        return node.outputs[0]

    def shared(self, name: str, content: Any, qtype: QType | None = None, key: Hashable = None) -> ir.Value:
        """Return a constant that all chains share under this name."""
        slot = (name, key)
        if slot not in self.w.shared:
            self.w.shared[slot] = self.w.constant(name, content, qtype)
        found: ir.Value = self.w.shared[slot]
        return found
