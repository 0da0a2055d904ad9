"""From stock's weight-only settings to a recipe, and through Octavo's pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from octavo.algorithms.weights.blocks import Algorithm
from octavo.algorithms.weights.gptq import Gptq
from octavo.algorithms.weights.hqq import Hqq
from octavo.algorithms.weights.importance import Importance
from octavo.algorithms.weights.k_quant import KQuant
from octavo.algorithms.weights.registry import algorithm, text_of
from octavo.algorithms.weights.rtn import Furthest, Rtn
from octavo.core import kernels
from octavo.core.blocks import BlockScheme
from octavo.core.granularity import PerBlock
from octavo.core.qtypes import qtype
from octavo.core.recipe import LayerWeights, Placement, Recipe, Style, WeightOnly, WriteOptions
from octavo.core.scheme import Scheme
from octavo.emission import nbits
from octavo.errors import DataError, RecipeError, closest
from octavo.model.files import io
from octavo.model.graph import query
from octavo.pipeline import weights_only

Array = npt.NDArray[Any]

_KEYS = ("bits", "group_size", "scheme")
_SCHEMES = {"sym": True, "asym": False}
_BITS = (2, 4, 8)  # that MatMulNBits takes


def algorithm_of(name: str, settings: Any = None) -> Algorithm:
    """Return the algorithm of a stock name, or as a recipe writes it; ``settings`` is its config."""
    match name.lower():
        case "default":
            return Furthest()
        case "rtn":
            return Rtn()
        case "k_quant":
            return KQuant()
        case "hqq":
            return Hqq()
        case "importance" | "awq":
            return Importance()
        case "gptq" if hasattr(settings, "percdamp"):
            return Gptq(
                damping=settings.percdamp,
                lazy=settings.block_size,
                act_order=settings.actorder,
                search=settings.mse,
                per_row=settings.perchannel,
            )
    if name.lower().startswith("gptq"):
        return algorithm(name)
    known = ("DEFAULT", "RTN", "k_quant", "HQQ", "GPTQ", "importance", "awq")
    raise RecipeError(
        f"There is no weight-only algorithm {name!r}{closest(name, known) or '.'} Known: {', '.join(known)}."
    )


def is_symmetric(scheme: str) -> bool:
    """Whether a scheme, ``sym`` or ``asym``, is symmetric."""
    if scheme not in _SCHEMES:
        raise RecipeError(f"{scheme!r} is not a weight scheme; write sym or asym.")
    return _SCHEMES[scheme]


@dataclass(frozen=True)
class NBits:
    """What a caller of the weight-only quantizers wants; ``special`` has settings by node, None for float."""

    algorithm: Algorithm = field(default_factory=Furthest)
    steps: tuple[str, ...] = ()  # that change weights before they are quantized
    scheme: BlockScheme = field(default_factory=BlockScheme)
    ops: tuple[str, ...] = ("MatMul",)
    include: frozenset[str] | None = None
    exclude: frozenset[str] = frozenset()
    qdq: bool = False
    per_channel: bool = False  # QDQ: a block is a whole column
    accuracy_level: int | None = None
    special: Mapping[str, BlockScheme | None] = field(default_factory=dict)
    ratios: Mapping[str, float] = field(default_factory=dict)  # of ranges, by node name, for RTN
    gather_axis: int = 1  # along which blocks of a table run
    grouped: bool = False  # names of constants as neural_compressor has them
    samples: int = 128
    providers: tuple[str, ...] | None = None

    def recipe(self, names: Mapping[str, str]) -> Recipe:
        """The recipe for a model; ``names`` are those that the caller knows, by the name of the node."""
        known = set(names.values())
        for name in sorted((self.include or frozenset()) - known):
            raise RecipeError(f"There is no node {name!r} to include{closest(name, known) or '.'}")
        own = [self._layer(name, called) for name, called in names.items() if self._has_own(called)]
        return Recipe(
            weights=_scheme(self.scheme),
            activations=None,
            style=Style.QDQ if self.qdq else Style.QOPERATOR,
            placement=Placement.LISTED,
            op_types=self.ops,
            exclude=tuple(name for name, called in names.items() if self._is_out(called)),
            steps=self.steps,
            writing=WriteOptions(group_names=self.grouped, columns_transposed=self.per_channel),
            weight_only=WeightOnly(
                algorithm=text_of(self.algorithm),
                accuracy_level=self.accuracy_level or 0,
                embeddings=_scheme(self.scheme).qtype if "Gather" in self.ops else None,
                table_axis=self.gather_axis,
                whole_columns=self.per_channel,
                layers=tuple(own),
            ),
        )

    def _is_out(self, called: str) -> bool:
        return called in self.exclude or (self.include is not None and called not in self.include)

    def _has_own(self, called: str) -> bool:
        return called in self.special or (called in self.ratios and isinstance(self.algorithm, Rtn))

    def _layer(self, name: str, called: str) -> LayerWeights:
        scheme = self.special.get(called, self.scheme)
        if scheme is None:
            return LayerWeights(name, keep_float=True)
        how = self.algorithm
        if isinstance(how, Rtn) and called in self.ratios:
            how = replace(how, ratio=float(self.ratios[called]))
        return LayerWeights(name, _scheme(scheme).qtype, scheme.size, text_of(how))


def _scheme(blocks: BlockScheme) -> Scheme:
    if blocks.bits not in _BITS:
        raise RecipeError(f"MatMulNBits has no kernel for {blocks.bits} bits; choose 2, 4 or 8.")
    kind = qtype(f"{'int' if blocks.symmetric else 'uint'}{blocks.bits}")
    return Scheme(kind, PerBlock(blocks.size), symmetric=blocks.symmetric)


@dataclass(frozen=True)
class Outcome:
    """The model, what was quantized, and what was not and why."""

    model: ir.Model
    quantized: tuple[str, ...]
    skipped: Mapping[str, str]


def quantize(source: io.ModelSource, want: NBits, data: Any = None) -> Outcome:
    """Quantize the weights of a model."""
    names: dict[str, str] = {}

    def recipe(model: ir.Model, known: Mapping[ir.Node, str]) -> Recipe:
        names.update({node.name or "": known.get(node) or node.name or "" for node in query.nodes(model)})
        return want.recipe(names)

    model, plan = weights_only.quantize(source, recipe, data, samples=want.samples, providers=want.providers)
    skipped = {names[s.node]: s.reason for s in plan.skipped if s.op_type in want.ops}
    return Outcome(model, tuple(names[name] for name in plan.nodes), skipped)


def special(config: Mapping[str, Any] | None, base: BlockScheme) -> dict[str, BlockScheme | None]:
    """Settings by node: ``{"bits", "group_size", "scheme"}``, what is absent from the base; or ``"fp32"``."""
    return {name: _one(name, entry, base) for name, entry in (config or {}).items()}


def _one(name: str, entry: Any, base: BlockScheme) -> BlockScheme | None:
    if entry == "fp32":
        return None
    if not isinstance(entry, Mapping):
        raise RecipeError(f"The settings of node {name!r} are a dict of {', '.join(_KEYS)}, or 'fp32'.")
    for key in entry:
        if key not in _KEYS:
            raise RecipeError(
                f"The settings of node {name!r} have {key!r}{closest(str(key), _KEYS) or '.'}"
                f" Known: {', '.join(_KEYS)}."
            )
    return BlockScheme(
        int(entry.get("bits", base.bits)),
        int(entry.get("group_size", base.size)),
        is_symmetric(entry["scheme"]) if "scheme" in entry else base.symmetric,
        base.whole_zero,
    )


# ---- one node, or one array, by itself: for callers who walk the graph themselves


def quantize_node(
    node: onnx.NodeProto, weight: onnx.TensorProto, want: NBits
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto]]:
    """One node by itself: what stands in its place, and the constants it reads; unchanged if it can't be."""
    position = 0 if node.op_type == "Gather" else 1
    other = node.input[1 - position]
    kind = onnx.TensorProto.INT64 if node.op_type == "Gather" else weight.data_type
    named = onnx.TensorProto()
    named.CopyFrom(weight)
    named.name = node.input[position]
    describe = onnx.helper.make_tensor_value_info
    outputs = [describe(node.output[0], weight.data_type, None)]
    graph = onnx.helper.make_graph([node], "node", [describe(other, kind, None)], outputs, [named])
    imports = [onnx.helper.make_opsetid("", 21)]
    made = quantize(onnx.helper.make_model(graph, opset_imports=imports), want)
    if not made.quantized:
        return [node], []
    proto = io.to_proto(made.model)
    return list(proto.graph.node), list(proto.graph.initializer)


def quantize_in_stack(
    node: onnx.NodeProto, graphs: Sequence[onnx.GraphProto], want: NBits
) -> list[onnx.NodeProto]:
    """Return the nodes that stand for one, in a stack of graphs from the main one inwards.

    The new constants go to the graph that has the weight; the float weight stays, since others may read it.
    """
    if node.op_type not in want.ops:
        return [node]
    name = node.input[0 if node.op_type == "Gather" else 1]
    for graph in reversed(graphs):
        for tensor in graph.initializer:
            if tensor.name == name:
                nodes, constants = quantize_node(node, tensor, want)
                graph.initializer.extend(constants)
                return nodes
    return [node]


def stored_parts(weight: Array, want: NBits, *, table: bool = False) -> tuple[Array, Array, Array]:
    """Packed integers, scales and packed zero points of a weight [K, N], or of a table, as they are stored.

    Without zero points their place is taken by the middle.
    """
    axis = want.gather_axis % weight.ndim if table else 0
    scheme = want.scheme
    if want.qdq and want.per_channel:
        scheme = replace(scheme, size=weight.shape[axis])
    moved = np.moveaxis(weight, axis, -1)
    made = want.algorithm.blocks(moved.reshape(-1, weight.shape[axis]), scheme)
    zero = made.zero_point
    if zero is None:
        zero = np.full(made.scale.shape, scheme.middle, np.uint8)
    if not (want.qdq or table):
        return nbits.laid_out(made.integers, scheme), made.scale, nbits.zero_points(zero, scheme)

    def back(array: Array) -> Array:
        return np.moveaxis(array.reshape(*moved.shape[:-1], -1), -1, axis)

    integers, zeros = back(made.integers), back(zero)
    return _flat(integers, scheme), np.ascontiguousarray(back(made.scale)), _flat(zeros, scheme)


def _flat(integers: Array, scheme: BlockScheme) -> Array:
    """Packed over all of the array; signed where zero lies in the middle."""
    shift = scheme.middle if scheme.symmetric else 0
    signed = np.ascontiguousarray(integers.astype(np.int16) - shift).astype(np.int8)
    return kernels.pack(signed.reshape(-1), scheme.bits)


class Loader:
    """Samples of a reader or of a loader that also gives labels, as ``{input name: array}``."""

    def __init__(self, loader: Any, inputs: list[str]) -> None:
        self._loader, self._inputs = loader, inputs

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        if self._loader is None:
            raise DataError(
                "GPTQ needs calibration data: pass a reader with get_next(), or a list of samples."
            )
        reads = getattr(self._loader, "get_next", None)
        for item in iter(reads, None) if callable(reads) else self._loader:
            yield self._sample(item)

    def _sample(self, item: Any) -> Mapping[str, Any]:
        if isinstance(item, tuple) and len(item) == 2:
            item = item[0]
        if isinstance(item, Mapping):
            return item
        if isinstance(item, np.ndarray) or np.isscalar(item):
            item = [item]
        return dict(zip(self._inputs, item, strict=False))
