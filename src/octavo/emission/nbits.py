"""Weights in blocks: MatMulNBits, which scales each run of weights, and of activations, by itself.

The kernel quantizes activations in blocks too (accuracy level 4), so that one loud value costs its block and
not the whole tensor its steps. W[K, N] is stored as [N, blocks, size], unsigned, zero point in the middle.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core import kernels
from octavo.core.granularity import PerBlock
from octavo.core.plan import Key
from octavo.core.qparams import QParams
from octavo.emission import names
from octavo.emission.writer import Writer
from octavo.errors import TableError
from octavo.ops import BLOCK_PRODUCT

_INT8_COMPUTE = 4  # accuracy_level: activations in 8 bits, per block


def block_product(writer: Writer, node: ir.Node) -> None:
    """Write MatMulNBits in the place of a MatMul or Gemm with a constant matrix."""
    weight = node.inputs[1]
    key = Key(weight.name or "", node.name) if weight is not None else Key("")
    params = writer.params.get(key)
    source = weight.const_value if weight is not None else None
    if source is None or params is None or not isinstance(params.granularity, PerBlock):
        raise TableError(f"The plan wants {node.name!r} as {BLOCK_PRODUCT.op_type}: its weight needs blocks.")
    turned = params.granularity.axis == 1  # stored as [N, K] already
    size = params.granularity.size
    rows, columns = (int(d) for d in source.shape.numpy()[:: -1 if turned else 1])
    blocks = -(-rows // size)
    integers = _laid_out(source, params, (columns, blocks, size), turned, writer.keeps)
    stored = writer.editor.constant(key.tensor + names.QUANTIZED, integers)
    scale = params.scale if turned else params.scale.T
    scales = writer.constant(key.tensor + names.SCALE, np.ascontiguousarray(scale))
    operands = [node.inputs[0], stored, scales]
    if len(node.inputs) > 2:
        operands += [None, None, node.inputs[2]]
    new = writer.like(node, BLOCK_PRODUCT.domain, BLOCK_PRODUCT.op_type, operands)
    numbers = {"K": rows, "N": columns, "bits": params.qtype.bits, "block_size": size}
    for name, number in {**numbers, "accuracy_level": _INT8_COMPUTE}.items():
        new.attributes[name] = ir.AttrInt64(name, number)
    writer.replace_node(node, [new])
    writer.nodes[node.name or ""] = new


def _laid_out(
    source: ir.TensorProtocol, params: QParams, shape: tuple[int, int, int], turned: bool, keep: bool
) -> ir.LazyTensor:
    """The integers as the kernel reads them, computed when their bytes are asked for."""
    columns, blocks, size = shape
    middle = params.qtype.qmax // 2 + 1

    def compute() -> ir.TensorProtocol:
        whole = kernels.quantize(np.asarray(source.numpy()), params)
        padded = np.full((columns, blocks * size), middle, np.uint8)
        padded[:, : whole.shape[1 if turned else 0]] = whole if turned else whole.T
        return ir.Tensor(padded.reshape(shape))

    return ir.LazyTensor(compute, dtype=ir.DataType.UINT8, shape=ir.Shape(shape), cache=keep)
