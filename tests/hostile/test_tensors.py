"""Tensors whose type, shape and content do not agree: refused before anything is allocated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto

from hostile.models import WIDTH, changed, layer, read
from hostile.sandbox import Sandbox
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query

Weight = onnx.TensorProto


def _dims(*dims: int) -> Callable[[Weight], None]:
    def change(weight: Weight) -> None:
        weight.dims[:] = dims

    return change


def _typed(kind: int, field: str, values: list[object], *dims: int) -> Callable[[Weight], None]:
    def change(weight: Weight) -> None:
        weight.ClearField("raw_data")
        weight.data_type = kind
        weight.dims[:] = dims
        getattr(weight, field).extend(values)

    return change


def _raw(kind: int, content: bytes, *dims: int) -> Callable[[Weight], None]:
    def change(weight: Weight) -> None:
        weight.data_type = kind
        weight.dims[:] = dims
        weight.raw_data = content

    return change


def _both(weight: Weight) -> None:
    weight.float_data.extend([1.0] * WIDTH * WIDTH)


def _both_and_large(weight: Weight) -> None:
    weight.dims[:] = [1 << 13]
    weight.raw_data = bytes(1 << 15)
    weight.float_data.extend([1.0])


def _raw_and_external(weight: Weight) -> None:
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")


def _segmented(weight: Weight) -> None:
    weight.segment.begin, weight.segment.end = 0, 4


def _empty(weight: Weight) -> None:
    weight.ClearField("raw_data")


T = TensorProto
FAULTS: dict[str, Callable[[Weight], None]] = {
    "negative": _dims(-1, -16),
    "one-negative": _dims(WIDTH, -WIDTH),
    "zero-times-huge": _dims(0, 2**62),
    "zero-times-huge-many": _dims(0, 2**40, 2**40),
    "product-overflows-int64": _dims(2**32, 2**32),
    "product-overflows-to-16": _dims(2**60, 2**4 + 2**8),
    "largest-dims": _dims(2**63 - 1, 2**63 - 1),
    "rank-65": _dims(*(1,) * 65),
    "rank-1000": _dims(*(1,) * 1000),
    "too-few-bytes": _dims(WIDTH, WIDTH + 1),
    "too-many-bytes": _dims(WIDTH, WIDTH - 1),
    "scalar-with-many-values": _dims(),
    "terabyte": _dims(2**38),
    "no-type": _raw(T.UNDEFINED, bytes(16), 4),
    "unknown-type": _raw(99, bytes(16), 4),
    "negative-type": _raw(-1, bytes(16), 4),
    "wrong-type": _raw(T.DOUBLE, bytes(64), 4, 4),
    "no-content": _empty,
    "raw-and-typed": _both,
    "raw-and-typed-in-a-large-weight": _both_and_large,
    "raw-and-external": _raw_and_external,
    "segments": _segmented,
    "int4-odd-short": _raw(T.INT4, bytes(2), 5),
    "int4-odd-long": _raw(T.INT4, bytes(4), 5),
    "uint4-unpacked": _raw(T.UINT4, bytes(16), 4, 4),
    "float4-short": _raw(T.FLOAT4E2M1, bytes(7), 4, 4),
    "int2-odd-short": _raw(T.INT2, bytes(1), 5),
    "int2-odd-long": _raw(T.INT2, bytes(3), 5),
    "uint2-unpacked": _raw(T.UINT2, bytes(16), 4, 4),
    "big-endian-that-does-not-fit": _raw(T.INT16, b"\x00\x01\x00", 2),
    "text-as-raw": _raw(T.STRING, b"text", 1),
    "text-announced": _typed(T.STRING, "string_data", [b"a"], 2**40),
    "text-missing": _typed(T.STRING, "string_data", [], 16),
    "floats-as-int32": _typed(T.FLOAT, "int32_data", [1] * 16, 4, 4),
    "int64-as-floats": _typed(T.INT64, "float_data", [1.0] * 16, 4, 4),
    "typed-short": _typed(T.FLOAT, "float_data", [1.0] * 15, 4, 4),
    "typed-announces-terabytes": _typed(T.FLOAT, "float_data", [1.0], 2**40),
    "complex-short": _typed(T.COMPLEX64, "float_data", [1.0] * 16, 4, 4),
    "int4-typed-short": _typed(T.INT4, "int32_data", [1] * 7, 4, 4),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_a_damaged_initializer(sandbox: Sandbox, fault: Callable[[Weight], None]) -> None:
    made = changed(lambda proto: fault(proto.graph.initializer[0]))
    sandbox.refuses_each([lambda: read(made.SerializeToString()), lambda: read(made)], ModelError)


@pytest.mark.parametrize(
    "name", ["negative", "product-overflows-int64", "terabyte", "raw-and-typed", "no-type"]
)
@pytest.mark.parametrize("place", ["constant", "list", "function", "branch"])
def test_a_damaged_tensor_in_an_attribute(sandbox: Sandbox, name: str, place: str) -> None:
    made = layer()
    weight = onnx.TensorProto()
    weight.CopyFrom(made.graph.initializer[0])
    FAULTS[name](weight)
    holder = onnx.NodeProto(op_type="Constant", output=["k"])
    attribute = holder.attribute.add(name="value", type=onnx.AttributeProto.TENSOR)
    if place == "list":
        attribute.type = onnx.AttributeProto.TENSORS
        attribute.tensors.append(weight)
    else:
        attribute.t.CopyFrom(weight)
    if place == "function":
        made.opset_import.add(domain="own", version=1)
        made.functions.add(name="f", domain="own", input=["x"], output=["k"], node=[holder])
    elif place == "branch":
        branch = made.graph.node.add(op_type="If", input=["x"], output=["q"]).attribute.add(
            name="then_branch"
        )
        branch.type = onnx.AttributeProto.GRAPH
        branch.g.node.append(holder)
    else:
        made.graph.node.insert(0, holder)
    sandbox.refuses(lambda: read(made.SerializeToString()), ModelError)


SOUND = {
    "int4-odd": (_raw(T.INT4, b"\x21\x43\x05", 5), [1, 2, 3, 4, 5]),
    "uint4-even": (_raw(T.UINT4, b"\x21\x43", 4), [1, 2, 3, 4]),
    "uint2-odd": (_raw(T.UINT2, b"\x1b\x02", 5), [3, 2, 1, 0, 2]),
    "int2-odd": (_raw(T.INT2, b"\x1b\x02", 5), [-1, -2, 1, 0, -2]),
    "typed-int4-packed": (_typed(T.INT4, "int32_data", [0x21, 0x43], 4), [1, 2, 3, 4]),
    "no-elements": (_raw(T.FLOAT, b"", 0), []),
    "scalar": (_raw(T.FLOAT, np.float32(2).tobytes()), 2.0),
    "little-endian": (_raw(T.INT16, b"\x01\x00\x00\x01", 2), [1, 256]),
    "denormal": (_raw(T.FLOAT, np.float32([1e-45]).tobytes(), 1), [float(np.float32(1e-45))]),
}


@pytest.mark.parametrize(("change", "values"), SOUND.values(), ids=SOUND.keys())
def test_an_unusual_tensor_is_read_right(
    sandbox: Sandbox, change: Callable[[Weight], None], values: object
) -> None:
    made = model([node("Identity", ["w"], ["y"])], [], [tensor("y", None)], {"w": np.zeros(1, np.float32)})
    change(made.graph.initializer[0])

    def content() -> object:
        return next(iter(query.tensors(io.load(made.SerializeToString())))).numpy().tolist()

    assert sandbox.gives(content) == values
