"""Key-value caches in 8 and 4 bits: what the runtime makes of a text, and of the token that follows it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from decoders import HEADS, SIZE, genai_decoder, ids, primitive_decoder

import octavo
from octavo.data.decoder import Decoder
from octavo.errors import RecipeError
from octavo.model.files import io
from octavo.model.runtime.session import Session


def opened(model: object) -> tuple[Session, Decoder]:
    session = Session.open(model)  # type: ignore[arg-type]
    decoder = Decoder.of(session.inputs, session.output_names)
    assert decoder is not None
    return session, decoder


def texts() -> list[dict[str, np.ndarray]]:
    _, decoder = opened(io.load(genai_decoder()))
    return [decoder.feed(ids(24, seed)) for seed in range(6)]


def follow(model: object) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """The logits of a text and of the token behind it, and the cache between them."""
    session, decoder = opened(model)
    first = session.run(decoder.feed(ids(24)))
    past = decoder.past(first)
    return first["logits"], session.run(decoder.feed(ids(1, 9), past))["logits"], past


@pytest.mark.parametrize(("bits", "width", "most"), [(8, SIZE, 0.1), (4, SIZE // 2, 0.5)])
def test_a_narrow_cache_carries_a_text_over_to_the_next_token(bits: int, width: int, most: float) -> None:
    proto = genai_decoder()
    options = {"weights": "int8", "per": "block:32"}
    plain = octavo.quantize(proto, texts(), **options)
    narrow = octavo.quantize(proto, texts(), steps=f"cache:bits={bits}", **options)
    expected, found = follow(plain.model), follow(narrow.model)
    for own, other in zip(found[:2], expected[:2], strict=True):
        assert np.abs(own - other).mean() < most * np.abs(other).mean()
    cache = found[2]["past_key_values.0.key"]
    assert cache.shape == (1, HEADS, 24, width)
    assert cache.nbytes * 32 == expected[2]["past_key_values.0.key"].nbytes * bits


def test_keys_have_a_scale_for_each_channel_of_each_head() -> None:
    result = octavo.quantize(genai_decoder(), texts(), weights="int4", steps="cache")
    assert result.recipe is not None
    assert result.recipe.steps == ("awq", "cache")
    stored = {one.name: one for one in io.to_proto(result.model).graph.initializer}
    assert list(stored["l0/attention_k_scale"].dims) == [HEADS * SIZE]
    session, decoder = opened(io.load(genai_decoder()))
    keys = np.concatenate([session.run(decoder.feed(ids(24, seed)))["present.0.key"] for seed in range(6)])
    largest = np.abs(keys).max(axis=(0, 2)).reshape(-1)
    assert np.allclose(onnx.numpy_helper.to_array(stored["l0/attention_k_scale"]) * 127, largest, rtol=1e-3)


def test_a_model_whose_attention_takes_no_narrow_cache_is_refused() -> None:
    with pytest.raises(RecipeError, match="GroupQueryAttention alone takes caches of 8 bits"):
        octavo.quantize(primitive_decoder(), texts(), weights="int4", steps="cache")
    with pytest.raises(RecipeError, match="8 or 4"):
        octavo.quantize(genai_decoder(), texts(), weights="int4", steps="cache:bits=2")


def test_a_narrow_cache_is_compared_with_a_wide_one_and_its_bytes_are_reported() -> None:
    proto = genai_decoder()
    narrow = octavo.quantize(proto, texts(), weights="int8", per="block:32", steps="cache:bits=4")
    windows = np.concatenate([ids(24, seed) for seed in range(4)])
    found = octavo.evaluate(narrow, windows, "perplexity", against=proto)
    scores = {one.name: one.value for one in found.scores}
    assert 0 < scores["kl"] < 0.1
    measured = octavo.bench(proto, narrow, threads=1, seconds=0.2, profile=False, memory=False).models
    sizes = [one.decoding.cache_bytes for one in measured if one.decoding is not None]
    assert sizes[0] == 8 * sizes[1]
