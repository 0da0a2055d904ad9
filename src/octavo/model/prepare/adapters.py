"""What changed in the default operator set from one version to the next, one small function per change.

``ADAPTERS[op type, version]`` rewrites a node of the version before into one of that version with the same
meaning. Changes that keep every older node valid as it is (a new optional input, a new attribute whose
default is the old behaviour, more element types) need no row. Which ones do is checked against ONNX's schemas
by a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.errors import ModelError
from octavo.model.graph import query
from octavo.model.graph.edit import Editor

Adapter = Callable[[Editor, ir.Node], None]

ADAPTERS: dict[tuple[str, int], Adapter] = {}


def _adapts(version: int, *ops: str) -> Callable[[Adapter], Adapter]:
    def register(adapter: Adapter) -> Adapter:
        for op in ops:
            ADAPTERS[op, version] = adapter
        return adapter

    return register


def _renamed(version: int, op: str, new: str) -> None:
    """Say that an operator has another name since a version."""

    def rename(edit: Editor, node: ir.Node) -> None:
        node.op_type = new

    _adapts(version, op)(rename)


def _attributes_to_inputs(version: int, *ops: str, dtype: Any = np.int64, **indices: int) -> None:
    """Say which attributes of operators are inputs since a version, and at which indices."""

    def move(edit: Editor, node: ir.Node) -> None:
        for name, index in indices.items():
            content = _take(node, name)
            if content is not None:
                _input(edit, node, index, name, content, dtype)

    _adapts(version, *ops)(move)


def _refuse(node: ir.Node, why: str, version: int) -> ModelError:
    return ModelError(
        f"The {node.op_type} node {node.name!r} can't be converted to opset {version}: {why}; "
        f"export the model again with opset {version} or newer."
    )


def _take(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return an attribute's value; the attribute is gone afterwards."""
    value = query.attribute(node, name, default)
    node.attributes.pop(name, None)
    return value


def _set(node: ir.Node, **attributes: Any) -> None:
    for attribute in ir.convenience.convert_attributes(attributes):
        node.attributes[attribute.name] = attribute


def _input(edit: Editor, node: ir.Node, index: int, name: str, content: Any, dtype: Any = np.int64) -> None:
    """Give a node a constant input."""
    value = edit.constant(f"{node.name}_{name}", np.asarray(content, dtype))
    if len(node.inputs) <= index:
        node.resize_inputs(index + 1)
    node.replace_input_with(index, value)


def _element(node: ir.Node) -> Any:
    dtype = query.element_type(node.inputs[0]) or query.element_type(node.outputs[0])
    if dtype is None:
        raise _refuse(node, "the element type of its input is unknown", 11)
    return dtype.numpy()


_REDUCTIONS = (
    "ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip

_renamed(10, "Upsample", "Resize")
_renamed(11, "Scatter", "ScatterElements")
_attributes_to_inputs(9, "Upsample", scales=1, dtype=np.float32)
_attributes_to_inputs(10, "Slice", starts=1, ends=2, axes=3)
_attributes_to_inputs(13, "ReduceSum", "Squeeze", "Unsqueeze", axes=1)
_attributes_to_inputs(13, "Split", split=1)
_attributes_to_inputs(18, *_REDUCTIONS, axes=1)


@_adapts(9, "BatchNormalization")
def _batch_norm_9(edit: Editor, node: ir.Node) -> None:
    if _take(node, "spatial", 1) != 1:
        raise _refuse(node, "spatial=0 has no successor", 9)


@_adapts(14, "BatchNormalization")
def _batch_norm_14(edit: Editor, node: ir.Node) -> None:
    if any(value.name for value in node.outputs[1:]):
        raise _refuse(node, "it is in training mode (it has five outputs)", 14)
    if len(node.outputs) > 1:
        node.resize_outputs(1)


@_adapts(9, "Scan")
def _scan_9(edit: Editor, node: ir.Node) -> None:
    raise _refuse(node, "Scan of opset 8 has a batch axis, its successor has none", 9)


@_adapts(10, "TopK")
def _top_k_10(edit: Editor, node: ir.Node) -> None:
    _input(edit, node, 1, "k", [_take(node, "k")])


@_adapts(10, "Dropout")
def _dropout_10(edit: Editor, node: ir.Node) -> None:
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        raise _refuse(node, "its mask is used, and the mask's type changed", 10)


@_adapts(12, "Dropout")
def _dropout_12(edit: Editor, node: ir.Node) -> None:
    node.attributes.pop("ratio", None)  # without effect outside of training, which is off by default


@_adapts(11, "Clip")
def _clip_11(edit: Editor, node: ir.Node) -> None:
    element = _element(node)
    for index, name in ((1, "min"), (2, "max")):
        bound = _take(node, name)
        if bound is not None:
            with np.errstate(over="ignore"):
                _input(edit, node, index, name, bound, element)


@_adapts(11, "Pad")
def _pad_11(edit: Editor, node: ir.Node) -> None:
    _input(edit, node, 1, "pads", _take(node, "pads"))
    value = _take(node, "value", 0.0)
    if query.attribute(node, "mode", "constant") == "constant":
        _input(edit, node, 2, "value", value, _element(node))


@_adapts(11, "Resize")
def _resize_11(edit: Editor, node: ir.Node) -> None:
    """Say what opset 10 meant: coordinates are ``out / scale``, nearest is down, and up to shrink."""
    scales = query.operand(node, 1)
    if scales is None:
        raise _refuse(node, "it has no scales", 11)
    factors = query.array(scales)
    if query.attribute(node, "mode", "nearest") == "nearest":
        shrinks = factors is not None and bool((factors < 1).any())
        if shrinks and factors is not None and bool((factors > 1).any()):
            raise _refuse(node, "it enlarges one axis and shrinks another", 11)
        _set(node, nearest_mode="ceil" if shrinks else "floor")
    _set(node, coordinate_transformation_mode="asymmetric")
    _input(edit, node, 1, "roi", [], np.float32)
    node.resize_inputs(3)
    node.replace_input_with(2, scales)


@_adapts(13, "Resize")
def _resize_13(edit: Editor, node: ir.Node) -> None:
    """Leave out the inputs that empty tensors stood for."""
    if query.attribute(node, "coordinate_transformation_mode", "") == "tf_half_pixel_for_nn":
        raise _refuse(node, "the mode tf_half_pixel_for_nn has no successor", 13)
    for index in (1, 2):
        content = query.array(query.operand(node, index))
        if content is not None and content.size == 0:
            node.replace_input_with(index, None)


@_adapts(13, "Softmax", "LogSoftmax", "Hardmax")
def _softmax_13(edit: Editor, node: ir.Node) -> None:
    """Write what until opset 12 ran over all axes from ``axis`` on with the one axis of opset 13."""
    axis = int(query.attribute(node, "axis", 1))
    dims = query.shape(node.inputs[0])
    if dims is not None:
        if dims and not -len(dims) <= axis <= len(dims):
            raise _refuse(node, f"its input has {len(dims)} axes, and its axis is {axis}", 13)
        start = max(0, axis + len(dims) if axis < 0 else axis)
        long = [place for place in range(start, len(dims)) if dims[place] != 1]
        if len(long) <= 1:
            _set(node, axis=long[0] if long else len(dims) - 1 if dims else -1)
            return
    _flattened(edit, node, axis)


def _flattened(edit: Editor, node: ir.Node, axis: int) -> None:
    """``Flatten → node → Reshape``, which holds for any rank."""
    source, result = node.inputs[0], node.outputs[0]
    name = node.name or node.op_type
    flat = edit.node("Flatten", [source], {"axis": axis}, name=f"{name}_Flatten", output=f"{name}_flat")
    size = edit.node("Shape", [source], name=f"{name}_Shape", output=f"{name}_shape", dtype=ir.DataType.INT64)
    inner = edit.node(
        node.op_type, [flat.outputs[0]], {"axis": 1}, name=f"{name}_2d", output=f"{name}_matrix"
    )
    back = edit.node(
        "Reshape", [inner.outputs[0], size.outputs[0]], name=f"{name}_Reshape", output=f"{name}_y"
    )
    for new in (flat, inner):
        new.outputs[0].type = result.type
    node.prepend([flat, size, inner, back])
    edit.take_over(back.outputs[0], result)
    edit.remove([node])


@_adapts(18, "Split")
def _split_18(edit: Editor, node: ir.Node) -> None:
    if query.operand(node, 1) is None:
        _set(node, num_outputs=len(node.outputs))


@_adapts(16, "RoiAlign")
def _roi_align_16(edit: Editor, node: ir.Node) -> None:
    _set(node, coordinate_transformation_mode="output_half_pixel")


@_adapts(20, "GridSample")
def _grid_sample_20(edit: Editor, node: ir.Node) -> None:
    mode = query.attribute(node, "mode", "bilinear")
    _set(node, mode={"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode))


@_adapts(20, "DFT")
def _dft_20(edit: Editor, node: ir.Node) -> None:
    _input(edit, node, 2, "axis", _take(node, "axis", 1))


@_adapts(21, "GroupNormalization")
def _group_norm_21(edit: Editor, node: ir.Node) -> None:
    """Give each channel the scale and bias that each group had until opset 20."""
    dims, groups = query.shape(node.inputs[0]), int(query.attribute(node, "num_groups", 1))
    channels = dims[1] if dims is not None and len(dims) > 1 else None
    for index, name in ((1, "scale"), (2, "bias")):
        content = query.array(node.inputs[index])
        if channels is None or content is None:
            raise _refuse(node, "its channels or parameters are not known", 21)
        value = edit.constant(f"{node.name}_{name}", np.repeat(content, channels // groups))
        node.replace_input_with(index, value)
