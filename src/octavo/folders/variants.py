"""The variants that a part is published in: their names, their settings, and how close to float they stay.

Names and suffixes are those that transformers.js loads by ``dtype``. A variant is made in the first of its
ways that stays above its floor; where none does it is not written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from octavo.errors import RecipeError, closest
from octavo.tuning.requirements import Drop


@dataclass(frozen=True)
class Floor:
    """How far a variant may be from float; which of the figures counts depends on what the part gives.

    ``kl`` is the mean Kullback-Leibler divergence of next-token (or class) probabilities in nats: where
    float's probabilities are those of the text, log-perplexity rises by that much. ``cosine`` is the mean
    over vectors, ``sqnr_db`` the fidelity of the worst output. ``answer_kl`` is ``kl`` for a text that is
    read off an encoder, such as a transcript: its words are given, where in free text many could follow.

    ``lost`` is what the task may lose where samples have labels: right words of a transcript, right classes.
    ``changed`` is the share of words that may be unlike those that float hears, where there are no labels:
    half of the words that change were wrong before. ``always`` so many may be lost, as of few words or
    samples one says little.
    """

    kl: float
    cosine: float
    sqnr_db: float
    lost: Drop
    changed: float
    always: int = 1
    answer_kl: float = 0.008  # on 16 clips, more than that cost Whisper base 3 points of word error rate


# A perplexity 1 %, 5 %, 50 % and 100 % above float's, if the text were drawn from float's probabilities
# (e**kl); directions within 3, 11, 18 and 26 degrees; noise of 1 %, 18 %, 32 % and 40 % of the signal. These
# are judgements of what can still be used, not limits measured on models: --max-kl and the like replace them.
NEARLY_EXACT = Floor(0.01, 0.999, 40.0, Drop(0.005), 0.02)
EIGHT_BITS = Floor(0.05, 0.98, 15.0, Drop(0.01), 0.04)
FOUR_BITS = Floor(0.4, 0.95, 10.0, Drop(0.02), 0.04)
TWO_BITS = Floor(0.7, 0.9, 8.0, Drop(0.03), 0.06)


@dataclass(frozen=True)
class Variant:
    """One kind of variant."""

    name: str  # as users and transformers.js call it
    suffix: str  # of the file's name
    summary: str
    floor: Floor
    ways: tuple[Mapping[str, Any], ...] = ()  # keywords of octavo.quantize, the first choice first
    needs_data: bool = False  # nothing but ranges from real data will do

    @property
    def is_float(self) -> bool:
        """Whether it is the float model itself."""
        return not self.ways


def _way(**keywords: Any) -> Mapping[str, Any]:
    return MappingProxyType(keywords)


BNB4 = _way(bnb4=True)  # the one way that is not a recipe
_HALF = {"float_type": "fp16:compute"}
# Weights in blocks stand beside tables that Gather reads in int8. GatherBlockQuantized would do that in one
# pass, and transformers.js 4 has no kernel for it in Chromium.
TABLES = "tables"  # not a keyword of octavo.quantize: a first pass, with those of TABLES_WAY
TABLES_WAY = _way(op_types="Gather", weights="int8", activations="dynamic", target="web")
_FOUR = {TABLES: "int8", "weights": "int4", "target": "web"}
_FOUR_WAYS: tuple[dict[str, Any], ...] = (
    {**_FOUR, "symmetric": True},
    {**_FOUR, "symmetric": False},
    {**_FOUR, "symmetric": False, "accuracy_level": 0},
    {**_FOUR, "symmetric": True, "bits": 6},  # sensitive layers in 8 bits; finding them needs data
)
# Integers in blocks keep what one scale for a whole tensor of activations loses.
_BLOCKS = {TABLES: "int8", "per": "block:32", "activations": "none", "target": "web"}
_TWO = {"weights": "int2", "symmetric": False, "per": "block:32"}

FP32 = Variant("fp32", "", "the float model", NEARLY_EXACT)
VARIANTS: Mapping[str, Variant] = MappingProxyType({
    one.name: one
    for one in (
        FP32,
        Variant("fp16", "_fp16", "float16", NEARLY_EXACT, (_way(**_HALF),)),
        Variant(
            "q8", "_quantized", "8 bits, dynamic where that holds, else in blocks", EIGHT_BITS,
            (_way(target="web"), _way(**_BLOCKS, weights="int8", symmetric=True)),
        ),
        Variant(
            "int8", "_int8", "8 bits, int8 weights", EIGHT_BITS,
            (
                _way(target="web", weights="int8", activations="dynamic"),
                _way(**_BLOCKS, weights="int8", symmetric=True),
            ),
        ),
        Variant(
            "uint8", "_uint8", "8 bits, uint8 weights", EIGHT_BITS,
            (
                _way(target="web", weights="uint8", activations="dynamic"),
                _way(**_BLOCKS, weights="uint8", symmetric=False),
            ),
        ),
        Variant(
            "q4", "_q4", "4-bit weights in blocks of 32", FOUR_BITS, tuple(_way(**w) for w in _FOUR_WAYS)
        ),
        Variant(
            "q4f16", "_q4f16", "4-bit weights, the rest float16", FOUR_BITS,
            tuple(_way(**w, **_HALF) for w in _FOUR_WAYS),
        ),
        Variant("bnb4", "_bnb4", "4-bit weights (NF4) in blocks of 64", FOUR_BITS, (BNB4,)),
        Variant(
            "static", "_static", "calibrated 8 bits", EIGHT_BITS, (_way(recipe="W8A8"),), needs_data=True
        ),
        Variant("q2", "_q2", "2-bit weights in blocks of 32", TWO_BITS, (_way(**_TWO),)),
        Variant("q2f16", "_q2f16", "2-bit weights, the rest float16", TWO_BITS, (_way(**_TWO, **_HALF),)),
    )
})  # fmt: skip
PRESETS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "web": ("fp32", "fp16", "q8", "int8", "uint8", "q4", "q4f16", "bnb4"),
    "all": tuple(VARIANTS),
})  # fmt: skip
AUTO = "auto"  # the smallest variant that holds and is not slower than float, under the part's own name
SUFFIXES = tuple(one.suffix for one in VARIANTS.values())


def chosen_variants(given: str | Sequence[str]) -> tuple[Variant, ...]:
    """Return the variants of a preset or of a list of names."""
    names = [part.strip() for part in given.split(",")] if isinstance(given, str) else list(given)
    listed = [name for one in names if one for name in PRESETS.get(one, (one,))]
    if not listed:
        raise RecipeError(f"No variant is named; write web, all, auto or some of {', '.join(VARIANTS)}.")
    for name in listed:
        if name not in VARIANTS:
            known = (*PRESETS, AUTO, *VARIANTS)
            raise RecipeError(
                f"There is no variant {name!r}{closest(name, known) or '.'} Known: {', '.join(known)}."
            )
    return tuple(VARIANTS[name] for name in dict.fromkeys(listed))
