"""FP4 and NF4 weights: MatMulBnb4, its weight W[K, N] stored row after row of the transpose."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.algorithms.weights import bnb4
from octavo.emission import names
from octavo.emission.nbits import put_instead
from octavo.model.graph.edit import Editor


def stored(
    edit: Editor, name: str, source: ir.TensorProtocol, kind: int, size: int
) -> tuple[ir.Value, ir.Value]:
    """The codes and the largest magnitudes of a weight as constants of the graph."""
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
