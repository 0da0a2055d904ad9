"""Quantized number types, as values with computed properties.

A type knows its storage (numpy and ONNX), and the integers that a scheme may use of it:

=========  ================  ===============  ===============
type       full              symmetric        reduced
=========  ================  ===============  ===============
int8       -128 … 127        -127 … 127       -64 … 64
uint8      0 … 255           0 … 255          0 … 127
int16      -32768 … 32767    -32767 … 32767   -16384 … 16384
uint16     0 … 65535         0 … 65535        0 … 32767
int4       -8 … 7            -8 … 7           -4 … 3
uint4      0 … 15            0 … 15           0 … 7
int2       -2 … 1            -2 … 1           -1 … 0
uint2      0 … 3             0 … 3            0 … 1
=========  ================  ===============  ===============
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import ml_dtypes
import numpy as np

from octavo.errors import RecipeError, closest


@dataclass(frozen=True, eq=False)
class QType:
    """One quantized type, of which there is one object; look it up with :func:`qtype`."""

    name: str
    bits: int
    signed: bool
    onnx: int  # the value of TensorProto.DataType
    dtype: np.dtype[np.generic]
    is_float: bool = False

    @property
    def qmin(self) -> int:
        """Return the smallest integer of the full range."""
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Return the largest integer of the full range."""
        return (1 << (self.bits - (1 if self.signed else 0))) - 1

    def limits(self, *, symmetric: bool = False, reduced: bool = False) -> tuple[int, int]:
        """Return the integers that may be used, by the table above."""
        if self.is_float:
            raise RecipeError(
                f"{self.name} is a float type and has no integer limits; its scale comes from a standard"
                " deviation: choose the method 'distribution'."
            )
        if reduced:
            low, high = _REDUCED[self.name]
        else:
            low, high = self.qmin, self.qmax
            if symmetric and self.signed and self.bits >= 8:
                low += 1
        return low, high

    @property
    def symmetric_by_default(self) -> bool:
        """Weights of a signed or float type are centred on zero unless asked otherwise."""
        return self.signed or self.is_float

    @property
    def min_opset(self) -> int:
        """Return the lowest ai.onnx opset at which a model may hold this type.

        QuantizeLinear takes float8 from 19 on, but the runtime moves a Transpose past it, which does from 21.
        """
        if self.bits == 2:
            return 25
        return 10 if self.bits in (8, 32) and not self.is_float else 21

    def __reduce__(self) -> tuple[Any, ...]:
        return qtype, (self.name,)  # copied or sent to another process, it is still the one of its name

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"qtype({self.name!r})"


# 2 bits are for weights in blocks alone
INT2 = QType("int2", 2, True, 26, np.dtype(ml_dtypes.int2))
UINT2 = QType("uint2", 2, False, 25, np.dtype(ml_dtypes.uint2))
INT4 = QType("int4", 4, True, 22, np.dtype(ml_dtypes.int4))
UINT4 = QType("uint4", 4, False, 21, np.dtype(ml_dtypes.uint4))
INT8 = QType("int8", 8, True, 3, np.dtype(np.int8))
UINT8 = QType("uint8", 8, False, 2, np.dtype(np.uint8))
INT16 = QType("int16", 16, True, 5, np.dtype(np.int16))
UINT16 = QType("uint16", 16, False, 4, np.dtype(np.uint16))
INT32 = QType("int32", 32, True, 6, np.dtype(np.int32))  # biases only
FLOAT8_MAX = 448.0  # the largest finite value of float8e4m3fn
FLOAT8E4M3FN = QType("float8e4m3fn", 8, True, 17, np.dtype(ml_dtypes.float8_e4m3fn), is_float=True)

_REDUCED = {
    "int8": (-64, 64),
    "uint8": (0, 127),
    "int16": (-16384, 16384),
    "uint16": (0, 32767),
    "int2": (-1, 0),
    "uint2": (0, 1),
    "int4": (-4, 3),
    "uint4": (0, 7),
    "int32": (-(2**30), 2**30),
}

QTYPES: dict[str, QType] = {t.name: t for t in (INT4, UINT4, INT8, UINT8, INT16, UINT16, FLOAT8E4M3FN)}
_ALL = {**QTYPES, **{t.name: t for t in (INT2, UINT2, INT32)}}
_BY_ONNX = {t.onnx: t for t in _ALL.values()}
_OTHER_NAMES = dict.fromkeys(("fp8", "float8", "float8_e4m3fn", "e4m3"), FLOAT8E4M3FN.name)


TypeName = str | QType | np.dtype[Any] | type[np.generic]


def is_type(given: object) -> TypeGuard[TypeName]:
    """Whether a value can stand for a type: its name, the type itself, or numpy's."""
    return isinstance(given, str | QType | np.dtype) or (
        isinstance(given, type) and issubclass(given, np.generic)
    )


def qtype(name: TypeName) -> QType:
    """Return the type of this name, ``qtype("uint8")``, or the one that is numpy's ``np.uint8``."""
    if isinstance(name, QType):
        return name
    text = name if isinstance(name, str) else np.dtype(name).name if is_type(name) else str(name)
    key = text.lower()
    key = _OTHER_NAMES.get(key, key)
    if key not in _ALL:
        near = f"; did you mean 'int{key}'?" if f"int{key}" in QTYPES else closest(key, QTYPES)
        raise RecipeError(
            f"{text!r} is not a quantized type{near or '.'}"
            f" Known types: {', '.join(QTYPES)}; for weights in blocks also int2 and uint2."
        )
    return _ALL[key]


def from_onnx(element_type: int) -> QType | None:
    """Return the quantized type stored as this TensorProto element type, if it is one."""
    return _BY_ONNX.get(int(element_type))
