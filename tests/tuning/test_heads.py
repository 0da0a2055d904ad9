"""What is read from outputs: recognised by shapes and values, and compared with float's own answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.tuning.fidelity import Fidelity, judged, outputs_of, tallies
from octavo.tuning.heads import BoxReader, MaskReader, RowReader, TextReader, edit_distance, readers_of

RNG = np.random.default_rng(1)
ROWS, CLASSES = 60, 6
FOUND = ((3, 1, 0.9), (20, 4, 0.7), (41, 1, 0.5))  # row, class, score


def boxes(rows: int = ROWS) -> Any:
    """Centre and size, in pixels."""
    return np.concatenate([RNG.uniform(100, 540, (rows, 2)), RNG.uniform(20, 90, (rows, 2))], axis=1)


def scores() -> Any:
    table = RNG.uniform(0, 0.02, (ROWS, CLASSES))
    for row, kind, score in FOUND:
        table[row, kind] = score
    return table


def yolo_columns() -> dict[str, Any]:
    return {"out": np.concatenate([boxes(), scores()], axis=1).T[None].astype(np.float32)}


def yolo_rows_with_objectness() -> dict[str, Any]:
    table = RNG.uniform(0.1, 0.9, (ROWS, CLASSES))
    objects = np.full((ROWS, 1), 0.001)
    for row, kind, score in FOUND:
        objects[row], table[row] = score, 0.01
        table[row, kind] = 1.0
    return {"out": np.concatenate([boxes(), objects, table], axis=1)[None].astype(np.float32)}


def yolo_final() -> dict[str, Any]:
    corners, rows = boxes(30), np.zeros((30, 2))
    corners[:, 2:] += corners[:, :2]
    for number, (_, kind, score) in enumerate(FOUND):
        rows[number] = score, kind
    return {"out": np.concatenate([corners, rows], axis=1)[None].astype(np.float32)}


def ssd() -> dict[str, Any]:
    table = np.concatenate([np.zeros((ROWS, 1)), scores()], axis=1)
    table[:, 0] = 1 - table.sum(axis=1).clip(0, 1)
    table /= table.sum(axis=1, keepdims=True)
    corners = boxes() / 640
    corners[:, 2:] += corners[:, :2]
    return {"boxes": corners[None].astype(np.float32), "scores": table[None].astype(np.float32)}


def detr() -> dict[str, Any]:
    logits = np.full((ROWS, CLASSES + 1), -4.0)
    logits[:, -1] = 4.0
    for row, kind, score in FOUND:
        logits[row, kind] = 4.0 + np.log(score / (1 - score))
    return {"boxes": (boxes() / 640)[None].astype(np.float32), "logits": logits[None].astype(np.float32)}


HEADS = [yolo_columns, yolo_rows_with_objectness, yolo_final, ssd, detr]


def fidelity(expected: dict[str, Any], found: dict[str, Any]) -> Fidelity:
    outputs = outputs_of([expected])
    return judged(outputs, [tallies(outputs, expected, found)])


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.__name__)
def test_the_boxes_of_a_detector_are_read(head: Any) -> None:
    answers = head()
    (reader,) = readers_of([answers])
    assert isinstance(reader, BoxReader)
    found = reader.read(answers, 0)
    assert sorted(found.classes.tolist()) == sorted(kind for _, kind, _ in FOUND)
    assert sorted(found.scores) == pytest.approx(sorted(score for *_, score in FOUND), abs=0.03)
    assert fidelity(answers, answers).agreement == pytest.approx(1.0)


def test_a_box_that_is_lost_costs_its_score() -> None:
    answers = yolo_columns()
    less = {"out": answers["out"].copy()}
    less["out"][0, 4:, 3] = 0.0
    expected = (0.7 + 0.5) / (0.7 + 0.5 + 0.9 / 2)
    assert fidelity(answers, less).agreement == pytest.approx(expected, abs=0.01)


def test_a_box_that_has_moved_counts_at_the_overlaps_that_it_keeps() -> None:
    answers = {"out": yolo_columns()["out"].astype(np.float64)}
    moved = {"out": answers["out"].copy()}
    for row, *_ in FOUND:
        moved["out"][0, 0, row] += moved["out"][0, 2, row] * 0.2  # overlap 4/5 : 6/5 = 0.67
    assert fidelity(answers, moved).agreement == pytest.approx(4 / 6)  # at 0.5, 0.55, 0.6, 0.65 of six


def test_large_boxes_do_not_hide_ruined_scores() -> None:
    answers = yolo_columns()
    ruined = {"out": answers["out"].copy()}
    ruined["out"][0, 4:] *= 0.05
    found = fidelity(answers, ruined)
    assert found.agreement == 0.0
    assert found.sqnr_db == found.parts["out (scores)"] < 1
    assert found.parts["out (boxes)"] == np.inf


def test_boxes_that_nobody_reads_do_not_count() -> None:
    answers = yolo_columns()
    other = {"out": answers["out"].copy()}
    unread = [i for i in range(ROWS) if i not in [row for row, *_ in FOUND]]
    other["out"][0, :4, unread] += 50
    assert fidelity(answers, other).sqnr_db == np.inf


def test_scores_beside_tables_of_distances_are_read_by_rows() -> None:
    answers = {"scores": scores()[None], "distances": RNG.normal(size=(1, ROWS, 32)) * 3}
    (reader,) = readers_of([answers])
    assert reader == RowReader("scores", ROWS)
    other = {"scores": answers["scores"].copy(), "distances": answers["distances"].copy()}
    other["scores"][0, 20, 4] = 0.35
    other["distances"][0, 5] = 0.0  # a row that is not read
    found = fidelity(answers, other)
    assert found.agreement == pytest.approx((0.9 + 0.35 + 0.5) / (0.9 + 0.7 + 0.5))
    assert found.parts["distances (rows that are read)"] == np.inf


def line(characters: list[int], classes: int = 8) -> Any:
    return np.eye(classes, dtype=np.float32)[characters]


def test_text_is_read_without_repeats_and_blanks() -> None:
    answers = {"p": np.stack([line([0, 1, 1, 0, 1, 2, 0, 0]), line([3, 3, 0, 0, 0, 0, 4, 0])])}
    (reader,) = readers_of([answers])
    assert reader == TextReader("p", blank=0)
    assert [one.tolist() for one in reader.read(answers)] == [[1, 1, 2], [3, 4]]
    shifted = {"p": np.stack([line([1, 1, 0, 1, 1, 2, 2, 0]), line([0, 3, 0, 0, 0, 5, 5, 0])])}
    assert reader.compare(answers, shifted) == (4.0, 5.0)  # steps may move; one character of five is wrong


def test_lines_may_differ_in_length() -> None:
    answers = [{"p": line([0, 1, 1, 0, 1, 2])[None]}, {"p": line([0, 3, 0, 0])[None]}]
    assert readers_of(answers) == (TextReader("p", blank=0),)


def test_classes_of_tokens_are_not_text() -> None:
    answers = {"p": line([0, 1, 1, 0, 0, 2, 0, 0])[None]}
    assert readers_of([answers], {"ids": np.ones((1, 8), np.int64)}) == ()


def test_the_edit_distance_is_that_of_the_definition() -> None:
    def plain(a: list[int], b: list[int]) -> int:
        if not a or not b:
            return len(a) + len(b)
        return min(plain(a[1:], b) + 1, plain(a, b[1:]) + 1, plain(a[1:], b[1:]) + (a[0] != b[0]))

    for _ in range(30):
        a, b = (RNG.integers(0, 3, RNG.integers(0, 6)) for _ in range(2))
        assert edit_distance(a, b) == plain(a.tolist(), b.tolist())


def test_a_mask_is_compared_where_it_is_on() -> None:
    on = np.full((1, 1, 32, 32), 0.01)
    on[..., 4:12, 4:12] = 0.99
    half = np.full((1, 1, 32, 32), 0.01)
    half[..., 4:12, 4:8] = 0.99
    assert readers_of([{"m": on}]) == (MaskReader("m"),)
    assert fidelity({"m": on}, {"m": half}).agreement == pytest.approx(0.5)


def test_the_classes_of_a_segmentation_are_compared_pixel_by_pixel() -> None:
    logits = np.full((1, 5, 24, 24), -1.0)
    logits[:, 1, :, :12], logits[:, 3, :, 12:] = 4.0, 4.0
    other = logits.copy()
    other[:, 4, :, 18:] = 8.0
    assert fidelity({"s": logits}, {"s": other}).agreement == pytest.approx(0.75)
    image = outputs_of([{"s": logits}], {"x": np.zeros((1, 5, 12, 12))})
    assert all(part.classes is None for part in image.parts)


def test_vectors_of_unit_length_are_compared_by_direction() -> None:
    x = np.abs(RNG.normal(size=(4, 32)))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    assert fidelity({"e": x}, {"e": 3 * x}).sqnr_db > 200
    turned = x + 0.01
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    cosine = (x * turned).sum(axis=1)
    assert fidelity({"e": x}, {"e": turned}).sqnr_db == pytest.approx(-10 * np.log10(np.mean(2 - 2 * cosine)))


def test_beside_a_distribution_other_numbers_are_no_classes() -> None:
    answers = {"points": RNG.normal(size=(4, 10)), "p": line([0, 1, 1, 0], 2)}
    classes = {part.label: part.classes for part in outputs_of([answers]).parts}
    assert classes == {"points": None, "p": 1}
