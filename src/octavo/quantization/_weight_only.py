"""From stock's weight-only settings to Octavo's request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from octavo.algorithms import Algorithm, BlockScheme, Default, Gptq, Hqq, KQuant, Rtn
from octavo.emission.block_weights import GROUPED
from octavo.errors import DataError, RecipeError, closest
from octavo.weight_only import Selection, WeightOnly

_KEYS = ("bits", "group_size", "scheme")
_SCHEMES = {"sym": True, "asym": False}


def algorithm_of(name: str, settings: Any = None) -> Algorithm:
    """The algorithm of a stock name; ``settings`` is its config."""
    match name.lower():
        case "default":
            return Default()
        case "rtn":
            return Rtn()
        case "k_quant":
            return KQuant()
        case "hqq":
            return Hqq()
        case "gptq":
            return Gptq(
                damping=settings.percdamp,
                lazy=settings.block_size,
                by_activation=settings.actorder,
                search=settings.mse,
                per_row=settings.perchannel,
            )
    known = ("DEFAULT", "RTN", "k_quant", "HQQ", "GPTQ")
    raise RecipeError(
        f"There is no weight-only algorithm {name!r}{closest(name, known) or '.'} Known: {', '.join(known)}."
    )


def is_symmetric(scheme: str) -> bool:
    """Whether a scheme, ``sym`` or ``asym``, is symmetric."""
    if scheme not in _SCHEMES:
        raise RecipeError(f"{scheme!r} is no scheme of weights; write sym or asym.")
    return _SCHEMES[scheme]


def special(config: Mapping[str, Any] | None, base: BlockScheme) -> dict[str, BlockScheme | None]:
    """Settings by node: ``{"bits", "group_size", "scheme"}``, what is absent from the base; or ``"fp32"``."""
    return {name: _one(name, entry, base) for name, entry in (config or {}).items()}


def _one(name: str, entry: Any, base: BlockScheme) -> BlockScheme | None:
    if entry == "fp32":
        return None
    if not isinstance(entry, Mapping):
        raise RecipeError(f"The settings of node {name!r} are a dict of {', '.join(_KEYS)}, or 'fp32'.")
    for key in entry:
        if key not in _KEYS:
            raise RecipeError(
                f"The settings of node {name!r} have {key!r}{closest(str(key), _KEYS) or '.'}"
                f" Known: {', '.join(_KEYS)}."
            )
    return BlockScheme(
        int(entry.get("bits", base.bits)),
        int(entry.get("group_size", base.size)),
        is_symmetric(entry["scheme"]) if "scheme" in entry else base.symmetric,
        base.whole_zero,
    )


def grouped(
    algorithm: Algorithm,
    scheme: BlockScheme,
    config: Mapping[str, Any] | None,
    accuracy_level: int | None,
    providers: Iterable[str] | None = None,
    ratios: Mapping[str, float] | None = None,
    samples: int = 128,
) -> WeightOnly:
    """A request as ``rtn_quantize`` and ``gptq_quantize`` describe it."""
    return WeightOnly(
        algorithm=algorithm,
        scheme=scheme,
        selection=Selection(),
        accuracy_level=accuracy_level,
        special=special(config, scheme),
        ratios=dict(ratios or {}),
        called=GROUPED,
        samples=samples,
        providers=tuple(providers) if providers else None,
    )


class Loader:
    """Samples of a reader or of a loader that also gives labels, as ``{input name: array}``."""

    def __init__(self, loader: Any, inputs: list[str]) -> None:
        self._loader, self._inputs = loader, inputs

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        if self._loader is None:
            raise DataError(
                "GPTQ needs calibration data: pass a reader with get_next(), or a list of samples."
            )
        reads = getattr(self._loader, "get_next", None)
        for item in iter(reads, None) if callable(reads) else self._loader:
            yield self._sample(item)

    def _sample(self, item: Any) -> Mapping[str, Any]:
        if isinstance(item, tuple) and len(item) == 2:
            item = item[0]
        if isinstance(item, Mapping):
            return item
        if isinstance(item, np.ndarray) or np.isscalar(item):
            item = [item]
        return dict(zip(self._inputs, item, strict=False))
