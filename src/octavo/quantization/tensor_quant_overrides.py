"""``TensorQuantOverrides``: settings for single tensors, in stock's form, and what they mean here."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import onnx

from octavo.quantization import _overrides
from octavo.quantization._names import elsewhere
from octavo.quantization._types import QuantType

Raw = dict[str, list[dict[str, Any]]]

_INFO = ("quant_type", "symmetric", "reduce_range", "axis")


@dataclass
class QuantTypeInfo:
    """The type of a tensor as one of its ends sees it."""

    quant_type: QuantType
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None

    def __eq__(self, other: object) -> bool:
        """Settings that either leaves open do not tell two apart."""
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        return (
            self.quant_type == other.quant_type
            and (None in (self.symmetric, other.symmetric) or self.symmetric == other.symmetric)
            and (None in (self.reduce_range, other.reduce_range) or self.reduce_range == other.reduce_range)
            and self.axis == other.axis
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def load_from_dict(
        raw_dict: dict[str, Any],
        default_qtype: QuantType | None = None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return what an entry of the overrides says, over defaults."""
        return QuantTypeInfo(
            raw_dict.get("quant_type", default_qtype),  # type: ignore[arg-type]
            raw_dict.get("symmetric", default_symmetric),
            raw_dict.get("reduce_range", default_reduce_range),
            raw_dict.get("axis"),
        )

    def save_to_dict(self, raw_dict: dict[str, Any]) -> None:
        """Write what is known into an entry of the overrides."""
        raw_dict.update({key: value for key in _INFO if (value := getattr(self, key)) is not None})


class TensorQuantOverridesHelper(MutableMapping[str, list[dict[str, Any]]]):
    """The overrides with the questions that one asks them."""

    def __init__(self, raw_overrides: Raw) -> None:
        self.overrides: Raw = raw_overrides
        self.quant_types: set[QuantType] | None = None

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        """Whether a tensor has one dict for all of it."""
        found = self.overrides.get(tensor_name) or []
        return len(found) == 1 and "axis" not in found[0]

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        """Whether a tensor has settings along an axis."""
        found = self.overrides.get(tensor_name) or []
        return len(found) > 1 or (len(found) == 1 and "axis" in found[0])

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        """Whether scales and zero points are given."""
        found = self.overrides.get(tensor_name) or []
        return bool(found) and all("scale" in d and "zero_point" in d for d in found)

    def get_per_tensor_overrides(
        self, tensor_name: str, default_val: dict[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Return the dict of a tensor; settings along an axis are an error here."""
        found = self.overrides.get(tensor_name)
        if not found:
            return default_val
        if self.has_per_channel_overrides(tensor_name):
            raise ValueError(
                f"The overrides of {tensor_name!r} are per channel, and those per tensor were requested."
            )
        return found[0]

    def get_per_channel_overrides(
        self, tensor_name: str, default_val: list[dict[str, Any]] | None = None
    ) -> list[dict[str, Any]] | None:
        """Return the dicts of a tensor along its axis; one for the whole tensor is an error here."""
        found = self.overrides.get(tensor_name)
        if not found:
            return default_val
        if not self.has_per_channel_overrides(tensor_name):
            raise ValueError(
                f"The overrides of {tensor_name!r} are per tensor, and those per channel were requested."
            )
        return found

    def get_quant_types(self) -> set[QuantType]:
        """Return all types that are named, also those of conversions."""
        if self.quant_types is None:
            self.quant_types = _overrides.types(self.overrides)
        return self.quant_types

    def is_valid(
        self,
        initializers: Mapping[str, onnx.TensorProto],
        activation_names: Collection[str],
        default_activation_qtype: QuantType,
    ) -> tuple[bool, str | None]:
        """Whether all of it makes sense for a model, and what does not."""
        for tensor, found in self.overrides.items():
            wrong = _overrides.problem(
                tensor, found, initializers, activation_names, default_activation_qtype
            )
            if wrong is not None:
                return False, wrong
        return True, None

    def update_tensor_overrides(
        self,
        tensor_name: str,
        new_vals: dict[str, Any],
        channels: list[int] | None = None,
        overwrite: bool = True,
    ) -> bool:
        """Change the settings of a tensor, or of some of its channels, as a whole or not at all.

        Return whether it was done: not where ``overwrite`` is off and one of the keys has a value.
        """
        entries = self.overrides.get(tensor_name) or [{}]
        meant = [entry for i, entry in enumerate(entries) if channels is None or i in channels]
        if not new_vals or (not overwrite and any(new_vals.keys() & entry.keys() for entry in meant)):
            return False
        for entry in meant:
            entry.update(new_vals)
        self[tensor_name] = entries
        return True

    def get_node_output_qtype_info(
        self, output_name: str, default_qtype: QuantType | None, default_symmetric: bool | None = None
    ) -> QuantTypeInfo:
        """Return the type that the node which makes a tensor gives it."""
        found = self.overrides.get(output_name)
        return QuantTypeInfo.load_from_dict(found[0] if found else {}, default_qtype, default_symmetric)

    def get_node_input_qtype_info(
        self,
        input_name: str,
        node_name: str,
        default_qtype: QuantType | None,
        default_symmetric: bool | None = None,
        default_reduce_range: bool | None = None,
    ) -> QuantTypeInfo:
        """Return the type in which a node reads a tensor: that of a conversion where one is meant for it."""
        found = self.overrides.get(input_name)
        entry = found[0] if found else {}
        convert = entry.get("convert")
        if convert and ("recv_nodes" not in convert or node_name in convert["recv_nodes"]):
            entry = convert
        return QuantTypeInfo.load_from_dict(entry, default_qtype, default_symmetric, default_reduce_range)

    def pprint_str(self, indent: int | None = None) -> str:
        """Return the overrides as text."""
        return json.dumps(self.overrides, default=_plain, indent=indent)

    def empty(self) -> bool:
        """Whether nothing is overridden."""
        return not self.overrides

    def get_dict(self) -> Raw:
        """Return the overrides themselves."""
        return self.overrides

    def __setitem__(self, key: str, value: list[dict[str, Any]]) -> None:
        self.overrides[key] = value
        self.quant_types = None

    def __getitem__(self, key: str) -> list[dict[str, Any]]:
        return self.overrides[key]

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]
        self.quant_types = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __str__(self) -> str:
        return str(self.overrides)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.overrides!r})"


def _plain(value: Any) -> Any:
    """Return what JSON holds instead of types, sets and numbers of numpy."""
    if isinstance(value, QuantType):
        return str(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    return value.tolist() if hasattr(value, "tolist") else str(value)


__all__ = ["QuantTypeInfo", "TensorQuantOverridesHelper"]

__getattr__ = elsewhere(__name__)
