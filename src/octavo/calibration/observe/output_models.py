"""Models that return the tensors to calibrate beside their outputs, for other tools to run.

For each tensor ``X`` there are nodes ``X_ReduceMin`` and ``X_ReduceMax`` with a Reshape behind each, or ``X``
itself is returned. Octavo's own calibration (:mod:`.augment`) does not need it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

from octavo.calibration.observe.observations import HIGH, LOW

REDUCTIONS = (LOW.op, HIGH.op)

_AXES_AS_INPUT = 18  # the opset from which on reductions take their axes as an input


def with_outputs(
    model: ModelProto, tensors: Iterable[str], known: Mapping[str, ValueInfoProto]
) -> ModelProto:
    """Return a copy that also returns the tensors themselves."""
    copy = _copy(model)
    returned = {value.name for value in copy.graph.output}
    for name in tensors:
        if name not in returned:
            copy.graph.output.append(known.get(name) or onnx.ValueInfoProto(name=name))
    return copy


def with_extremes(
    model: ModelProto,
    tensors: Iterable[str],
    known: Mapping[str, ValueInfoProto],
    *,
    per_channel: bool = False,
) -> ModelProto:
    """Return a copy that also returns the extremes of each tensor; channels are axis 1."""
    copy = _copy(model)
    opset = next((one.version for one in copy.opset_import if one.domain in ("", "ai.onnx")), 1)
    flat = str(uuid.uuid4())
    copy.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1], np.int64), flat))
    for tensor in tensors:
        kind = known.get(tensor, ValueInfoProto()).type.tensor_type
        rank = len(kind.shape.dim) if kind.HasField("shape") else 0
        axes = [0, *range(2, rank)] if per_channel and rank >= 2 else None
        source = tensor
        if kind.elem_type not in (TensorProto.FLOAT, TensorProto.UNDEFINED):
            source = f"{tensor}_Float"
            cast = onnx.helper.make_node("Cast", [tensor], [source], f"{tensor}_Cast", to=TensorProto.FLOAT)
            copy.graph.node.append(cast)
        for reduction in REDUCTIONS:
            name = f"{tensor}_{reduction}"
            copy.graph.node.extend(_reduced(copy, source, name, reduction, axes, flat, opset))
            copy.graph.output.append(
                onnx.helper.make_tensor_value_info(f"{tensor}_{reduction}", TensorProto.FLOAT, [None])
            )
    return copy


def _reduced(
    model: ModelProto, source: str, name: str, reduction: str, axes: list[int] | None, flat: str, opset: int
) -> list[NodeProto]:
    inputs, attributes = [source], dict[str, Any](keepdims=1)
    if axes is not None and opset >= _AXES_AS_INPUT:
        inputs.append(f"{name}_Axes")
        array = np.array(axes, np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, inputs[-1]))
    elif axes is not None:
        attributes["axes"] = axes
    return [
        onnx.helper.make_node(reduction, inputs, [f"{name}_Reshape"], name, **attributes),
        onnx.helper.make_node("Reshape", [f"{name}_Reshape", flat], [name], f"{name}_Reshape"),
    ]


def with_rows(model: ModelProto, tensors: Mapping[str, int], suffix: str) -> ModelProto:
    """Return a copy that also returns tensors, given with their types, flattened and renamed by a suffix."""
    copy = _copy(model)
    flat = str(uuid.uuid4())
    copy.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1], np.int64), flat))
    for tensor, kind in tensors.items():
        name = tensor + suffix
        copy.graph.node.append(onnx.helper.make_node("Reshape", [tensor, flat], [name], name))
        copy.graph.output.append(onnx.helper.make_tensor_value_info(name, kind, [None]))
    return copy


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy
