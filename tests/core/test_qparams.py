from __future__ import annotations

import numpy as np

from octavo.core.granularity import PerChannel
from octavo.core.qparams import QParams
from octavo.core.qtypes import FLOAT8E4M3FN, INT8, UINT8


def params(scale: object, zero: object, kind: object = UINT8, **more: object) -> QParams:
    return QParams(np.array(scale, np.float32), np.array(zero, kind.dtype), kind, **more)  # type: ignore[attr-defined,arg-type]


def test_real_range_is_that_of_the_extreme_integers() -> None:
    low, high = params(0.5, 128).real_range
    assert (low, high) == (-64.0, 63.5)


def test_real_range_of_channels_holds_all_of_them() -> None:
    many = params([1.0, 2.0], [0, 0], INT8, granularity=PerChannel(0))
    assert many.real_range == (-256.0, 254.0)


def test_real_range_of_float8_is_symmetric() -> None:
    assert params(0.5, 0, FLOAT8E4M3FN).real_range == (-224.0, 224.0)


def test_parameters_are_the_same_where_every_bit_is() -> None:
    base = params(0.5, 128)
    assert base.same_as(params(0.5, 128))
    assert not base.same_as(params(0.5, 127))
    assert not base.same_as(params(np.nextafter(np.float32(0.5), np.float32(1)), 128))
    assert not base.same_as(params(0.5, 100, INT8))
    assert not base.same_as(QParams(np.array(0.5, np.float16), base.zero_point, UINT8))
    assert not base.same_as(params([0.5], [128], granularity=PerChannel(0)))


def test_parameters_are_equal_and_hashed_by_identity() -> None:
    one, other = params(0.5, 128), params(0.5, 128)
    assert one == one
    assert len({one, other}) == 2


def test_parameters_print_in_one_line() -> None:
    assert str(params(0.5, 128)) == "uint8 scale 0.5 zero point 128"
    assert str(params([0.5, 2], [1, 1], granularity=PerChannel(0))) == "uint8/channel:0 scale 0.5…2"
    assert str(params([], [], granularity=PerChannel(0))) == "uint8/channel:0 no scale"


def test_range_of_no_channels_is_zero() -> None:
    assert params([], [], granularity=PerChannel(0)).real_range == (0.0, 0.0)
