"""From the dicts of ``TensorQuantOverrides`` to overrides of a recipe, and what may be wrong with them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.plan import GRAPH_OUTPUT
from octavo.core.recipe import Override
from octavo.errors import closest
from octavo.model.graph import query
from octavo.model.prepare.widen import float32_names
from octavo.quantization._errors import OptionError
from octavo.quantization._types import QuantType

Raw = Mapping[str, list[dict[str, Any]]]


class Names:
    """The names in an opened model that options speak of, looked up where one does."""

    def __init__(self, model: ir.Model | None = None) -> None:
        self._model = model
        # Inputs and outputs, and the same tensors in float32.
        self.inner: Mapping[str, str] = float32_names(model) if model is not None else {}

    def _walk(self) -> Iterable[ir.Node]:
        return query.nodes(self._model) if self._model is not None else ()

    @cached_property
    def nodes(self) -> frozenset[str]:
        """Return the names of all nodes."""
        return frozenset(node.name or "" for node in self._walk())

    @cached_property
    def readers(self) -> Mapping[str, set[str]]:
        """Return the names of the nodes that read each tensor."""
        found: dict[str, set[str]] = {}
        for node in self._walk():
            for value in node.inputs:
                if value is not None:
                    found.setdefault(value.name or "", set()).add(node.name or "")
        return found

    @cached_property
    def sigmoids(self) -> tuple[str, ...]:
        """Return what Sigmoid nodes make."""
        return tuple(node.outputs[0].name or "" for node in self._walk() if node.op_type == "Sigmoid")

    @cached_property
    def stored(self) -> frozenset[str]:
        """Return the names of the initializers."""
        return frozenset(self._model.graph.initializers if self._model is not None else ())

    @cached_property
    def outputs(self) -> frozenset[str]:
        """Return the names of the graph's outputs."""
        found = self._model.graph.outputs if self._model is not None else ()
        return frozenset(value.name or "" for value in found)


def overrides(raw: Raw, names: Names) -> tuple[Override, ...]:
    """Return the overrides of all tensors."""
    found: list[Override] = []
    for tensor, dicts in raw.items():
        if not dicts:
            continue
        first = dicts[0]
        if "axis" in first or len(dicts) > 1:
            found.append(_by_channel(tensor, dicts))
            continue
        found.append(_stored(_whole(tensor, first)) if tensor in names.stored else _whole(tensor, first))
        convert = first.get("convert")
        if convert:
            readers = names.readers.get(tensor, set())
            wanted = set(convert.get("recv_nodes") or readers)
            output = [GRAPH_OUTPUT] if tensor in names.outputs and readers <= wanted else []
            found.append(_whole(tensor, convert, (*sorted(wanted), *output)))
    return tuple(found)


def types(raw: Any) -> set[QuantType]:
    """Return the types that overrides name, however wrong the rest of them may be."""
    if not isinstance(raw, Mapping):
        return set()
    dicts = [d for found in raw.values() if isinstance(found, list) for d in found if isinstance(d, dict)]
    dicts += [d["convert"] for d in dicts if isinstance(d.get("convert"), dict)]
    return {QuantType.of(d["quant_type"]) for d in dicts if d.get("quant_type") is not None}


def along_an_axis(raw: Any) -> bool:
    """Return whether a tensor is to have a scale for each channel."""
    return isinstance(raw, Mapping) and any(found and "axis" in found[0] for found in raw.values())


def given_ends(raw: Raw) -> dict[str, tuple[float | None, float | None]]:
    """Return the tensors of which one end of the range is given, and the other measured."""
    found: dict[str, tuple[float | None, float | None]] = {}
    for tensor, dicts in raw.items():
        entry = dicts[0] if dicts else {}
        if len(dicts) == 1 and "axis" not in entry and ("rmin" in entry) != ("rmax" in entry):
            found[tensor] = tuple(_float(entry[k]) if k in entry else None for k in ("rmin", "rmax"))  # type: ignore[assignment]
    return found


def _whole(tensor: str, entry: Mapping[str, Any], readers: tuple[str, ...] | None = None) -> Override:
    both = "rmin" in entry and "rmax" in entry
    return Override(
        tensor,
        **_common(entry),
        range=(_float(entry["rmin"]), _float(entry["rmax"])) if both else None,
        scale=(_float(entry["scale"]),) if "scale" in entry else None,
        zero_point=(_int(entry["zero_point"]),) if "scale" in entry else None,
        consumers=readers,
    )


def _stored(override: Override) -> Override:
    """An initializer that is named has one scale, and is symmetric where its type is by default."""
    open_ = override.symmetric is None and override.scale is None and override.qtype is not None
    symmetric = (
        override.qtype.symmetric_by_default if open_ and override.qtype is not None else override.symmetric
    )
    return replace(override, granularity=PerTensor(), symmetric=symmetric)


def _by_channel(tensor: str, dicts: list[dict[str, Any]]) -> Override:
    scales = [d["scale"] for d in dicts if "scale" in d]
    ranges = [(_float(d["rmin"]), _float(d["rmax"])) for d in dicts if "rmin" in d]
    for kind, given in (("scale and zero_point", scales), ("rmin and rmax", ranges)):
        if given and len(given) != len(dicts):
            raise OptionError(
                f"The overrides of {tensor!r} give {kind} for some channels only; give them for all."
            )
    return Override(
        tensor,
        **_common(dicts[0]),
        granularity=PerChannel(int(dicts[0]["axis"])),
        channel_ranges=tuple(ranges) or None,
        scale=tuple(_float(s) for s in scales) or None,
        zero_point=tuple(_int(d["zero_point"]) for d in dicts) if scales else None,
    )


def _common(entry: Mapping[str, Any]) -> dict[str, Any]:
    kind = entry.get("quant_type")
    return {
        "qtype": QuantType.of(kind).qtype if kind is not None else None,
        "symmetric": entry.get("symmetric"),
        "reduce_range": entry.get("reduce_range"),
    }


def _float(value: Any) -> float:
    """Return a number, however it is wrapped."""
    return float(np.asarray(value).reshape(()))


def _int(value: Any) -> int:
    return int(np.asarray(value).reshape(()))


# ---- What may be wrong, found before anything is done with them

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
