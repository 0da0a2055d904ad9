"""Raising the opset: every change between versions has a row, and every row keeps the numbers."""

# ruff: noqa: E501  (one row per line)

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import onnx
import pytest
from builders import graph, model, node, tensor
from onnx import TensorProto, defs

from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import PrepareOptions, prepare
from octavo.model.prepare.adapters import ADAPTERS
from octavo.model.prepare.opset import OLDEST, raise_opset
from octavo.model.runtime.session import kernels, runtime_opset_limit

from .helpers import before_and_after, ops

# Differences between schemas that change nothing for a model that runs.
HARMLESS = {("Erf", 13): "integer inputs, which no runtime computes, are gone"}
# Changes of meaning that schemas do not show.
SILENT = {("RoiAlign", 16), ("GroupNormalization", 21), ("Resize", 13), ("Split", 18)}

rng = np.random.default_rng(0)


def _default(attribute: Any) -> bytes | None:
    return attribute.default_value.SerializeToString() if attribute.default_value.name else None


def _breaks(old: Any, new: Any) -> bool:
    """Whether some node of the old version is not valid, or not the same, in the new one."""
    if new.deprecated:
        return True
    for name, attribute in old.attributes.items():
        if name not in new.attributes or _default(attribute) != _default(new.attributes[name]):
            return True
    if any(a.required and name not in old.attributes for name, a in new.attributes.items()):
        return True
    if new.min_input > old.min_input or new.max_input < old.max_input or new.max_output < old.max_output:
        return True
    pairs = [*zip(old.inputs, new.inputs, strict=False), *zip(old.outputs, new.outputs, strict=False)]
    return any(not set(a.types) <= set(b.types) for a, b in pairs)


def test_every_breaking_change_of_the_standard_has_an_adapter_and_no_other_has() -> None:
    history: dict[str, list[Any]] = {}
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            history.setdefault(schema.name, []).append(schema)
    breaking = set()
    for name, schemas in history.items():
        schemas.sort(key=lambda schema: schema.since_version)
        for old, new in pairwise(schemas):
            if OLDEST < new.since_version <= runtime_opset_limit() and _breaks(old, new):
                breaking.add((name, new.since_version))
    assert breaking - set(ADAPTERS) - set(HARMLESS) == set()
    assert set(ADAPTERS) - breaking == SILENT


def one(
    op: str,
    shape: list[int],
    opset: int,
    inputs: tuple[str, ...] = (),
    arrays: dict[str, Any] | None = None,
    outputs: int = 1,
    dtype: int = TensorProto.FLOAT,
    result: int | None = None,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node of a kind, followed by nothing."""
    names = [f"y{index}" for index in range(outputs)]
    nodes = [node(op, ["x", *inputs], names, "N", **attributes)]
    return model(
        nodes,
        [tensor("x", shape, dtype)],
        [tensor(n, None, result or dtype) for n in names],
        arrays or {},
        opset=opset,
    )


S = [2, 3, 4, 5]
CASES: dict[str, onnx.ModelProto] = {
    "Softmax-9 default axis": one("Softmax", S, 9),
    "Softmax-11 axis 2": one("Softmax", S, 11, axis=2),
    "Softmax-12 last axis": one("Softmax", S, 12, axis=-1),
    "Softmax-12 axis 0": one("Softmax", S, 12, axis=0),
    "Softmax-12 trailing ones": one("Softmax", [2, 7, 1, 1], 12, axis=1),
    "LogSoftmax-11": one("LogSoftmax", S, 11),
    "Hardmax-11": one("Hardmax", S, 11),
    "Squeeze-9": one("Squeeze", [2, 1, 3, 1], 9, axes=[1]),
    "Squeeze-11 all": one("Squeeze", [2, 1, 3, 1], 11),
    "Unsqueeze-12": one("Unsqueeze", [2, 3], 12, axes=[0, -1]),
    "Split-9 sizes": one("Split", [2, 6], 9, outputs=2, axis=1, split=[2, 4]),
    "Split-11 even": one("Split", [2, 6], 11, outputs=3, axis=-1),
    "ReduceSum-11": one("ReduceSum", S, 11, axes=[1, 2], keepdims=0),
    "ReduceSum-9 all": one("ReduceSum", S, 9),
    "ReduceMean-12": one("ReduceMean", S, 12, axes=[-1]),
    "ReduceMax-12": one("ReduceMax", S, 12, axes=[2], keepdims=0),
    "ReduceL2-12": one("ReduceL2", S, 12, axes=[1]),
    "ReduceLogSumExp-13": one("ReduceLogSumExp", S, 13, axes=[1]),
    "ReduceProd-13 all": one("ReduceProd", S, 13),
    "Clip-7": one("Clip", S, 7, min=-0.3, max=0.4),
    "Clip-9 lower only": one("Clip", S, 9, min=0.1),
    "Clip-6 no bounds": one("Clip", S, 10),
    "Pad-9": one("Pad", [2, 3], 9, pads=[0, 1, 2, 0], value=1.5),
    "Pad-10 reflect": one("Pad", [4, 5], 10, pads=[1, 1, 1, 1], mode="reflect"),
    "Slice-9": one("Slice", S, 9, starts=[1, 0], ends=[3, -1], axes=[1, 3]),
    "Slice-7 no axes": one("Slice", S, 7, starts=[0, 1], ends=[1, 3]),
    "Dropout-7": one("Dropout", S, 7, ratio=0.3),
    "Dropout-10": one("Dropout", S, 10, ratio=0.3),
    "Cast-9": one("Cast", S, 9, to=TensorProto.INT32, result=TensorProto.INT32),
    "Upsample-7": one("Upsample", [1, 2, 3, 4], 7, scales=[1.0, 1.0, 2.0, 3.0], mode="nearest"),
    "Upsample-9 linear": one("Upsample", [1, 2, 3, 4], 9, ("s",), {"s": np.float32([1, 1, 2, 2])}, mode="linear"),
    "Upsample-9 nearest": one("Upsample", [1, 2, 3, 4], 9, ("s",), {"s": np.float32([1, 1, 1.7, 2.5])}),
    "Resize-10 nearest up": one("Resize", [1, 2, 5, 4], 10, ("s",), {"s": np.float32([1, 1, 1.7, 2.4])}),
    "Resize-10 nearest down": one("Resize", [1, 2, 8, 9], 10, ("s",), {"s": np.float32([1, 1, 0.6, 0.5])}),
    "Resize-10 linear": one("Resize", [1, 2, 3, 4], 10, ("s",), {"s": np.float32([1, 1, 2.5, 2])}, mode="linear"),
    "Resize-10 linear down": one("Resize", [1, 2, 8, 8], 10, ("s",), {"s": np.float32([1, 1, 0.6, 0.6])}, mode="linear"),
    "Resize-11 sizes": one("Resize", [1, 2, 3, 4], 11, ("roi", "none", "sizes"), {"roi": np.float32([]), "none": np.float32([]), "sizes": np.int64([1, 2, 6, 8])}, mode="linear", coordinate_transformation_mode="align_corners"),
    "Resize-12 scales": one("Resize", [1, 2, 3, 4], 12, ("roi", "s"), {"roi": np.float32([]), "s": np.float32([1, 1, 2, 2])}, mode="cubic"),
    "Gemm-9": one("Gemm", [3, 4], 9, ("w", "b"), {"w": np.ones((5, 4), np.float32), "b": np.ones(5, np.float32)}, transB=1, alpha=0.5),
    "DepthToSpace-9": one("DepthToSpace", [1, 8, 2, 3], 9, blocksize=2),
    "MaxPool-9": one("MaxPool", [1, 2, 6, 6], 9, kernel_shape=[2, 2], strides=[2, 2]),
    "AveragePool-9": one("AveragePool", [1, 2, 6, 6], 9, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "Flatten-9": one("Flatten", S, 9, axis=2),
    "PRelu-7": one("PRelu", S, 7, ("a",), {"a": np.float32([[[0.1]], [[0.2]], [[0.3]]])}),
    "Scatter-9": one("Scatter", [3, 3], 9, ("i", "u"), {"i": np.int64([[1, 0, 2]]), "u": np.float32([[9, 8, 7]])}),
    "LSTM-9": one("LSTM", [4, 2, 3], 9, ("w", "r"), {"w": rng.standard_normal((1, 8, 3)).astype(np.float32), "r": rng.standard_normal((1, 8, 2)).astype(np.float32)}, outputs=3, hidden_size=2),
    "ArgMax-9": one("ArgMax", S, 9, axis=1, result=TensorProto.INT64),
    "Pow-9": one("Pow", S, 9, ("e",), {"e": np.float32(2)}),
    "InstanceNormalization-9": one("InstanceNormalization", S, 9, ("s", "b"), {"s": np.ones(3, np.float32), "b": np.ones(3, np.float32)}),
    "Expand-9": one("Expand", [1, 3], 9, ("to",), {"to": np.int64([2, 3])}),
    "ConvTranspose-9": one("ConvTranspose", [1, 2, 4, 4], 9, ("w",), {"w": rng.standard_normal((2, 3, 3, 3)).astype(np.float32)}, strides=[2, 2]),
    "RoiAlign-10": one("RoiAlign", [1, 2, 8, 8], 10, ("r", "b"), {"r": np.float32([[0.3, 0.7, 5.2, 6.1]]), "b": np.int64([0])}, output_height=3, output_width=3, sampling_ratio=2),
    "GridSample-16": one("GridSample", [1, 2, 4, 4], 16, ("g",), {"g": rng.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)}, mode="bicubic"),
    "GridSample-16 default": one("GridSample", [1, 2, 4, 4], 16, ("g",), {"g": rng.uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)}),
    "DFT-17": one("DFT", [1, 8, 1], 17, axis=1),
}  # fmt: skip


def _batch_norm(opset: int, **attributes: Any) -> onnx.ModelProto:
    arrays = {name: rng.uniform(0.5, 2, 3).astype(np.float32) for name in ("g", "b", "m", "v")}
    return one("BatchNormalization", S, opset, ("g", "b", "m", "v"), arrays, **attributes)


CASES |= {
    "BatchNormalization-7": _batch_norm(7, spatial=1),
    "BatchNormalization-9": _batch_norm(9, epsilon=0.01),
    "TopK-9": model(
        [node("TopK", ["x"], ["v", "i"], "N", k=3, axis=1)],
        [tensor("x", [2, 6])],
        [tensor("v", None), tensor("i", None, TensorProto.INT64)],
        opset=9,
    ),
    "TopK-10": model(
        [node("TopK", ["x", "k"], ["v", "i"], "N")],
        [tensor("x", [2, 6])],
        [tensor("v", None), tensor("i", None, TensorProto.INT64)],
        {"k": np.int64([2])},
        opset=10,
    ),
}


@pytest.mark.parametrize("to", [11, 13, 17, 21, 22])
@pytest.mark.parametrize("name", CASES)
def test_conversion_keeps_the_numbers(name: str, to: int) -> None:
    proto = CASES[name]
    if query.opset(io.load(proto)) >= to or (proto.graph.node[0].op_type, to) == ("RoiAlign", 22):
        pytest.skip("already there, or without a kernel there")
    report: list[object] = []
    found = before_and_after(
        proto, lambda m: report.append(prepare(m, PrepareOptions(opset=to, fold_constants=False, fuse=False)))
    )
    assert query.opset(found) == to
    assert "opset" in str(report[0])


def test_conversion_without_known_ranks_keeps_the_numbers() -> None:
    nodes = [node("Reshape", ["x", "s"], ["r"], "R"), node("Softmax", ["r"], ["y"], "N", axis=1)]
    proto = model(
        nodes,
        [tensor("x", [24]), tensor("s", ["rank"], TensorProto.INT64)],
        [tensor("y", None)],
        opset=11,
    )
    feeds = {"x": np.arange(24, dtype=np.float32) / 10, "s": np.int64([2, 3, 4])}
    found = before_and_after(proto, lambda m: raise_opset(m, 13), feeds)
    assert "Flatten" in ops(found)


@pytest.mark.parametrize("cond", [True, False])
def test_branches_are_converted_too(cond: bool) -> None:
    then = graph(
        [node("Squeeze", ["h"], ["a"], axes=[0]), node("Softmax", ["a"], ["t"])], [], [tensor("t", None)]
    )
    other = graph(
        [node("ReduceSum", ["h"], ["b"], axes=[0], keepdims=0), node("Clip", ["b"], ["e"], max=0.5)],
        [],
        [tensor("e", None)],
    )
    nodes = [
        node("Unsqueeze", ["x"], ["h"], axes=[0]),
        node("If", ["cond"], ["y"], then_branch=then, else_branch=other),
    ]
    proto = model(
        nodes,
        [tensor("x", [2, 3, 4]), tensor("cond", [], TensorProto.BOOL)],
        [tensor("y", None)],
        opset=9,
    )
    feeds = {"x": rng.standard_normal((2, 3, 4)).astype(np.float32), "cond": np.array(cond)}
    for to in (13, 18, 21):
        before_and_after(proto, lambda m, to=to: prepare(m, PrepareOptions(opset=to)), feeds)  # type: ignore[misc]


def test_names_metadata_and_other_domains_stay() -> None:
    nodes = [
        node("Squeeze", ["x"], ["a"], "squeeze", axes=[0]),
        node("Gelu", ["a"], ["b"], "gelu", domain="com.microsoft"),
        node("Clip", ["b"], ["y"], "clip", min=0.0, max=1.0),
    ]
    proto = model(nodes, [tensor("x", [1, 3])], [tensor("y", [3])], opset=10, domains={"com.microsoft": 1})
    proto.metadata_props.add(key="k", value="v")
    found = before_and_after(proto, lambda m: raise_opset(m, 17))
    assert [n.name for n in found.graph] == ["squeeze", "gelu", "clip"]
    assert dict(found.opset_imports) == {"": 17, "com.microsoft": 1}
    assert found.metadata_props == {"k": "v"}
    assert raise_opset(found, 13) == 0
    assert query.opset(found) == 17


@pytest.mark.parametrize(
    ("proto", "to", "says"),
    [
        (one("Relu", S, 6), 13, "opset 6"),
        (one("Relu", S, 13), 99, "newest"),
        (_batch_norm(8, spatial=0), 13, "spatial"),
        (one("Resize", [1, 2, 8, 9], 10, ("s",), {"s": np.float32([1, 1, 0.6, 2])}), 11, "shrinks"),
        (one("Upsample", [1, 2, 3, 4], 9, ("s",), {"s": np.float32([1, 1, 0.5, 2])}), 13, "shrinks"),
        (one("Resize", [1, 2, 3, 4], 11, ("s", "s"), {"s": np.float32([1, 1, 2, 2])}, coordinate_transformation_mode="tf_half_pixel_for_nn"), 13, "tf_half"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_has_no_successor_is_refused_by_name(proto: onnx.ModelProto, to: int, says: str) -> None:
    found = io.load(proto)
    normalize(found)
    with pytest.raises(ModelError, match=says):
        raise_opset(found, to)


def test_an_opset_for_which_the_runtime_lacks_a_kernel_is_refused() -> None:
    found = io.load(CASES["RoiAlign-10"])
    normalize(found)
    if any(kernel.since >= 22 for kernel in kernels()["", "RoiAlign"]):
        pytest.skip("this runtime has the kernel")
    with pytest.raises(ModelError, match=r"RoiAlign.*21"):
        raise_opset(found, 22)


def test_group_normalization_gets_one_parameter_per_channel() -> None:
    arrays = {"s": np.float32([2, 3]), "b": np.float32([0.5, 1])}
    found = io.load(one("GroupNormalization", [1, 6, 4], 18, ("s", "b"), arrays, num_groups=2))
    normalize(found)
    prepare(found, PrepareOptions(opset=21, fuse=False))
    scale = query.array(found.graph[0].inputs[1])
    assert scale is not None
    assert scale.tolist() == [2, 2, 2, 3, 3, 3]
