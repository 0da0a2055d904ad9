"""The result of a calibrator: a range (and more) for each tensor, and its JSON cache."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.methods.spread import LEAST_SHARE, Spread
from octavo.calibration.tables import stock_cache
from octavo.core.stats import Range
from octavo.errors import TableError
from octavo.quantization._types import CalibrationMethod

_FLOATS = ("avg", "std", "lowest", "highest", "hist_edges")
_ALLOWED = (*_FLOATS, "hist", "bins")


class TensorData:
    """What is known of one tensor, as attributes.

    They are ``lowest``, ``highest``, ``avg``, ``std``, ``hist``, ``hist_edges``, ``bins``, as far as given.
    Plain numbers are taken as float32.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._attrs = list(kwargs)
        for key, value in kwargs.items():
            if key not in _ALLOWED:
                raise ValueError(
                    f"{key!r} is not a field of TensorData; the fields are {', '.join(_ALLOWED)}."
                )
            setattr(self, key, _as_float(key, value) if key in _FLOATS else value)

    @property
    def range_value(self) -> tuple[Any, Any]:
        """Return the lowest and the highest value."""
        return self._pair("lowest", "highest")

    @property
    def avg_std(self) -> tuple[Any, Any]:
        """Return mean and standard deviation."""
        return self._pair("avg", "std")

    def _pair(self, first: str, second: str) -> tuple[Any, Any]:
        if first not in self._attrs or second not in self._attrs:
            raise AttributeError(
                f"This TensorData holds {', '.join(self._attrs) or 'nothing'}, not {first} and {second};"
                " calibrate with a method that finds them."
            )
        return getattr(self, first), getattr(self, second)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are there, and the name of the class."""
        return {**{key: getattr(self, key) for key in self._attrs}, "CLS": "TensorData"}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> TensorData:
        """Read what :meth:`to_dict` gave."""
        return cls(**{key: value for key, value in d.items() if key != "CLS"})

    def __repr__(self) -> str:
        return f"TensorData({', '.join(f'{key}={getattr(self, key)!r}' for key in self._attrs)})"


def _as_float(key: str, value: Any) -> Any:
    """Return a float32 or float16 number or array, as ranges are kept."""
    if getattr(value, "dtype", None) in (np.dtype(np.float16), np.dtype(np.float32)):
        return value
    try:
        return np.asarray(value, np.float32)[()]
    except (TypeError, ValueError):
        raise ValueError(f"{key} of a TensorData is a number or an array, not {value!r}.") from None


class TensorsData(Mapping[str, TensorData]):
    """A :class:`TensorData` for each tensor; ``(low, high)`` or ``(low, high, hist, bins)`` will do."""

    def __init__(
        self, calibration_method: CalibrationMethod, data: Mapping[str, TensorData | tuple[Any, ...]]
    ) -> None:
        self.calibration_method = calibration_method
        self.data: dict[str, TensorData] = {}
        for name, value in data.items():
            if not isinstance(name, str):
                raise TypeError(f"Tensors are known by names, not by {type(name).__name__}.")
            self.data[name] = _entry(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, key: str) -> TensorData:
        return self.data[key]

    def __setitem__(self, key: str, value: TensorData | tuple[Any, ...]) -> None:
        if key not in self.data:
            raise RuntimeError(
                f"The tensor {key!r} is not among those calibrated; only these can be changed."
            )
        self.data[key] = _entry(key, value)

    def to_dict(self) -> dict[str, Any]:
        """Return the cache's own form."""
        return {"CLS": "TensorsData", "data": self.data, "calibration_method": self.calibration_method}

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> TensorsData:
        """Read what :meth:`to_dict` gave, or the same as plain dictionaries."""
        entries = {
            name: TensorData.from_dict(entry) if isinstance(entry, dict) else entry
            for name, entry in d["data"].items()
        }
        return cls(_method(d["calibration_method"]), entries)

    def ranges(self) -> dict[str, Range]:
        """Return the ranges as Octavo's core takes them."""
        return {name: as_range(entry) for name, entry in self.data.items()}


def as_range(data: TensorData) -> Range:
    """Lowest, highest and, where known, the standard deviation; over all channels."""
    low, high = data.range_value
    std = float(np.max(data.std)) if "std" in data._attrs else None  # type: ignore[attr-defined]
    return Range(float(np.min(low)), float(np.max(high)), std)


def narrow(tensors: TensorsData) -> dict[str, float]:
    """Return the tensors whose ranges keep less than half of what their histograms count."""
    shares: dict[str, float] = {}
    for name, data in tensors.items():
        counts, edges = (np.atleast_1d(_either(data, *keys)) for keys in (("hist",), ("hist_edges", "bins")))
        if len(edges) == len(counts) + 1 and counts.sum() > 0:  # in caches of other tools they need not fit
            shares[name] = Spread(edges.astype(np.float64), counts).share(as_range(data))
    return {name: share for name, share in shares.items() if share < LEAST_SHARE}


def _either(data: TensorData, *keys: str) -> Any:
    return next((getattr(data, key) for key in keys if key in data._attrs), 0)


def _entry(name: str, value: TensorData | tuple[Any, ...]) -> TensorData:
    if isinstance(value, TensorData):
        return value
    if isinstance(value, tuple | list) and len(value) in (2, 4):
        return TensorData(**dict(zip(("lowest", "highest", "hist", "bins"), value, strict=False)))
    raise TypeError(
        f"{name!r} has {value!r} for a range; give a TensorData, (lowest, highest), or"
        " (lowest, highest, hist, bins)."
    )


def _method(value: Any) -> CalibrationMethod:
    if isinstance(value, CalibrationMethod):
        return value
    text = str(value["value"] if isinstance(value, Mapping) else value)
    try:
        return CalibrationMethod[text.removeprefix("CalibrationMethod.")]
    except KeyError:
        raise ValueError(f"{text!r} is not a CalibrationMethod.") from None


class CalibrationCacheEncoder(json.JSONEncoder):
    """JSON of the calibration cache: arrays carry their type, numpy numbers are plain numbers."""

    def default(self, obj: Any) -> Any:
        """Return what the cache holds instead of an object."""
        if isinstance(obj, TensorData | TensorsData):
            return obj.to_dict()
        if isinstance(obj, CalibrationMethod):
            return {"CLS": "CalibrationMethod", "value": str(obj)}
        plain: npt.NDArray[Any] | np.generic
        if isinstance(obj, np.ndarray | np.generic):
            plain = obj
            return stock_cache.plain(plain)
        return super().default(obj)


def save_tensors_data(tensors_data: TensorsData, path: str | Path, *, smooth_quant: bool = False) -> None:
    """Write a calibration cache; its folder is made, and the file appears as a whole or not at all."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    stock_cache.save(as_cache(tensors_data, smooth_quant), path)


def load_tensors_data(path: str | Path) -> TensorsData:
    """Read a calibration cache; ``smooth_quant`` of the result says for which model it was made."""
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"There is no calibration cache at {path}; calibrate with a data reader first."
        )
    try:
        cache = stock_cache.load(path)
    except TableError as error:
        raise ValueError(str(error)) from error
    found = TensorsData(
        _method(cache.method), {name: TensorData(**entry) for name, entry in cache.data.items()}
    )
    found.smooth_quant = cache.smooth_quant  # type: ignore[attr-defined]
    return found


def as_cache(tensors_data: TensorsData, smooth_quant: bool | None) -> stock_cache.Cache:
    """Return the form that the file format is defined on."""
    entries = {
        name: {key: value for key, value in entry.to_dict().items() if key != "CLS"}
        for name, entry in tensors_data.items()
    }
    return stock_cache.Cache(tensors_data.calibration_method.name, entries, smooth_quant)
