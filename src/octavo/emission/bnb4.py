"""FP4 and NF4 weights: MatMulBnb4, its weight W[K, N] stored row after row of the transpose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from octavo.algorithms.weights import bnb4
from octavo.emission import names
from octavo.emission.nbits import put_instead
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.graph.normalize import normalize
from octavo.model.graph.scopes import remove_unused

NF4_BLOCK = 64  # weights to a scale, as bitsandbytes and transformers.js have it


def with_nf4_weights(model: ir.Model) -> ir.Model:
    """Give all products that have a constant matrix NF4 weights, in place, and return the model."""
    normalize(model)
    write_products(model, bnb4.NF4, NF4_BLOCK)
    return model


def write_products(
    model: ir.Model, kind: int, size: int, excluded: Callable[[ir.Node], bool] = lambda node: False
) -> dict[ir.Node, str]:
    """Write MatMulBnb4 for every MatMul that can be; returns why others can't."""
    edit, skipped = Editor(model), dict[ir.Node, str]()
    parts: dict[ir.TensorProtocol, tuple[ir.Value, ir.Value]] = {}
    for node in [node for node in query.nodes(model) if query.is_op(node, "MatMul")]:
        weight = query.constant(node.inputs[1])
        reason = "excluded" if excluded(node) else _refusal(weight)
        if reason is not None or weight is None:
            skipped[node] = reason or ""
            continue
        rows, columns = (int(d) for d in weight.shape.numpy())
        if weight not in parts:
            parts[weight] = stored(edit, weight.name or "", weight, kind, size)
        write_product(edit, node, parts[weight], (rows, columns), kind, size)
    remove_unused(model)
    return skipped


def _refusal(weight: ir.TensorProtocol | None) -> str | None:
    """Return why a weight can't be quantized, or None."""
    if weight is None:
        return "its weight is not constant"
    if weight.dtype not in (ir.DataType.FLOAT, ir.DataType.FLOAT16):
        return f"its weight is of type {weight.dtype.name.lower()}; float32 and float16 are taken"
    if len(weight.shape) != 2:
        return f"its weight has {len(weight.shape)} dimensions; a matrix is taken"
    return "its weight is empty" if not weight.size else None


def stored(
    edit: Editor, name: str, source: ir.TensorProtocol, kind: int, size: int
) -> tuple[ir.Value, ir.Value]:
    """Return the codes and the largest magnitudes of a weight as constants of the graph."""
    found = bnb4.quantize(np.asarray(source.numpy()).T, kind, size)
    return edit.constant(f"{name}_Bnb4", found.packed), edit.constant(f"{name}_absmax", found.absmax)


def write_product(
    edit: Editor, node: ir.Node, parts: tuple[ir.Value, ir.Value], dims: tuple[int, int], kind: int, size: int
) -> None:
    """Write MatMulBnb4 in the place of a MatMul."""
    new = edit.node(
        "MatMulBnb4",
        [node.inputs[0], *parts],
        {"K": dims[0], "N": dims[1], "block_size": size, "quant_type": kind},
        name=f"{node.name}_Bnb4",
        output=f"{node.outputs[0].name}{names.QUANTIZED}",
        domain="com.microsoft",
    )
    put_instead(edit, node, [new])
