"""From the dicts of ``TensorQuantOverrides`` to overrides of a recipe."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.plan import GRAPH_OUTPUT
from octavo.core.recipe import Override
from octavo.quantization._errors import OptionError
from octavo.quantization._types import QuantType

Raw = Mapping[str, list[dict[str, Any]]]


class Tensors(Protocol):
    """What has to be known of a model's tensors: who reads them, initializers, and outputs of the graph."""

    @property
    def readers(self) -> Mapping[str, Iterable[str]]: ...
    @property
    def stored(self) -> Container[str]: ...
    @property
    def outputs(self) -> Container[str]: ...


def overrides(raw: Raw, names: Tensors) -> tuple[Override, ...]:
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
            readers = set(names.readers.get(tensor, ()))
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
