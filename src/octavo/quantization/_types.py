"""The enums of the drop-in, and how they read in Octavo's own words."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

from onnx import TensorProto

from octavo.core import qtypes
from octavo.core.qtypes import QType

_E = TypeVar("_E", bound="_Known")


class _Known(Enum):
    """An enum whose members another package's enum of the same names may stand for."""

    @classmethod
    def of(cls: type[_E], value: Any) -> _E:
        """Return the member that a value stands for: itself, or one that has its name."""
        if isinstance(value, cls):
            return value
        name = getattr(value, "name", value)
        try:
            return cls[name]
        except KeyError:
            known = ", ".join(cls.__members__)
            raise ValueError(f"{name!r} is not a {cls.__name__}; choose one of: {known}.") from None


class _Named(_Known):
    """An enum that prints as the bare name and is found by it."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls: type[_E], text: str) -> _E:
        """Return the member of this name."""
        return cls.of(text)


class QuantizationMode(_Named):
    """Which integer operators a model without QuantizeLinear pairs is written in."""

    IntegerOps = 0
    QLinearOps = 1


class QuantizedValueType(_Named):
    """Whether a quantized value is computed or stored."""

    Input = 0
    Initializer = 1


class QuantFormat(_Named):
    """How a statically quantized model is written."""

    QOperator = 0
    QDQ = 1


class QuantType(_Named):
    """A quantized type by its stock name."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @property
    def qtype(self) -> QType:
        """Return the same type as Octavo's core knows it."""
        return _QTYPES[self.name]

    @property
    def tensor_type(self) -> int:
        """Return the element type in which ONNX stores it."""
        return self.qtype.onnx

    @classmethod
    def of(cls, value: Any) -> QuantType:
        """Return the member that a value stands for, also an ONNX element type or one of the core's types.

        Old callers of the quantizer classes say with True or False whether 8 bits have a sign.
        """
        if isinstance(value, bool):
            return cls.QInt8 if value else cls.QUInt8
        element_type = value.onnx if isinstance(value, QType) else value
        if not isinstance(element_type, int):
            return super().of(value)
        for member in cls:
            if member.tensor_type == element_type:
                return member
        name = TensorProto.DataType.Name(element_type) if element_type in _ELEMENT_TYPES else element_type
        known = ", ".join(cls.__members__)
        raise ValueError(f"{name} is not a quantized type; choose one of: {known}.")


_QTYPES: dict[str, QType] = {
    "QInt8": qtypes.INT8,
    "QUInt8": qtypes.UINT8,
    "QFLOAT8E4M3FN": qtypes.FLOAT8E4M3FN,
    "QInt16": qtypes.INT16,
    "QUInt16": qtypes.UINT16,
    "QInt4": qtypes.INT4,
    "QUInt4": qtypes.UINT4,
}


EIGHT_BITS = frozenset({QuantType.QInt8, QuantType.QUInt8})
FOUR_BITS = frozenset({QuantType.QInt4, QuantType.QUInt4})
SIXTEEN_BITS = frozenset({QuantType.QInt16, QuantType.QUInt16})
_ELEMENT_TYPES = frozenset(TensorProto.DataType.values())


class CalibrationMethod(_Known):
    """How a range is read off what calibration has seen."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3
