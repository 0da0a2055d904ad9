"""The enums of the drop-in, and how they read in Octavo's own words."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from octavo.core import qtypes
from octavo.core.qtypes import QType

_E = TypeVar("_E", bound="_Named")


class _Named(Enum):
    """An enum that prints as the bare name and is found by it."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls: type[_E], text: str) -> _E:
        """The member of this name."""
        try:
            return cls[text]
        except KeyError:
            known = ", ".join(cls.__members__)
            raise ValueError(f"{text!r} is no {cls.__name__}; choose one of: {known}.") from None


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
        """The same type as Octavo's core knows it."""
        return _QTYPES[self.name]

    @property
    def tensor_type(self) -> int:
        """The element type in which ONNX stores it."""
        return self.qtype.onnx

    @classmethod
    def of(cls, kind: QType) -> QuantType:
        """The member for one of the core's types."""
        for name, known in _QTYPES.items():
            if known == kind:
                return cls[name]
        raise ValueError(f"{kind} has no QuantType; it serves as the type of biases only.")


_QTYPES: dict[str, QType] = {
    "QInt8": qtypes.INT8,
    "QUInt8": qtypes.UINT8,
    "QFLOAT8E4M3FN": qtypes.FLOAT8E4M3FN,
    "QInt16": qtypes.INT16,
    "QUInt16": qtypes.UINT16,
    "QInt4": qtypes.INT4,
    "QUInt4": qtypes.UINT4,
}


class CalibrationMethod(Enum):
    """How a range is read off what calibration has seen."""

    MinMax = 0
    Entropy = 1
    Percentile = 2
    Distribution = 3
