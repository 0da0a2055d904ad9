"""The JSON cache that ``quantize_static(calibration_cache_path=…)`` and ``save_tensors_data`` share.

::

    {"CLS": "TensorsData",
     "data": {"<tensor>": {"lowest": …, "highest": …, …, "CLS": "TensorData"}, …},
     "calibration_method": {"CLS": "CalibrationMethod", "value": "CalibrationMethod.<name>"},
     "smooth_quant": false}

A number of float32 is written plainly, an array as ``{"data": …, "dtype": …, "CLS": "numpy.array"}``. A file
without ``smooth_quant`` (``calibration.json``) counts as false.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.calibration.tables.table_checks import MAX_BYTES
from octavo.core import files
from octavo.core.files import RepeatedNameError, read_bytes, unique
from octavo.core.stats import Range
from octavo.errors import TableError

Array = npt.NDArray[Any]

METHODS = ("MinMax", "Entropy", "Percentile", "Distribution")
FLOATS = ("lowest", "highest", "avg", "std", "hist_edges")
FIELDS = (*FLOATS, "hist", "bins")
_DTYPES = frozenset({"float16", "float32", "float64", "int32", "int64", "uint32", "uint64"})


@dataclass(frozen=True)
class Cache:
    """The fields of each tensor, and the method they were found with; ``smooth_quant`` None leaves it out."""

    method: str = "MinMax"
    data: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    smooth_quant: bool | None = None


def from_ranges(found: Mapping[str, Range]) -> Cache:
    """Return a cache of ranges alone; with standard deviations it is one of Distribution calibration."""
    spread = any(r.std is not None for r in found.values())
    return Cache("Distribution" if spread else "MinMax", {name: _fields(r) for name, r in found.items()})


def _fields(found: Range) -> dict[str, Any]:
    ends = {"lowest": found.low, "highest": found.high}
    return ends if found.std is None else {**ends, "std": found.std}


def ranges(cache: Cache) -> dict[str, Range]:
    """Return the range of each tensor, over all channels."""
    return {name: _range(name, entry) for name, entry in cache.data.items()}


def _range(name: str, entry: Mapping[str, Any]) -> Range:
    if "lowest" not in entry or "highest" not in entry:
        raise TableError(f"The cache has no lowest and highest value of {name!r}; calibrate again.")
    std = float(np.max(entry["std"])) if "std" in entry else None
    return Range(float(np.min(entry["lowest"])), float(np.max(entry["highest"])), std)


def plain(value: Array | np.generic) -> Any:
    """Return what JSON holds instead of an array or a numpy number."""
    if isinstance(value, np.ndarray):
        return {"data": value.tolist(), "dtype": str(value.dtype), "CLS": "numpy.array"}
    return value.item()


def dump(cache: Cache) -> bytes:
    """Return the content of the file."""
    content: dict[str, Any] = {
        "CLS": "TensorsData",
        "data": {name: {**entry, "CLS": "TensorData"} for name, entry in cache.data.items()},
        "calibration_method": {"CLS": "CalibrationMethod", "value": f"CalibrationMethod.{cache.method}"},
    }
    if cache.smooth_quant is not None:
        content["smooth_quant"] = cache.smooth_quant
    return json.dumps(content, default=plain).encode()


def parse(data: bytes) -> Cache:
    """Return the content of a file, every part of it checked."""
    return decode(parse_json(data))


def save(cache: Cache, path: str | Path) -> Path:
    """Write a cache to a file, which appears complete or not at all."""
    target = Path(path).absolute()
    with files.replacing([target]) as (handle,):
        handle.write(dump(cache))
    return target


def load(path: str | Path) -> Cache:
    """Read a cache from a file."""
    try:
        content = read_bytes(path, MAX_BYTES)
    except OSError as error:
        raise TableError(f"The calibration cache {path} can't be read: {error.strerror}.") from error
    try:
        return parse(content)
    except TableError as error:
        raise TableError(f"{path}: {error}") from error


def parse_json(data: bytes) -> Any:
    """Parse JSON without NaN, infinities and names that come twice."""
    try:
        return json.loads(data.decode(), object_pairs_hook=unique, parse_constant=_no_constant)
    except RepeatedNameError as error:
        raise TableError(f"In the table {error}; keep one of the two.") from error
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, ValueError) as error:
        raise TableError(f"The table is not JSON ({error}); calibrate again.") from error


def _no_constant(text: str) -> Any:
    raise TableError(f"The table holds {text}, which is not a range; calibrate again.")


def decode(content: Any) -> Cache:
    """Return a cache from parsed JSON."""
    if not isinstance(content, dict) or content.get("CLS") != "TensorsData":
        raise TableError("This is not a calibration cache: the object of class TensorsData is missing.")
    data, smooth = content.get("data"), content.get("smooth_quant", False)
    if not isinstance(data, dict) or not isinstance(smooth, bool):
        raise TableError("The calibration cache is damaged: 'data' or 'smooth_quant' is of the wrong kind.")
    return Cache(
        _method(content.get("calibration_method")), {n: _entry(n, e) for n, e in data.items()}, smooth
    )


def _method(value: Any) -> str:
    text = value.get("value") if isinstance(value, dict) else value
    name = str(text).removeprefix("CalibrationMethod.")
    if name not in METHODS:
        raise TableError(f"{str(text)[:60]!r} is not a calibration method; there are {', '.join(METHODS)}.")
    return name


def _entry(name: str, entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise TableError(f"The cache's entry of {name!r} is not an object; calibrate again.")
    unknown = [key for key in entry if key not in FIELDS and key != "CLS"]
    if unknown:
        raise TableError(f"The cache's entry of {name!r} has an unknown field {unknown[0][:60]!r}.")
    found = {key: _value(name, key, value) for key, value in entry.items() if key != "CLS"}
    if "lowest" in found and "highest" in found and not np.all(found["lowest"] <= found["highest"]):
        raise TableError(f"The cache's range of {name!r} goes from the larger to the smaller number.")
    return found


def _value(tensor: str, key: str, value: Any) -> Any:
    where = f"{key!r} of {tensor!r}"
    if isinstance(value, bool) or not isinstance(value, int | float | dict):
        raise TableError(
            f"The cache has {str(value)[:60]!r} for {where}, which is neither a number nor an array."
        )
    if isinstance(value, dict):
        return _array(where, value)
    if key not in FLOATS:
        return value
    return _finite(where, _converted(where, value, "float32"))


def _array(where: str, value: Mapping[str, Any]) -> Array:
    known = value.get("CLS") == "numpy.array" and isinstance(value.get("dtype"), str)
    if not known or value["dtype"] not in _DTYPES or "data" not in value:
        raise TableError(f"The cache has no readable array for {where}; calibrate again.")
    found = _finite(where, _converted(where, value["data"], value["dtype"]))
    if not found.size:
        raise TableError(f"The cache has an empty array for {where}; calibrate again.")
    return found


def _converted(where: str, data: Any, dtype: str) -> Array:
    try:
        with np.errstate(over="ignore"):
            return np.array(data, dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise TableError(f"The cache's array for {where} can't be read: {error}.") from error


def _finite(where: str, array: Array) -> Array:
    if not np.all(np.isfinite(array)):
        raise TableError(f"The cache holds a number that is not finite for {where}; calibrate again.")
    return array
