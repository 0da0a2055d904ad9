from __future__ import annotations

import copy
import pickle

import numpy as np
import onnx
import pytest

from octavo.core.qtypes import (
    FLOAT8_MAX,
    FLOAT8E4M3FN,
    INT4,
    INT8,
    INT16,
    INT32,
    QTYPES,
    UINT4,
    UINT8,
    UINT16,
    QType,
    from_onnx,
    qtype,
)
from octavo.errors import RecipeError

LIMITS = [  # type, full, symmetric, reduced
    (INT8, (-128, 127), (-127, 127), (-64, 64)),
    (UINT8, (0, 255), (0, 255), (0, 127)),
    (INT16, (-32768, 32767), (-32767, 32767), (-16384, 16384)),
    (UINT16, (0, 65535), (0, 65535), (0, 32767)),
    (INT4, (-8, 7), (-8, 7), (-4, 3)),
    (UINT4, (0, 15), (0, 15), (0, 7)),
    (INT32, (-(2**31), 2**31 - 1), (-(2**31) + 1, 2**31 - 1), (-(2**30), 2**30)),
]


@pytest.mark.parametrize(("kind", "full", "symmetric", "reduced"), LIMITS, ids=lambda v: str(v))
def test_limits_are_those_of_the_table(kind: QType, full: object, symmetric: object, reduced: object) -> None:
    assert kind.limits() == full == (kind.qmin, kind.qmax)
    assert kind.limits(symmetric=True) == symmetric
    assert kind.limits(reduced=True) == kind.limits(reduced=True, symmetric=True) == reduced


def test_float_type_has_no_integer_limits() -> None:
    with pytest.raises(RecipeError, match=r"no integer limits.*distribution"):
        FLOAT8E4M3FN.limits()


@pytest.mark.parametrize("kind", [*QTYPES.values(), INT32], ids=str)
def test_type_is_stored_as_onnx_stores_it(kind: QType) -> None:
    assert onnx.helper.tensor_dtype_to_np_dtype(kind.onnx) == kind.dtype
    assert from_onnx(kind.onnx) is kind


@pytest.mark.parametrize(
    "kind", [k for k in (*QTYPES.values(), INT32) if k.bits >= 8 and not k.is_float], ids=str
)
def test_full_range_is_that_of_the_stored_type(kind: QType) -> None:
    info = np.iinfo(kind.dtype)
    assert (kind.qmin, kind.qmax) == (info.min, info.max)


def test_largest_float8_is_the_largest_of_all_codes() -> None:
    every = np.arange(256, dtype=np.uint8).view(FLOAT8E4M3FN.dtype).astype(np.float32)
    assert np.nanmax(every) == FLOAT8_MAX


def test_other_onnx_types_are_no_quantized_types() -> None:
    assert from_onnx(onnx.TensorProto.FLOAT) is None


@pytest.mark.parametrize("name", ["uint8", "UINT8", UINT8])
def test_type_is_found_by_name_or_value(name: object) -> None:
    assert qtype(name) is UINT8  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["fp8", "float8", "e4m3", "float8_e4m3fn"])
def test_float8_has_common_variants(name: str) -> None:
    assert qtype(name) is FLOAT8E4M3FN


def test_unknown_type_names_the_nearest() -> None:
    with pytest.raises(
        RecipeError, match=r"'unt8' is not a quantized type; did you mean 'uint8'.*Known types: int4"
    ):
        qtype("unt8")
    with pytest.raises(RecipeError, match=r"'xyz' is not a quantized type\. Known types"):
        qtype("xyz")


@pytest.mark.parametrize("kind", [*QTYPES.values(), INT32], ids=str)
def test_copies_of_a_type_are_the_type(kind: QType) -> None:
    assert copy.deepcopy(kind) is kind
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert len({kind, qtype(kind.name)}) == 1


def test_type_prints_as_its_name() -> None:
    assert str(INT4) == "int4"
    assert repr(INT4) == "qtype('int4')"


def test_weights_of_signed_and_float_types_are_symmetric_by_default() -> None:
    assert {k.name for k in QTYPES.values() if k.symmetric_by_default} == {
        "int4",
        "int8",
        "int16",
        "float8e4m3fn",
    }


def test_min_opset_is_the_first_at_which_models_of_the_type_load() -> None:
    assert {k.name: k.min_opset for k in (*QTYPES.values(), INT32)} == {
        "int4": 21,
        "uint4": 21,
        "int8": 10,
        "uint8": 10,
        "int16": 21,
        "uint16": 21,
        "int32": 10,
        "float8e4m3fn": 21,
    }
