"""Weights of a GGUF file placed into an exported graph, with the integers and scales that the file has.

The graph is one of the same model in float. Which of its weights is which tensor of the file is found by
their values: an exporter may name weights as it likes, and a file in which rows of queries and keys are
reordered for another layout of rotary embeddings (as llama.cpp's converter does) is recognized as well.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from octavo.algorithms.weights.rtn import Rtn
from octavo.core import gguf_blocks
from octavo.core.blocks import Array, BlockMatrix, Blocks, BlockScheme
from octavo.core.granularity import PerBlock
from octavo.core.outputs import refuse_inputs
from octavo.core.plan import Constant, Key, Plan, Quantized
from octavo.core.qparams import QParams
from octavo.core.qtypes import qtype
from octavo.core.recipe import Style
from octavo.core.scheme import Scheme
from octavo.errors import ModelError
from octavo.model.files import gguf_format, io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.graph.scopes import remove_unused
from octavo.ops import MATMUL_NBITS, Weight, axis_of, rule_of
from octavo.pipeline.finish import emit
from octavo.planning.resolve import Params
from octavo.planning.weights import weight_of
from octavo.result import check_output, write_verified

SAME_COSINE = 0.9  # of a weight and what it was rounded to; 4 bits leave 0.99, and other weights have 0
_ROWS = 16  # of each weight that are compared, spread over all of it
_ANEW = BlockScheme(8, 32, symmetric=True)  # of what the file stores in a way that MatMulNBits has not


@dataclass(frozen=True)
class Placed:
    """A tensor of the file, the node that reads it now, and whether its numbers are the file's own."""

    tensor: str
    node: str
    format: str
    bits: int
    exact: bool


@dataclass(frozen=True)
class Imported:
    """What became of each tensor of a file."""

    placed: tuple[Placed, ...]
    left: dict[str, str]  # tensors that were not placed → why
    unmatched: tuple[str, ...]  # products of the graph that no tensor belongs to; they stay float


@dataclass(frozen=True)
class _Product:
    """A matrix product with a constant weight, which is read as rows [N, K]."""

    node: ir.Node
    value: ir.Value
    axis: int  # of the values that are summed

    source: ir.TensorProtocol
    turned: bool  # whether the source is stored as [K, N]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the number of rows, and of values in each."""
        dims = tuple(int(dim) for dim in self.source.shape.numpy())
        return dims[::-1] if self.turned else dims

    @functools.cached_property
    def sample(self) -> Array:
        """Return a few rows from all over."""
        whole = np.asarray(self.source.numpy())
        rows = whole.T if self.turned else whole
        return np.array(rows[_places(len(rows))])


def import_gguf(
    path: str | Path,
    graph: io.ModelSource,
    output: str | Path,
    *,
    accuracy_level: int = 4,
    external_data: bool | None = None,
) -> Imported:
    """Place the matrices of a GGUF file into a graph of the same model, and write that.

    ``accuracy_level`` is that of MatMulNBits: with 4 it rounds activations to 8 bits, block by block, as
    llama.cpp does; with 0 they stay float, which for layers of 8 bits is slower than float.
    """
    refuse_inputs({"output": output}, {"the GGUF file": path})
    file, model = gguf_format.read(path), io.load(graph)
    check_output(model, Path(output))
    normalize(model)
    products = list(_products(model))
    plan, params = Plan(Style.QOPERATOR, {}, {}), {}
    placed: list[Placed] = []
    left: dict[str, str] = {}
    open_products = {one.node.name or "": one for one in products}
    for tensor in file.tensors.values():
        if len(tensor.shape) != 2:
            left[tensor.name] = "only matrices are placed; the graph has the others"
        elif tensor.format is None:
            left[tensor.name] = f"the type {tensor.code} is not read"
        else:
            found = _match(file, tensor, open_products)
            if not found:
                left[tensor.name] = "no layer of the graph has its values"
            for product, order in found:
                blocks, exact = _blocks(tensor, order)
                key, params[key] = _entry(plan, product, blocks, accuracy_level)
                del open_products[product.node.name or ""]
                placed.append(
                    Placed(tensor.name, key.consumer or "", tensor.format.name, blocks.scheme.bits, exact)
                )
    if not placed:
        raise ModelError(
            f"None of the matrices of {path} are in the graph; export the model that the file was made from."
        )
    _write(model, plan, params, Path(output), external_data)
    return Imported(tuple(placed), left, tuple(open_products))


def _write(model: ir.Model, plan: Plan, params: Params, output: Path, external_data: bool | None) -> None:
    emit(model, plan, params)
    remove_unused(model)
    write_verified(model, output, None, external_data, (), None)


def _products(model: ir.Model) -> Iterator[_Product]:
    for node in query.nodes(model):
        rule = rule_of(node)
        if rule is None or not rule.is_matrix_product or node.graph is not model.graph:
            continue
        value, role = node.inputs[1], rule.role(1)
        axis = axis_of(role.sums, node) if isinstance(role, Weight) else None
        source = weight_of(value)
        if value is None or source is None or query.attribute(node, "transA", 0):
            continue
        axis = 0 if axis is None else axis  # not known before shapes are: a matrix is summed over its rows
        tensor = query.constant(source[0])
        if tensor is not None and len(tensor.shape) == 2 and query.attribute(node, "alpha", 1.0) == 1.0:
            yield _Product(node, value, axis, tensor, (axis == 0) != (source[1] is not None))


def _match(
    file: gguf_format.GgufFile, tensor: gguf_format.GgufTensor, products: dict[str, _Product]
) -> list[tuple[_Product, Array | None]]:
    """Return the products that read a tensor, with the order of its rows; a tied table has one as well."""
    alike = [one for one in products.values() if one.shape == tensor.shape]
    if not alike:
        return []
    wanted = _places(tensor.shape[0])
    found = []
    for order in (None, *_orders(file, tensor)):
        rows = wanted if order is None else order[wanted]
        values = _some_rows(tensor, rows)
        for one in alike:
            close = _cosine(values, one.sample)
            if close >= SAME_COSINE:
                found.append((close, one, order))
    best = max((close for close, _, _ in found), default=0.0)
    # One tensor is one weight, which several products may share; others of the same values are as close.
    return [(one, order) for close, one, order in found if close >= best - 1e-6]


def _places(count: int) -> Array:
    return np.unique(np.linspace(0, count - 1, min(_ROWS, count)).astype(int))


def _some_rows(tensor: gguf_format.GgufTensor, rows: Array) -> Array:
    name = tensor.format.name if tensor.format is not None else ""
    blocks = tensor.blocks.reshape(tensor.shape[0], -1, tensor.blocks.shape[1])[rows]
    return gguf_blocks.numbers(name, blocks.reshape(-1, tensor.blocks.shape[1]), (len(rows), tensor.shape[1]))


def _cosine(one: Array, other: Array) -> float:
    a, b = one.astype(np.float64).ravel(), other.astype(np.float64).ravel()
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


def _orders(file: gguf_format.GgufFile, tensor: gguf_format.GgufTensor) -> Iterator[Array]:
    """Yield the order in which rows of a head stand in the graph, where the file interleaves their halves."""
    heads = {file.number("attention.head_count"), file.number("attention.head_count_kv")}
    for count in heads - {None, 0}:
        size, rest = divmod(tensor.shape[0], count or 1)
        if rest == 0 and size % 2 == 0:
            yield np.arange(tensor.shape[0]).reshape(count or 1, size // 2, 2).swapaxes(1, 2).reshape(-1)


def _blocks(tensor: gguf_format.GgufTensor, order: Array | None) -> tuple[Blocks, bool]:
    """Return a tensor's own integers and scales, or new ones of 8 bits where these can't be kept."""
    name = tensor.format.name if tensor.format is not None else ""
    made = gguf_blocks.kept(name, tensor.blocks, tensor.shape[0])
    exact = made is not None
    if made is None:
        made = Rtn().blocks(gguf_blocks.numbers(name, tensor.blocks, tensor.shape), _ANEW)
    if order is None:
        return made, exact
    zero = made.zero_point[order] if made.zero_point is not None else None
    return replace(made, integers=made.integers[order], scale=made.scale[order], zero_point=zero), exact


def _entry(plan: Plan, product: _Product, blocks: Blocks, accuracy_level: int) -> tuple[Key, QParams]:
    """Add a product to a plan, and return its weight's parameters."""
    node, scheme = product.node, blocks.scheme
    key = Key(product.value.name or "", node.name)
    kind = qtype(f"{'int' if scheme.symmetric else 'uint'}{scheme.bits}")
    grain = PerBlock(scheme.size, product.axis)
    plan.entries[key] = Constant(Scheme(kind, grain, symmetric=scheme.symmetric), "rtn")
    plan.nodes[node.name or ""] = Quantized(node.op_type, MATMUL_NBITS.op_type, None, accuracy_level)
    matrix = BlockMatrix(blocks.integers.shape, lambda: blocks, quick=False)
    middle = 0 if scheme.symmetric else scheme.middle
    zero = np.full(matrix.scale.shape, middle, kind.dtype)
    laid = (matrix.scale, zero) if product.axis == 1 else (matrix.scale.T, zero.T)
    return key, QParams(*laid, kind, grain, matrix)
