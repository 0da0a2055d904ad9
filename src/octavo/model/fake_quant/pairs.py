"""QuantizeLinear and DequantizeLinear: of both domains, with a Clip on the integers, of any granularity."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.core import qtypes
from octavo.core.granularity import Granularity, PerBlock, PerChannel, PerTensor
from octavo.core.qparams import QParams
from octavo.model.fake_quant.found import Array, FakeQuant, parameters, usable
from octavo.model.graph import query

_DOMAINS = ("", "com.microsoft")
_MAX_SCALES = 1 << 28  # scales of a weight in blocks are many


def is_linear(node: ir.Node | None, op_type: str) -> bool:
    """Whether a node is QuantizeLinear or DequantizeLinear of either domain."""
    return node is not None and node.op_type == op_type and node.domain in _DOMAINS


def pair(node: ir.Node) -> FakeQuant | None:
    """The pair that starts at this QuantizeLinear, if all that read its integers make floats of them."""
    if not is_linear(node, "QuantizeLinear"):
        return None
    params, integers = linear_parameters(node), node.outputs[0]
    if params is None or node.inputs[0] is None or integers.is_graph_output():
        return None
    nodes, results, limits = [node], [], None
    clip = query.only_reader(integers)
    if clip is not None and clip.op_type == "Clip" and not clip.domain:
        limits = _limits(clip, params)
        if limits is None or clip.outputs[0].is_graph_output():
            return None
        nodes.append(clip)
        integers = clip.outputs[0]
    for reader in query.readers(integers):
        back = linear_parameters(reader) if is_linear(reader, "DequantizeLinear") else None
        if back is None or not back.same_as(params):
            return None
        nodes.append(reader)
        results.append(reader.outputs[0])
    if not results:
        return None
    whole = limits == (params.qtype.qmin, params.qtype.qmax)
    return FakeQuant(node.inputs[0], tuple(results), tuple(nodes), params, None if whole else limits)


def stored(node: ir.Node) -> FakeQuant | None:
    """Integers in the file, and the DequantizeLinear that makes floats of them."""
    if not is_linear(node, "DequantizeLinear") or query.constant(node.inputs[0]) is None:
        return None
    params = linear_parameters(node)
    if params is None or node.inputs[0] is None:
        return None
    return FakeQuant(node.inputs[0], (node.outputs[0],), (node,), params, stored=True)


def _limits(clip: ir.Node, params: QParams) -> tuple[int, int] | None:
    found = [params.qtype.qmin, params.qtype.qmax]
    for index in (1, 2):
        bound = clip.inputs[index] if index < len(clip.inputs) else None
        if bound is not None:
            number = query.scalar(bound)
            if number is None:
                return None
            found[index - 1] = int(number)
    return found[0], found[1]


def linear_parameters(node: ir.Node) -> QParams | None:
    """Return the parameters of a QuantizeLinear or DequantizeLinear where they are constants."""
    scale = query.array(node.inputs[1], limit=_MAX_SCALES) if len(node.inputs) > 1 else None
    if scale is None or not usable(scale):
        return None
    given = node.inputs[2] if len(node.inputs) > 2 else None
    zero: Array | None = np.zeros(scale.shape, np.uint8)
    kind = qtypes.from_onnx(int(_type_without_zero(node)))
    if given is not None:
        tensor = query.constant(given)
        if tensor is None:
            return None
        zero, kind = np.asarray(tensor.numpy()), qtypes.from_onnx(int(tensor.dtype))
    grain = _grain(node, scale)
    if kind is None or grain is None or zero is None or zero.size not in (1, scale.size):
        return None
    if zero.size != scale.size or isinstance(grain, PerBlock):
        zero = np.broadcast_to(zero, scale.shape)
    return parameters(scale, zero, kind, grain)


def _type_without_zero(node: ir.Node) -> ir.DataType:
    asked = query.attribute(node, "output_dtype", 0)
    if asked:
        return ir.DataType(asked)
    if node.op_type == "DequantizeLinear":
        made = query.element_type(node.inputs[0])
        return made if made is not None else ir.DataType.UINT8
    return ir.DataType.UINT8


def _grain(node: ir.Node, scale: Array) -> Granularity | None:
    axis = int(query.attribute(node, "axis", 1))
    rank = query.rank(node.inputs[0])
    if rank:
        axis %= rank
    size = int(query.attribute(node, "block_size", 0))
    if size:
        return PerBlock(size, axis)
    if scale.size == 1:
        return PerTensor()
    return PerChannel(axis) if scale.ndim == 1 and axis >= 0 else None
