"""Statistics do not depend on who made them: any engine, number of workers, order of arrival, lost worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from quantizing import convolutions

import octavo
from calibration.engines.jobs import Killing, Shuffled
from octavo.calibration.engines.processes import Processes
from octavo.core.stats import Stats
from octavo.data import shards
from octavo.errors import DataError
from octavo.model.files import io
from octavo.model.runtime.session import Session

ARRAY = np.random.default_rng(0).normal(size=(30, 8, 8, 8)).astype(np.float32)
SAMPLES = [{"x": sample[None]} for sample in ARRAY]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(convolutions(2), str(tmp_path / "m.onnx"))
    np.save(tmp_path / "data.npy", ARRAY)
    return tmp_path


def made(folder: Path, data: Any = None, **options: Any) -> Stats:
    path = folder / "m.onnx"
    source = folder / "data.npy" if data is None else data
    return octavo.calibrate(path, octavo.plan(path), source, every_method=True, **options)


@pytest.mark.parametrize("workers", [2, 7])
def test_workers_give_the_same_bits_though_one_is_killed(workers: int, folder: Path) -> None:
    stats = made(folder, engine=Killing(Processes(workers), folder / "mark"))
    assert (folder / "mark").exists()
    assert stats.samples == 30
    assert stats.to_bytes() == made(folder, engine="serial").to_bytes()


@pytest.mark.parametrize("seed", [0, 1])
def test_the_order_of_arrival_changes_nothing(seed: int, folder: Path) -> None:
    assert made(folder, engine=Shuffled(seed)).to_bytes() == made(folder, engine="serial").to_bytes()


def test_samples_that_only_this_process_can_read_are_sent_to_the_workers(folder: Path) -> None:
    stats = made(folder, iter(SAMPLES), engine=Processes(1))
    assert stats.to_bytes() == made(folder, SAMPLES, engine="serial").to_bytes()


def test_the_fingerprint_of_the_data_depends_on_samples_and_their_places(folder: Path) -> None:
    def mark(samples: list[dict[str, np.ndarray]]) -> str:
        origin = made(folder, samples, engine="serial").origin
        assert origin is not None
        return origin.fingerprint

    assert mark(SAMPLES) == mark(list(SAMPLES))
    assert len({mark(SAMPLES[:4]), mark(SAMPLES[1:5]), mark(SAMPLES[3::-1])}) == 3


def test_quantize_gives_the_same_model_by_other_processes(folder: Path) -> None:
    results = [
        octavo.quantize(
            folder / "m.onnx", folder / "data.npy", engine=engine, workers=workers, effort="plain"
        )
        for engine, workers in (("serial", None), ("processes", 1))
    ]
    assert io.fingerprint(results[0].model) == io.fingerprint(results[1].model)
    assert results[0].data_fingerprint == results[1].data_fingerprint


def test_data_that_can_be_opened_anywhere_is_not_read_here(folder: Path) -> None:
    specs = Session.open(folder / "m.onnx").inputs

    def travels(data: Any) -> bool:
        return shards.can_be_sent(shards.Feeds(data, specs))

    assert travels(folder / "data.npy")
    assert travels(SAMPLES)
    assert not travels(iter(SAMPLES))


def test_no_sample_at_all_is_an_error(folder: Path) -> None:
    with pytest.raises(DataError, match="sample"):
        made(folder, [], engine=Shuffled(0))
