"""Feeds of language models with a cache: a text in one run, and in two with the cache between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from decoders import HEADS, LAYERS, SHAPES, SIZE, ids

from octavo.data.decoder import Decoder, filled
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.runtime.session import InputSpec, Session


@pytest.mark.parametrize("shape", SHAPES)
def test_a_prefix_and_its_cache_give_the_logits_of_the_whole_text(shape: str) -> None:
    session = Session.open(io.load(SHAPES[shape]()))
    decoder = Decoder.of(session.inputs, session.output_names)
    assert decoder is not None
    text = ids()
    whole = session.run(decoder.feed(text))[decoder.logits]
    past = decoder.past(session.run(decoder.feed(text[:, :15])))
    assert {array.shape for array in past.values()} == {(1, HEADS, 15, SIZE)}
    assert len(past) == 2 * LAYERS
    rest = session.run(decoder.feed(text[:, 15:], past))[decoder.logits]
    np.testing.assert_allclose(rest, whole[:, 15:], rtol=1e-4, atol=1e-4)


def spec(name: str, kind: Any, *shape: int | str) -> InputSpec:
    return InputSpec(name, np.dtype(kind), shape)


def test_a_merged_decoder_is_told_whether_there_is_a_cache() -> None:
    specs = [
        spec("input_ids", np.int64, "b", "s"),
        spec("use_cache_branch", np.bool_, 1),
        spec("past_key_values.0.key", np.float32, "b", 2, "p", 4),
    ]
    assert filled(ids(3), specs)["use_cache_branch"].tolist() == [False]
    past = {"past_key_values.0.key": np.zeros((1, 2, 5, 4), np.float32)}
    assert filled(ids(3), specs, past)["use_cache_branch"].tolist() == [True]


def test_models_without_a_cache_or_with_other_inputs_are_no_decoders() -> None:
    past = spec("past_key_values.0.key", np.float32, "b", 2, "p", 4)
    tokens = spec("input_ids", np.int64, "b", "s")
    assert Decoder.of([tokens], ["logits"]) is None
    assert Decoder.of([tokens, past], ["scores", "present.0.key"]) is None
    assert Decoder.of([tokens, past], ["logits"]) is None
    pixels = spec("pixel_values", np.float32, "b", 3, 8, 8)
    assert Decoder.of([tokens, past, pixels], ["logits", "present.0.key"]) is None
    with pytest.raises(ModelError, match="pixel_values"):
        filled(ids(3), [tokens, pixels])
    named = Decoder.of([tokens, past], ["logits", "present_key_values.0.key"])
    assert named is not None
    assert named.presents == {"past_key_values.0.key": "present_key_values.0.key"}


def test_the_tiny_decoders_are_valid() -> None:
    onnx.checker.check_model(SHAPES["primitives"]())
