"""How close answers are: worst output, scores beside boxes, classes that say nothing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from octavo.tuning.fidelity import Answers, Fidelity, judged, outputs_of, tallies

RNG = np.random.default_rng(0)


def fidelity(expected: list[Answers], found: list[Answers]) -> Fidelity:
    parts = outputs_of(expected)
    return judged(parts, [tallies(parts, x, y) for x, y in zip(expected, found, strict=True)])


def noisy(array: Any, scale: float) -> Any:
    return (array + RNG.normal(scale=scale, size=array.shape)).astype(np.float32)


def test_the_figure_is_that_of_the_definition() -> None:
    x, y = np.array([[3.0, 4.0, 0.0]]), np.array([[3.0, 4.0, 0.5]])
    found = fidelity([{"y": x}], [{"y": y}])
    assert found.sqnr_db == pytest.approx(10 * math.log10(25 / 0.25))
    assert found.agreement == 1.0


def test_the_worst_output_counts_however_small_its_numbers() -> None:
    boxes, scores = RNG.uniform(0, 640, (1, 50)), RNG.uniform(0, 1, (1, 50))
    found = fidelity([{"boxes": boxes, "scores": scores}], [{"boxes": boxes + 0.1, "scores": scores * 0.0}])
    assert found.sqnr_db == pytest.approx(0.0)
    assert found.parts["boxes"] > 60


@pytest.mark.parametrize("axis", [1, 2])
def test_scores_beside_boxes_in_one_output_are_judged_by_themselves(axis: int) -> None:
    whole = np.concatenate([RNG.uniform(0, 640, (1, 4, 30)), RNG.uniform(0, 1, (1, 8, 30))], axis=1)
    ruined = whole.copy()
    ruined[:, 4:] = 0.0
    turn = (lambda a: a) if axis == 1 else (lambda a: a.transpose(0, 2, 1))
    found = fidelity([{"out": turn(whole)}], [{"out": turn(ruined)}])
    assert found.parts["out (boxes)"] == math.inf
    assert found.sqnr_db == found.parts["out (scores)"] == pytest.approx(0.0)


def test_a_column_of_zeros_is_padding_and_no_score() -> None:
    features = RNG.normal(0, 5, (1, 8, 30))
    features[:, :, -1] = 0.0
    assert list(fidelity([{"out": features}], [{"out": features + 0.1}]).parts) == ["out"]


def test_the_blank_of_a_text_reader_does_not_count_as_agreement() -> None:
    blank, letter, other = np.eye(3, dtype=np.float32)
    read = np.stack([blank] * 8 + [letter, letter])[None]
    wrong = np.stack([blank] * 8 + [letter, other])[None]
    found = fidelity([{"p": read}], [{"p": wrong}])
    assert found.agreement == 0.5


def test_embeddings_of_unit_length_have_no_best_class() -> None:
    x = RNG.normal(size=(4, 16))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert fidelity([{"e": x}], [{"e": noisy(x, 0.01)}]).agreement is None


def test_an_answer_that_is_no_number_is_worthless() -> None:
    x = RNG.normal(size=(1, 4))
    assert fidelity([{"y": x}], [{"y": np.full((1, 4), np.nan)}]).sqnr_db == -math.inf


def test_an_answer_of_another_shape_is_worthless() -> None:
    assert fidelity([{"y": np.ones((1, 4))}], [{"y": np.ones((2, 4))}]).sqnr_db == -math.inf


def test_integers_beside_floats_are_not_judged() -> None:
    x = np.ones((1, 4), np.float32)
    assert fidelity([{"n": np.array([1]), "x": x}], [{"n": np.array([2]), "x": x}]).sqnr_db == math.inf


def test_integers_alone_are_labels() -> None:
    labels = np.arange(200).reshape(1, 200) % 7
    wrong = labels.copy()
    wrong[0, :2] += 1
    found = fidelity([{"n": labels}], [{"n": wrong}])
    assert found.agreement == 0.99
    assert found.sqnr_db == pytest.approx(10 * math.log10(200 / 4))


def test_the_label_nearly_everywhere_does_not_count_as_agreement() -> None:
    mask = np.zeros((1, 10, 10), np.int64)
    mask[0, :2, :5] = 1
    missed = np.zeros_like(mask)
    assert fidelity([{"mask": mask}], [{"mask": missed}]).agreement == 0.0


def test_padding_does_not_count_where_a_mask_names_it() -> None:
    x = RNG.normal(size=(2, 5, 8))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    y = np.where(mask[..., None] == 1, x + 0.01, -x)
    parts = outputs_of([{"y": x}])

    def of(name: str, values: Any) -> float:
        return judged(parts, [tallies(parts, {"y": x}, {"y": y}, {"ids": mask, name: values})]).sqnr_db

    kept = x[mask == 1]
    expected = 10 * math.log10(np.sum(kept**2) / (1e-4 * kept.size))
    assert of("attention_mask", mask) == of("mask", mask.astype(bool)) == pytest.approx(expected)
    for name in ("types", "padding_mask", "global_attention_mask"):
        assert of(name, mask) < 10
    for values in (mask * 2, mask[:1], mask * 0, np.array([[1, 0, 1, 0, 0], [1, 1, 1, 1, 1]])):
        assert of("mask", values) < 10


def test_the_best_class_is_compared_where_there_is_no_padding() -> None:
    x = np.zeros((1, 4, 9000))
    x[0, np.arange(4), [1, 2, 3, 4]] = 1.0
    y = x.copy()
    y[0, 3] = y[0, 2]
    parts = outputs_of([{"y": x}])
    found = judged(parts, [tallies(parts, {"y": x}, {"y": y}, {"mask": np.array([[1, 1, 1, 0]])})])
    assert (found.agreement, found.places) == (1.0, 3)
