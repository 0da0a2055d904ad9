"""What is held back of the data: a quarter, spread evenly, and never seen by calibration."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from builders import model, node, tensor

from octavo.model.files import io
from octavo.tuning.split import HELD_BACK, Split


def identity() -> ir.Model:
    return io.load(model([node("Relu", ["x"], ["y"], "r")], [tensor("x", [1])], [tensor("y", [1])], {}))


def numbers(samples: object) -> list[int]:
    return [int(sample["x"][0]) for sample in samples]  # type: ignore[attr-defined]


def numbered(count: int) -> list[dict[str, np.ndarray]]:
    return [{"x": np.full(1, number, np.float32)} for number in range(count)]


@pytest.mark.parametrize("count", [2, 3, 4, 7, 16, 40, 300])
def test_what_is_held_back_is_a_quarter_and_the_rest_is_calibrated_with(count: int) -> None:
    split = Split.of(numbered(count), identity(), None)
    assert split.calibration is not None
    held, rest = numbers(split.held), numbers(split.calibration)
    assert len(held) == split.unseen == max(1, min(HELD_BACK, count // 4))
    assert sorted([*held, *rest]) == list(range(count))
    assert len(split.calibration) == len(rest)
    assert numbers(split.calibration) == rest == sorted(rest)


@pytest.mark.parametrize("count", [8, 64, 301])
def test_data_in_an_order_gives_each_part_every_kind(count: int) -> None:
    split = Split.of(numbered(count), identity(), None)
    apart = np.diff([-1, *numbers(split.held), count])
    assert apart.max() <= 1.5 * count / len(split.held)


def test_one_sample_is_calibrated_and_judged_with() -> None:
    split = Split.of(numbered(1), identity(), None)
    assert split.calibration is not None
    assert numbers(split.held) == numbers(split.calibration) == [0]
    assert split.unseen == 0


def test_data_without_a_length_is_split_as_well() -> None:
    split = Split.of(iter(numbered(8)), identity(), None)
    assert split.calibration is not None
    assert numbers(split.held) == [2, 6]
    assert numbers(split.calibration) == [0, 1, 3, 4, 5, 7]
