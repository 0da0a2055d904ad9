"""What stands between a convolution and the fake quantization of its result, folded into the convolution.

PyTorch trains a convolution with its batch normalization as ``BN(conv(x, fq(W·s)) / s + b)``, with the ``s``
of the normalization, and exports it so. As ``α·conv(x, fq(V)) + β`` per channel it is a convolution whose
weight has the same integers and α times the scale. In the example α is 1: nothing but the bias changes.
"""

from __future__ import annotations

from collections.abc import MutableMapping

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.plan import Key
from octavo.core.qparams import QParams
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.prepare.batch_norm import Affine, after_convolution, into_convolution

_ROUNDING = 1e-5  # factors that differ by no more are equal: they were computed in float32


def fold_scales(model: ir.Model, params: MutableMapping[Key, QParams]) -> int:
    """Fold scales, shifts and normalizations into convolutions with trained weights; how many there were.

    The model and the trained parameters are changed in place.
    """
    edit = Editor(model)
    return sum(
        _fold(edit, node, params)
        for node in list(query.nodes(model))
        if node.op_type == "Conv" and not node.domain
    )


def _fold(edit: Editor, layer: ir.Node, params: MutableMapping[Key, QParams]) -> bool:
    key = _weight_key(layer, params)
    chain, affine = _behind(layer, params)
    if key is None or affine is None:
        return False
    found = _trained(params[key], affine.scale)
    if found is None or not into_convolution(edit, layer, Affine(found[0], affine.shift)):
        return False
    weight = layer.inputs[1]
    params[Key((weight.name or "") if weight is not None else key.tensor, key.consumer)] = found[1]
    edit.take_over(layer.outputs[0], chain[-1].outputs[0])
    edit.remove(reversed(chain))
    return True


def _weight_key(layer: ir.Node, params: MutableMapping[Key, QParams]) -> Key | None:
    """Under which key the layer's weight has parameters."""
    weight = layer.inputs[1]
    name = (weight.name or "") if weight is not None else ""
    return next((key for key in (Key(name, layer.name), Key(name)) if key in params), None)


def _behind(layer: ir.Node, params: MutableMapping[Key, QParams]) -> tuple[list[ir.Node], Affine | None]:
    """Return the nodes behind a layer that scale and shift its channels, up to a value that was rounded."""
    chain: list[ir.Node] = []
    whole: Affine | None = None
    value = layer.outputs[0]
    while (reader := query.only_reader(value)) is not None:
        name = value.name or ""
        step = after_convolution(layer, value, reader)
        if step is None or Key(name) in params or Key(name, reader.name) in params:
            break
        whole = (
            step if whole is None else Affine(whole.scale * step.scale, whole.shift * step.scale + step.shift)
        )
        chain.append(reader)
        value = reader.outputs[0]
    return chain, whole


def _trained(
    params: QParams, factor: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], QParams] | None:
    """Return the factor of each channel, and parameters by which the integers of the weight stay the same."""
    if not (np.isfinite(factor).all() and (factor > 0.0).all()):
        return None
    if np.allclose(factor, factor[0], rtol=_ROUNDING, atol=0.0):
        common = 1.0 if abs(factor[0] - 1.0) <= _ROUNDING else float(factor[0])
        factor = np.full_like(factor, common)
    match params.granularity:
        case PerTensor() if factor[0] == factor.max() == factor.min():
            scale = params.scale * np.float32(factor[0])
        case PerChannel(0) if params.scale.size == factor.size:
            scale = params.scale * factor.astype(np.float32)
        case _:
            return None
    return factor, QParams(scale.astype(np.float32), params.zero_point, params.qtype, params.granularity)
