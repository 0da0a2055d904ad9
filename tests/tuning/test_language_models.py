"""The automatic choice of language models: what is tried, how it is judged, what an objective chooses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from decoders import VOCABULARY, genai_decoder, ids, primitive_decoder

import octavo
from octavo.data.decoder import filled
from octavo.errors import RecipeError
from octavo.evaluation.timing.latency import Ratio
from octavo.model.files import io
from octavo.model.runtime.session import Session
from octavo.tuning import runner
from octavo.tuning.candidates import Candidate
from octavo.tuning.choice import pick
from octavo.tuning.deadline import Limit
from octavo.tuning.language import LanguageModel, Pace, Predictions, TokenSpeeds
from octavo.tuning.objective import Objective
from octavo.tuning.requirements import Requirements
from octavo.tuning.trial import Trial
from tuning.nets import conv_and_linear, samples


def opened(model: Any) -> Session:
    return Session.open(io.load(model))


def feeds(model: Any, count: int = 8) -> list[dict[str, np.ndarray]]:
    specs = opened(model).inputs
    return [filled(ids(24, seed), specs) for seed in range(count)]


def measured(
    name: str, prefill: float, decode: float | None, kl: float, size: int, perplexity: float = 20.0
) -> Trial:
    """A trial with these figures; float has a perplexity of 20."""
    paces = [None if one is None else Pace(one * 10, Ratio(one, one, one)) for one in (prefill, decode)]
    assert paces[0] is not None
    return Trial(
        Candidate(name, octavo.W8, ""),
        sqnr_db=15.0,
        bytes=size,
        size=size / 1000,
        predictions=Predictions(kl, perplexity, 20.0),
        tokens=TokenSpeeds(paces[0], paces[1]),
    )


def chosen(objective: Objective, *trials: Trial) -> str:
    def speed(one: Trial) -> Trial:
        tokens = one.tokens
        assert tokens is not None
        decode = tokens.decode.ratio if tokens.decode else None
        return replace(one, speed=objective.speed(tokens.prefill.ratio, decode))

    best, met, _ = pick([speed(one) for one in trials], Requirements(optimize=objective))
    assert met
    return best.name


INT8 = measured("int8", 2.35, 2.34, 0.032, 253)
FOUR = measured("4 bits", 1.16, 2.85, 0.169, 155)
TABLES = measured("tables too", 1.16, 2.75, 0.19, 132)


@pytest.mark.parametrize(
    ("objective", "best"),
    [("decode", "4 bits"), ("prefill", "int8"), ("size", "tables too"), ("balanced", "int8")],
)
def test_the_objective_decides_between_int8_and_4_bits(objective: str, best: str) -> None:
    assert chosen(Objective(objective), INT8, FOUR, TABLES) == best


def test_a_trial_whose_predictions_are_far_from_float_is_not_chosen_for_its_speed() -> None:
    assert chosen(Objective.DECODE, INT8, measured("wild", 9.0, 9.0, 0.6, 50)) == "int8"


def test_a_perplexity_that_rises_more_than_the_divergence_counts() -> None:
    assert Predictions(0.1, 30.0, 20.0).lost == pytest.approx(np.log(1.5))
    assert Predictions(0.1, 19.0, 20.0).lost == pytest.approx(0.1)


@pytest.mark.parametrize("make", [primitive_decoder, genai_decoder])
def test_a_decoder_is_recognised_with_its_cache(make: Any) -> None:
    session = opened(make())
    found = LanguageModel.of(session, feeds(make())[0])
    assert found is not None
    assert found.ids == "input_ids"
    assert found.decoder is not None


def test_a_model_of_images_is_no_language_model() -> None:
    assert LanguageModel.of(opened(conv_and_linear()), samples(1)[0]) is None


def test_divergence_and_perplexity_are_those_of_an_independent_computation() -> None:
    model = primitive_decoder()
    language = LanguageModel.of(opened(model), feeds(model)[0])
    assert language is not None
    random = np.random.default_rng(0)
    p, q = (random.standard_normal((1, 24, VOCABULARY)) for _ in range(2))
    sample = feeds(model)[0]
    found = Predictions.of(language.compare({"logits": p}, {"logits": q}, sample))
    log_p, log_q = (z - np.log(np.exp(z).sum(-1, keepdims=True)) for z in (p, q))
    assert found.kl == pytest.approx((np.exp(log_p) * (log_p - log_q)).sum(-1).mean())
    following = sample["input_ids"][0, 1:]
    assert found.perplexity == pytest.approx(np.exp(-log_q[0, np.arange(23), following].mean()))
    assert found.float_perplexity == pytest.approx(np.exp(-log_p[0, np.arange(23), following].mean()))
    assert found.judged == 24


def test_padding_is_not_judged() -> None:
    model = primitive_decoder()
    sample = feeds(model)[0]
    language = LanguageModel.of(opened(model), sample)
    assert language is not None
    sample["attention_mask"] = np.where(np.arange(24) < 20, 1, 0)[None].astype(np.int64)
    logits = np.zeros((1, 24, VOCABULARY))
    sums = language.compare({"logits": logits}, {"logits": logits}, sample)
    assert (sums.positions, sums.followed) == (20, 19)


@pytest.fixture
def _fixed_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    def fixed(_: Any, __: Any, models: Any, *rest: Any, **more: Any) -> list[TokenSpeeds]:
        pace = Pace(10.0, Ratio(1.5, 1.5, 1.5))
        return [TokenSpeeds(pace, pace)] * len(models)

    monkeypatch.setattr(runner, "token_speeds", fixed)


@pytest.mark.usefixtures("_fixed_speeds")
def test_int8_and_4_bits_are_tried_and_the_result_runs(tmp_path: Any) -> None:
    model = primitive_decoder(tied=True)
    data = feeds(model)
    result = octavo.quantize(
        model, data, output=tmp_path / "out.onnx", optimize="size", threads=1, engine="serial"
    )
    assert result.choice is not None
    names = [trial.name for trial in result.choice.trials]
    assert names[:2] == ["dynamic", "4 bits, tables too"]
    assert {"4 bits", "4 bits, symmetric", "4 bits, level 0"} <= set(names)
    assert [trial.error for trial in result.choice.trials] == [None] * len(names)
    assert all(trial.predictions is not None for trial in result.choice.trials)
    table = str(result.choice)
    assert "perplexity" in table
    assert "written tokens/s" in table
    assert "tokens that calibration has not seen; give more text" in table
    assert "equal classes" not in table
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    assert session.run(["logits"], data[0])[0].shape == (1, 24, VOCABULARY)


@pytest.mark.usefixtures("_fixed_speeds")
def test_4_bits_are_tried_after_8_that_meet_the_requirements() -> None:
    model = primitive_decoder()
    found = octavo.quantize(
        model,
        feeds(model),
        time_limit=Limit(1e6, counts_waiting=False, once_kept=0.0),
        threads=1,
        engine="serial",
    )
    assert found.choice is not None
    assert {trial.name: trial.error for trial in found.choice.trials}["4 bits"] is None


def test_prompts_and_tokens_are_timed_with_a_cache() -> None:
    model = primitive_decoder()
    tuned = octavo.tune(
        model,
        feeds(model),
        effort="standard",
        seconds=0.05,
        threads=1,
        engine="serial",
        requirements=octavo.Requirements(min_speed=0.0, optimize=Objective.DECODE),
    )
    timed = [trial for trial in tuned.trials if trial.tokens is not None]
    assert timed
    for trial in timed:
        assert trial.tokens is not None and trial.tokens.decode is not None
        assert trial.speed == trial.tokens.decode.ratio
        assert trial.tokens.prefill.tokens_per_second > 0


def test_decode_is_refused_for_a_model_that_writes_no_tokens() -> None:
    with pytest.raises(RecipeError, match="is about language models"):
        octavo.quantize(conv_and_linear(), samples(8), optimize="decode", engine="serial")


def test_an_objective_is_refused_where_one_way_is_taken() -> None:
    with pytest.raises(RecipeError, match="optimize says which of several ways"):
        octavo.quantize(conv_and_linear(), optimize="size")


def test_an_unknown_objective_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(RecipeError, match="balanced, decode, prefill, size"):
        octavo.quantize(conv_and_linear(), samples(8), optimize="speed", engine="serial")
