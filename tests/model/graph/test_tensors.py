"""Tensors that hold an array: the same content, type and bytes as onnx-ir's own."""

from __future__ import annotations

import io

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from octavo.model.graph.edit import Editor
from octavo.model.graph.tensors import ArrayTensor, dims_of, element_type, of_array, of_message, tensor_bytes

PLAIN = ("float32", "float64", "float16", "bool", "int8", "uint8", "int16", "uint16", "int32", "int64")


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_array_of_a_plain_type_is_the_tensor_that_onnx_ir_makes(kind: str, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float64).astype(kind).reshape(shape)
    own, other = of_array(array, None, ir.Shape(shape), "t"), ir.Tensor(array, name="t")
    assert isinstance(own, ArrayTensor)
    file = io.BytesIO()
    own.tofile(file)
    assert (own.name, own.dtype, own.size, own.nbytes) == (other.name, other.dtype, other.size, other.nbytes)
    assert own.tobytes() == other.tobytes() == file.getvalue()
    assert dims_of(own) == dims_of(other) == shape
    assert tensor_bytes(own) == array.nbytes
    assert np.array_equal(np.asarray(own), array) and np.array_equal(np.from_dlpack(own.raw), array)


def test_array_tensor_converts_to_another_type_when_numpy_asks() -> None:
    tensor = ArrayTensor(np.array([1, 2], np.int8), ir.DataType.INT8, ir.Shape([2]))
    assert np.asarray(tensor, np.float32).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([1, -2], ml_dtypes.int4), ir.DataType.INT4),
        (np.array([1, 2], ml_dtypes.float8_e4m3fn), ir.DataType.FLOAT8E4M3FN),
        (np.array([16256], np.uint16), ir.DataType.BFLOAT16),
    ],
)
def test_array_that_stands_for_another_type_is_left_to_onnx_ir(array: np.ndarray, dtype: ir.DataType) -> None:
    tensor = of_array(array, dtype, ir.Shape(array.shape), "t")
    assert type(tensor) is ir.Tensor and tensor.dtype == dtype


@pytest.mark.parametrize("dtype", [ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.UINT4])
def test_element_type_of_a_tensor_in_protobuf_is_its_own(dtype: ir.DataType) -> None:
    proto = ir.serde.serialize_tensor(ir.Tensor(np.zeros(2, dtype.numpy()), dtype=dtype))
    tensor = ir.TensorProtoTensor(proto)
    assert element_type(tensor) is tensor.dtype is dtype


def test_constant_of_an_editor_serializes_as_protobuf_by_onnx_ir_too() -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 17})
    value = Editor(ir.Model(graph, ir_version=8)).constant("c", np.array([[1.0, 2.0]], np.float32))
    assert value.const_value is not None
    proto = ir.serde.serialize_tensor(value.const_value)
    assert (proto.name, list(proto.dims), proto.raw_data) == ("c", [1, 2], np.float32([1, 2]).tobytes())


def test_a_small_tensor_of_a_message_is_read_once() -> None:
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    found = of_message(onnx.numpy_helper.from_array(array, "t"))
    assert found is not None
    assert found.name == "t"
    np.testing.assert_array_equal(found.numpy(), array)
    assert found.numpy() is found.numpy()


@pytest.mark.parametrize(
    "proto",
    [
        onnx.helper.make_tensor("typed", onnx.TensorProto.FLOAT, [2], [1.0, 2.0]),
        onnx.numpy_helper.from_array(np.zeros(1 << 15, np.float32), "large"),
        onnx.numpy_helper.from_array(np.zeros(0, np.float32), "empty"),
        onnx.TensorProto(name="apart", data_type=onnx.TensorProto.FLOAT, dims=[4]),
        onnx.TensorProto(
            name="noted", data_type=onnx.TensorProto.UINT8, dims=[1], raw_data=b"1", doc_string="note"
        ),
    ],
    ids=lambda proto: proto.name,
)
def test_any_other_tensor_stays_in_its_message(proto: onnx.TensorProto) -> None:
    assert of_message(proto) is None
