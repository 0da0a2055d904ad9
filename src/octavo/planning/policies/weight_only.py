"""The policy of weight-only recipes: matrices and tables in blocks of 2, 4 or 8 bits, activations float.

A matrix product becomes MatMulNBits in the QOperator style, and stays what it is behind a DequantizeLinear
with blocks in the QDQ style; a lookup becomes GatherBlockQuantized. Where one of the two can't express a
weight, or the runtime reads it wrongly, the other is taken; where neither can, the node stays float.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from octavo.algorithms.weights.blocks import Inputs
from octavo.algorithms.weights.importance import Importance
from octavo.algorithms.weights.k_quant import KQuant
from octavo.algorithms.weights.registry import WITHOUT_DATA, algorithm, text_of
from octavo.algorithms.weights.rtn import Furthest
from octavo.core.granularity import PerBlock
from octavo.core.plan import Constant, Key, Shared
from octavo.core.qtypes import QType, qtype
from octavo.core.recipe import LayerWeights, Placement, Recipe, Style
from octavo.core.scheme import Scheme
from octavo.errors import RecipeError
from octavo.model.graph import query
from octavo.ops import (
    GATHER_BLOCKS,
    MATMUL_NBITS,
    QMOE,
    Kind,
    Lowering,
    OpRule,
    Table,
    Weight,
    axis_of,
    rule_of,
)
from octavo.ops.patterns import FOLLOW_LOGITS
from octavo.planning import refusals, weights
from octavo.planning.policies.policy import Policy
from octavo.planning.state import State
from octavo.planning.weights import scheme_of, weight_of
from octavo.targets import Target

BITS = (2, 4, 8)  # that MatMulNBits takes
SIZES = (16, 32, 64, 128, 256)  # blocks that MatMulNBits takes
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
_ONLY_WEIGHTS = "only matrices and tables are quantized where activations stay float"


class WeightOnlyPolicy(Policy):
    """Quantizes constant matrices, and tables where the recipe names a type for them."""

    def __init__(self, recipe: Recipe, target: Target) -> None:
        super().__init__(recipe, target)
        self.options = recipe.weight_only

    def begin(self, state: State) -> None:
        """Look for the head, and for the nodes that have settings of their own."""
        super().begin(state)
        self.heads = _heads(state.model)
        self.observable = frozenset(query.conditional_graphs(state.model))
        listed = self.recipe.placement is Placement.LISTED
        self.least_table = 0 if listed else max(map(_table_size, state.nodes), default=0) // _SMALL_TABLE
        self.own: dict[str, LayerWeights] = {}
        for one in self.options.layers:
            self.own.update(dict.fromkeys(state.selection.matches(one.nodes), one))

    def elementwise(self, node: ir.Node, rule: OpRule) -> str | None:
        """Leave it float."""
        return _ONLY_WEIGHTS

    movement = recurrent = elementwise

    # ---- matrices

    def linear(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize a constant matrix."""
        if not rule.is_matrix_product:
            return self._per_channel(node, rule)
        value = node.inputs[1]
        found = self._matrix(value)
        if isinstance(found, str) or value is None:
            return found if isinstance(found, str) else _NOT_CONSTANT
        own, role = self.own.get(node.name or ""), rule.role(1)
        if own is not None and own.keep_float:
            return _OWN
        axis = axis_of(role.sums, node) if isinstance(role, Weight) else None
        rows, columns = found.shape if axis == 0 else found.shape[::-1]
        kind = self.options.head if node.name in self.heads else None
        scheme = self._scheme(kind, own, axis or 0)
        lowering = self._lowered(node, scheme, columns)
        if isinstance(lowering, str):
            return lowering
        if lowering is None and self.options.whole_columns:
            scheme = scheme.but(granularity=PerBlock(rows, axis))
        self.state.place(value, Constant(scheme, self._algorithm(node, own, scheme)), node)
        self.state.take(node, lowering, accuracy_level=self._level(scheme.qtype.bits))
        return None

    def _level(self, bits: int) -> int:
        """Return the accuracy level of a layer; of other bits than the recipe's only 4 have another than 4.

        Below level 4 the runtime has a kernel for 4 bits alone. Matrices of 2 and 8 bits it turns back into
        float at every call, which makes a token 10 times as slow as float; an 8-bit head would do that to a
        model of 4 bits.
        """
        listed = self.recipe.placement is Placement.LISTED
        return self.options.accuracy_level if listed or bits in (4, self.recipe.weights.qtype.bits) else 4

    def experts(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize the matrices of experts, which lie along a first axis, as QMoE."""
        own = self.own.get(node.name or "")
        if own is not None and own.keep_float:
            return _OWN
        found = rule.reads(node, Weight)
        scheme = self._scheme(None, own, 2)
        reason = rule.refusal(node) or next(filter(None, (self._expert(one, scheme) for one in found)), None)
        if reason is not None:
            return reason
        text = self._algorithm(node, own, scheme)
        for index, value in enumerate(found):
            is_seen = not index or algorithm(text).wants is Inputs.NONE  # what experts compute inside is not
            self.state.place(value, Constant(scheme, text if is_seen else WITHOUT_DATA), node)
        self.state.take(node, QMOE, accuracy_level=self.options.accuracy_level)
        return None

    def _expert(self, value: ir.Value, scheme: Scheme) -> str | None:
        """Return why QMoE can't take a weight of experts, or None."""
        dims, tensor = query.static_shape(value) or (), query.constant(value)
        size = scheme.granularity.size if isinstance(scheme.granularity, PerBlock) else 0
        if not self.target.accepts.contrib_ops:
            return f"target {self.target.name} does not take QMoE"
        if tensor is None or weight_of(value) != (value, None) or len(dims) != 3 or 0 in dims:
            return _NOT_CONSTANT
        if tensor.dtype not in _FLOATS:
            return f"its weight is of type {tensor.dtype.name.lower()}; float32 and float16 are taken"
        if size not in SIZES or dims[2] % size:
            return f"QMoE takes whole blocks only, and {dims[2]} inputs are not blocks of {size}"
        return self.state.avoided(value)

    def _per_channel(self, node: ir.Node, rule: OpRule) -> str | None:
        """Give a Conv and its like a scale for each channel, where everything is to be quantized."""
        if self.recipe.placement is not Placement.EVERYWHERE or self.style is not Style.QDQ:
            return "weights in blocks are for matrix products"
        reason = refusals.unusable(node, rule, self.recipe) or refusals.unaccepted(
            node, rule, self.recipe, self.target
        )
        found = [value for value in rule.reads(node, Weight) if query.constant(value) is not None]
        if reason is not None or not found:
            return reason or _NOT_CONSTANT
        for value in found:
            index = next(i for i, v in enumerate(node.inputs) if v is value)
            scheme = scheme_of(node, rule, index, self.recipe, self.target)
            self.state.place(value, Constant(scheme), node)
        self.state.take(node, None)
        return None

    def _matrix(self, value: ir.Value | None) -> _Matrix | str:
        """Return the shape of a constant matrix, or why it can't be quantized."""
        source = weight_of(value)
        if source is None or (self.recipe.placement is Placement.LISTED and source[1] is not None):
            return _NOT_CONSTANT
        tensor = query.constant(source[0])
        if tensor is None:
            return _NOT_CONSTANT
        if tensor.dtype not in _FLOATS:
            return f"its weight is of type {tensor.dtype.name.lower()}; float32 and float16 are taken"
        dims = tuple(int(d) for d in tensor.shape.numpy())
        if len(dims) != 2:
            return f"its weight has {len(dims)} dimensions; a matrix is taken"
        if not np.prod(dims):
            return "its weight is empty"
        reason = self.state.avoided(source[0]) or (self.state.avoided(value) if value is not None else None)
        return reason or _Matrix((dims[1], dims[0]) if source[1] == (1, 0) else dims)

    def _scheme(self, kind: QType | None, own: LayerWeights | None, axis: int) -> Scheme:
        """Return the scheme of one weight; its type is signed where zero lies in the middle."""
        base = self.recipe.weights
        grain = base.granularity
        size = grain.size if isinstance(grain, PerBlock) else 32
        symmetric = base.symmetric
        if kind is not None:
            base, symmetric = base.but(qtype=kind), kind.signed
        if own is not None:
            size = own.block if own.block is not None else size
            if own.qtype is not None:
                base, symmetric = base.but(qtype=own.qtype), own.qtype.signed
        if base.qtype.bits not in BITS or base.qtype.is_float:
            raise RecipeError(f"Weights in blocks have 2, 4 or 8 bits, not those of {base.qtype}.")
        wanted = qtype(f"{'int' if symmetric else 'uint'}{base.qtype.bits}")
        return Scheme(wanted, PerBlock(size, axis), symmetric=symmetric)

    def _algorithm(self, node: ir.Node, own: LayerWeights | None, scheme: Scheme) -> str:
        """Return the algorithm of a weight.

        One whose inputs can't be observed is rounded to nearest, and so are 8 bits beside fewer: a search
        gains nothing there that would show.
        """
        is_wide = scheme.qtype.bits == 8 > self.recipe.weights.qtype.bits
        if is_wide and (own is None or own.algorithm is None):
            return "rtn"
        text = own.algorithm if own is not None and own.algorithm is not None else self.options.algorithm
        text = WITHOUT_DATA if text == "auto" else text
        if scheme.symmetric and not self.target.accepts.contrib_ops:
            text = _with_positive_scales(text)
        if algorithm(text).wants is Inputs.NONE:
            return text
        x = node.inputs[0]
        seen = x is not None and x.graph in self.observable
        return text if seen else "rtn"

    def _lowered(self, node: ir.Node, scheme: Scheme, columns: int) -> Lowering | str | None:
        """Return MatMulNBits, None for the operator itself behind DequantizeLinear, or why neither fits."""
        size = scheme.granularity.size if isinstance(scheme.granularity, PerBlock) else 0
        takes = self.target.accepts.contrib_ops and size in SIZES and _is_plain(node, columns)
        if self.style is Style.QDQ:
            taken = self.target.accepts.block_ops is None or node.op_type in self.target.accepts.block_ops
            misread = self.target.accepts.contrib_ops and self._misread(node, scheme.qtype.bits, columns)
            if taken and not misread:
                return None
            if takes and not self.options.whole_columns:
                return MATMUL_NBITS
            return "neither DequantizeLinear nor MatMulNBits runs such blocks here"
        if size not in SIZES:
            raise RecipeError(
                f"MatMulNBits takes blocks of {', '.join(map(str, SIZES))} values, not {size};"
                " choose one of these, or the QDQ format."
            )
        return MATMUL_NBITS if takes else None

    def _misread(self, node: ir.Node, bits: int, columns: int) -> bool:
        """Whether the runtime would get a product behind DequantizeLinear wrong.

        It fails on 8-bit blocks where the input comes from DequantizeLinear too and on any in a subgraph,
        whose weights lie outside, and fuses 2-bit rows that do not fill bytes wrongly.
        """
        inner = node.graph is not self.state.model.graph
        return inner or (bits == 8 and _reads_integers(node)) or (bits == 2 and columns % 4 != 0)

    # ---- tables

    def lookup(self, node: ir.Node, rule: OpRule) -> str | None:
        """Quantize a table whose rows are looked up one by one."""
        own = self.own.get(node.name or "")
        if own is not None and own.keep_float:
            return _OWN
        kind = self.options.embeddings
        if kind is None and (own is None or own.qtype is None):
            return "this recipe keeps embeddings in float"
        table = next(iter(rule.reads(node, Table)), None)
        tensor = query.constant(table)
        if node.domain or not rule.moves_values or table is None or tensor is None:
            return _NOT_CONSTANT
        if tensor.dtype not in _FLOATS:
            return f"its weight is of type {tensor.dtype.name.lower()}; float32 and float16 are taken"
        rank, axis = len(tensor.shape), self.options.table_axis
        if not tensor.size:
            return "its weight is empty"
        if not -rank <= axis < rank:
            return f"its table has no axis {axis} for blocks to run along"
        scheme = self._scheme(kind, own, axis % rank)
        if scheme.qtype.bits == 2 and self.recipe.placement is Placement.LISTED:
            return "tables of 2 bits are not among the operators listed"
        if tensor.size < self.least_table and own is None:
            return "its table is small beside the largest one, so there is little to gain"
        width = int(tensor.shape.numpy()[axis])
        reason = self.state.avoided(table) or _table_refusal(node, scheme, rank, width, self.target)
        if reason is not None:
            return reason
        text = "furthest" if self.recipe.placement is Placement.LISTED else WITHOUT_DATA
        self.state.place(table, Constant(scheme, text), node)
        self.state.take(node, GATHER_BLOCKS)
        return None

    def finish(self) -> None:
        """Store a table once that a lookup and the product that makes logits read alike."""
        if self.recipe.placement is Placement.LISTED:
            return
        nodes = {node.name or "": node for node in self.state.nodes}
        lookups = [n for n, q in self.state.quantized.items() if q.lowering == GATHER_BLOCKS.op_type]
        heads = [
            name
            for name in sorted(self.heads & self.state.quantized.keys())
            if self.state.quantized[name].lowering == MATMUL_NBITS.op_type
        ]
        for lookup, head in ((nodes[a], nodes[b]) for a in lookups for b in heads):
            table, weight = lookup.inputs[0], head.inputs[1]
            if table is None or weight is None or query.attribute(lookup, "axis", 0) != 0:
                continue
            key = Key(weight.name or "", head.name)
            own, other = self.state.entries[Key(table.name or "", lookup.name)], self.state.entries[key]
            width = (query.static_shape(table) or (0,))[-1]
            transposed = bool(query.attribute(head, "transB", 0))
            if weights.are_alike(own, other, width) and weights.is_tied(table, weight, transposed):
                self.state.place(table, Shared(*key), lookup)


def _with_positive_scales(text: str) -> str:
    """Return an algorithm that gives no negative scale: runtimes other than ONNX Runtime refuse them."""
    chosen = algorithm(text)
    if isinstance(chosen, Furthest):
        return "rtn"
    return text_of(replace(chosen, positive=True)) if isinstance(chosen, (KQuant, Importance)) else text


@dataclass(frozen=True)
class _Matrix:
    """A constant matrix as its consumer reads it."""

    shape: tuple[int, ...]


_SMALL_TABLE = 16  # a table with fewer values than this part of the largest one stays float
_NOT_CONSTANT = "its weight is not constant"
_OWN = "left float by its own settings"


def _table_size(node: ir.Node) -> int:
    """Return how many values the constant table of a lookup holds; 0 of other nodes."""
    rule = rule_of(node)
    if rule is None or rule.kind is not Kind.LOOKUP:
        return 0
    found = (query.constant(table) for table in rule.reads(node, Table))
    return max((tensor.size for tensor in found if tensor is not None), default=0)


def _table_refusal(node: ir.Node, scheme: Scheme, rank: int, width: int, target: Target) -> str | None:
    """Return why a lookup can't be written as GatherBlockQuantized, or None."""
    bits, grain = scheme.qtype.bits, scheme.granularity
    size, axis = (grain.size, grain.axis) if isinstance(grain, PerBlock) else (0, None)
    if not target.accepts.contrib_ops:
        return f"target {target.name} does not take GatherBlockQuantized"
    if size < 16 or size & (size - 1):
        return f"GatherBlockQuantized takes blocks of a power of two from 16, not {size}"
    if bits == 2 and width % size:
        return f"GatherBlockQuantized takes 2 bits only in whole blocks, and {width} values are not"
    if bits != 4 and (int(query.attribute(node, "axis", 0)) % rank != 0 or axis != rank - 1):
        return f"GatherBlockQuantized takes {bits} bits only along axis 0, with blocks along the last axis"
    return None


def _is_plain(node: ir.Node, columns: int) -> bool:
    """Whether a product is one that MatMulNBits computes: of a Gemm, with a bias for each column at most."""
    if node.op_type != "Gemm":
        return True
    bias = query.operand(node, 2)
    factors = (query.attribute(node, "alpha", 1.0), query.attribute(node, "beta", 1.0))
    return (
        not query.attribute(node, "transA", 0)
        and factors == (1.0, 1.0)
        and (bias is None or query.static_shape(bias) == (columns,))
    )


def _reads_integers(node: ir.Node) -> bool:
    """Whether the input comes from DequantizeLinear, perhaps through data movement.

    The runtime would then fuse 8-bit blocks into an integer product that has no blocks, and fail.
    """
    value = node.inputs[0]
    while value is not None:
        producer = value.producer()
        if producer is None:
            return False
        if query.is_op(producer, "DequantizeLinear"):
            return True
        rule = rule_of(producer)
        if rule is None or rule.kind not in (Kind.DATA_MOVEMENT, Kind.LOOKUP) or not rule.moves_values:
            return False
        value = producer.inputs[0]
    return False


def _made_outputs(model: ir.Model) -> Iterator[tuple[ir.Value, tuple[int | None, ...] | None]]:
    """Yield the outputs of a model with their shapes; of an If, those of its branches."""
    waiting = [(output, query.shape(output)) for output in model.graph.outputs]
    while waiting:
        value, dims = waiting.pop()
        node = value.producer()
        if node is not None and query.is_op(node, "If"):
            index = next(i for i, made in enumerate(node.outputs) if made is value)
            branches = [graph.outputs[index : index + 1] for graph in query.subgraphs(node)]
            waiting += [(made, dims) for outputs in branches for made in outputs]
        else:
            yield value, dims


def _heads(model: ir.Model) -> frozenset[str]:
    """Return the products that make an output, such as logits: the last axis of both is the same."""
    found: set[str] = set()
    for output, dims in _made_outputs(model):
        node = output.producer()
        while node is not None and not node.domain and node.op_type in FOLLOW_LOGITS:
            computed = [v for v in node.inputs if v is not None and query.constant(v) is None]
            node = computed[0].producer() if len(computed) == 1 else None
        rule = rule_of(node) if node is not None else None
        if node is None or rule is None or not rule.is_matrix_product:
            continue
        shape = query.shape(node.outputs[0])
        if dims and shape and dims[-1] is not None and dims[-1] != shape[-1]:
            continue
        found.add(node.name or "")
    return frozenset(found)
