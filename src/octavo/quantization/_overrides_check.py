"""What may be wrong with the overrides of a tensor, found before anything is done with them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import onnx

from octavo.errors import closest
from octavo.quantization._types import QuantType

KEYS = frozenset(
    {"quant_type", "axis", "scale", "zero_point", "symmetric", "reduce_range", "rmin", "rmax", "convert"}
)
_CONVERT = frozenset(
    {"quant_type", "scale", "zero_point", "symmetric", "reduce_range", "rmin", "rmax", "recv_nodes"}
)
_DERIVED = ("symmetric", "reduce_range", "rmin", "rmax")


def problem(
    tensor: str,
    found: Any,
    initializers: Mapping[str, onnx.TensorProto],
    activations: Collection[str],
    default_type: QuantType,
) -> str | None:
    """Return the first thing that is wrong with the overrides of one tensor, as a sentence."""
    if tensor not in initializers and tensor not in activations:
        near = _near(tensor, initializers, activations)
        return f"The overrides name the tensor {tensor!r}, which is not present in the model{near}"
    if not isinstance(found, list) or not all(isinstance(d, dict) for d in found):
        return f"The overrides of {tensor!r} are not a list of dicts; write [{{...}}]."
    if not found:
        return None
    for entry in found:
        wrong = _entry(tensor, entry, KEYS) or _convert(tensor, entry, tensor in initializers, default_type)
        if wrong is not None:
            return wrong
    if "axis" in found[0]:
        return _channels(tensor, found, initializers)
    if len(found) > 1:
        return f"The overrides of {tensor!r} have {len(found)} dicts and no axis; put 'axis' into the first."
    if tensor not in initializers and "reduce_range" in found[0]:
        return f"The overrides of {tensor!r}: reduce_range is for initializers; leave it out."
    return None


def _near(tensor: str, initializers: Collection[str], activations: Collection[str]) -> str:
    return closest(tensor, [*initializers, *activations]) or "; remove that entry."


def _entry(tensor: str, entry: Mapping[str, Any], known: Collection[str]) -> str | None:
    for key in entry:
        if key not in known:
            return f"The overrides of {tensor!r} have an unknown key {key!r}{closest(str(key), known) or '.'}"
    if ("scale" in entry) != ("zero_point" in entry):
        return f"The overrides of {tensor!r}: Must provide both 'scale' and 'zero_point', or neither."
    clash = [key for key in _DERIVED if key in entry]
    if "scale" in entry and clash:
        return (
            f"The overrides of {tensor!r}: option(s) [{', '.join(clash)}] are invalid with 'scale' and"
            " 'zero_point'; leave one or the other out."
        )
    return None


def _convert(tensor: str, entry: Mapping[str, Any], stored: bool, default_type: QuantType) -> str | None:
    convert = entry.get("convert")
    if convert is None:
        return None
    if stored:
        return f"The overrides of {tensor!r}: convert is for activations, and this is an initializer."
    wrong = _entry(tensor, convert, _CONVERT)
    if wrong is not None:
        return wrong
    if "quant_type" not in convert:
        return f"The overrides of {tensor!r}: convert needs a quant_type."
    if "reduce_range" in convert:
        return f"The overrides of {tensor!r}: reduce_range is for initializers; leave it out of convert."
    own = entry.get("quant_type", default_type)
    if convert["quant_type"] == own:
        return f"The overrides of {tensor!r}: convert to {own} does nothing, since the tensor has that type."
    return None


def _channels(
    tensor: str, found: list[dict[str, Any]], initializers: Mapping[str, onnx.TensorProto]
) -> str | None:
    if tensor not in initializers:
        return f"The overrides of {tensor!r}: activations have one scale; leave axis out."
    dims = initializers[tensor].dims
    axis = int(found[0]["axis"])
    if not -len(dims) <= axis < len(dims):
        return f"The overrides of {tensor!r}: axis {axis} does not exist in a tensor of {len(dims)} axes."
    if len(found) not in (1, dims[axis]):
        counts = f"{len(found)} dicts for {dims[axis]} channels"
        return f"The overrides of {tensor!r} have {counts}; give one, or one for each."
    for entry in found:
        if ("rmin" in entry) != ("rmax" in entry):
            return (
                f"The overrides of {tensor!r}: per channel, Must provide both 'rmin' and 'rmax', or neither."
            )
        for key in ("quant_type", "axis", "symmetric", "reduce_range"):
            if key in entry and key in found[0] and entry[key] != found[0][key]:
                return f"The overrides of {tensor!r}: all channels have the same {key}."
        if "convert" in entry:
            return f"The overrides of {tensor!r}: convert is for activations, and this is an initializer."
    return None
