"""Statistics in files: what they refuse, how they merge, and how a run that was killed goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from quantizing import convolutions

import octavo
from octavo.calibration import saved
from octavo.core.origin import joined, missing, overlap
from octavo.core.stats import Stats
from octavo.errors import DataError, OutputError, RecipeError, TableError
from octavo.model.files import io

ARRAY = np.random.default_rng(0).normal(size=(24, 8, 8, 8)).astype(np.float32)
ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[3] / "shared" / "zoo")
MOBILENET = ZOO / "models" / "mobilenet_v2" / "model.onnx"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(convolutions(2), str(tmp_path / "m.onnx"))
    np.save(tmp_path / "data.npy", ARRAY)
    return tmp_path


def made(folder: Path, **options: Any) -> Stats:
    path = folder / "m.onnx"
    more = {"engine": "serial", "every_method": True, **options}
    return octavo.calibrate(path, octavo.plan(path), folder / "data.npy", **more)


def test_a_file_holds_everything(folder: Path) -> None:
    stats = made(folder, output=folder / "s")
    loaded = octavo.load_stats(folder / "s", folder / "m.onnx")
    assert loaded.to_bytes() == stats.to_bytes() == (folder / "s").read_bytes()
    assert loaded.origin == stats.origin
    assert loaded.origin is not None
    assert loaded.origin.spans == ((0, 24),)
    assert loaded.origin.model == io.fingerprint(io.load(folder / "m.onnx"))
    octavo.save_stats(loaded, folder / "again")
    assert (folder / "again").read_bytes() == stats.to_bytes()


def test_another_model_is_refused(folder: Path) -> None:
    made(folder, output=folder / "s")
    with pytest.raises(TableError, match=r"another model than .*; calibrate this model"):
        octavo.load_stats(folder / "s", convolutions(3))
    with pytest.raises(TableError, match="another model"):
        octavo.quantize(convolutions(3), stats=folder / "s")
    with pytest.raises(TableError, match=r"prepared otherwise .*as usual; not as it is"):
        octavo.quantize(folder / "m.onnx", stats=folder / "s", prepare=None)


def test_saved_statistics_take_the_place_of_data(folder: Path) -> None:
    stats = made(folder, output=folder / "s")
    for method in (octavo.MinMax(), octavo.Entropy(), octavo.Percentile(99.9)):
        recipe = octavo.W8A8.but(activations=octavo.W8A8.activations.but(method=method))  # type: ignore[union-attr]
        left = octavo.quantize(folder / "m.onnx", folder / "data.npy", recipe=recipe)
        for source in (stats, folder / "s"):
            right = octavo.quantize(folder / "m.onnx", stats=source, recipe=recipe)
            assert io.fingerprint(left.model) == io.fingerprint(right.model)
            assert left.data_fingerprint == right.data_fingerprint


def test_what_was_not_asked_is_not_made_up(folder: Path) -> None:
    made(folder, output=folder / "s", every_method=False)
    recipe = octavo.W8A8.but(activations=octavo.W8A8.activations.but(method=octavo.Entropy()))  # type: ignore[union-attr]
    with pytest.raises(TableError, match=r"of '.*' \(histogram\)"):
        octavo.quantize(folder / "m.onnx", stats=folder / "s", recipe=recipe)


@pytest.mark.parametrize("count", [1, 2, 5, 24])
def test_shards_merge_into_the_whole(count: int, folder: Path) -> None:
    parts = [made(folder, shard=(number, count)) for number in range(1, count + 1)]
    merged = Stats()
    for part in parts[::2] + parts[1::2]:
        merged = merged.merge(part)
    assert merged.to_bytes() == made(folder).to_bytes()


def test_nothing_is_counted_twice(folder: Path) -> None:
    whole, half = made(folder), made(folder, shard=(1, 2))
    assert half.merge(half).to_bytes() == half.to_bytes()
    with pytest.raises(TableError, match="Samples 0 to 11 are in both"):
        whole.merge(half)


def test_what_does_not_belong_together_is_not_merged(folder: Path) -> None:
    first, second = made(folder, shard=(1, 2)), made(folder, shard=(2, 2), every_method=False)
    with pytest.raises(TableError, match="different tensors or methods"):
        first.merge(second)
    second = made(folder, shard=(2, 2), prepare=None)
    with pytest.raises(TableError, match="prepared otherwise"):
        first.merge(second)
    np.save(folder / "data.npy", ARRAY[:20])
    with pytest.raises(TableError, match="different data"):
        first.merge(made(folder, shard=(2, 2)))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: b"PK" + data, "not statistics of octavo"),
        (lambda data: data[:7], "not statistics of octavo"),
        (lambda data: data[:7] + b"\x01" + data[8:], "version 1"),
        (lambda data: data[:-1], "digest"),
        (lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:], "digest"),
        (lambda data: data + b"\0", "digest"),
    ],
    ids=["something else", "cut short", "old", "cut", "changed", "longer"],
)
def test_a_damaged_file_is_refused(spoil: Callable[[bytes], bytes], message: str, folder: Path) -> None:
    (folder / "s").write_bytes(spoil(made(folder).to_bytes()))
    with pytest.raises(TableError, match=message):
        octavo.load_stats(folder / "s")


def test_a_file_that_is_not_there_is_a_sentence(folder: Path) -> None:
    with pytest.raises(TableError, match="does not exist"):
        octavo.load_stats(folder / "none")
    with pytest.raises(OutputError, match="can't be written"):
        octavo.save_stats(made(folder), folder / "none" / "s")


def test_impossible_shards_are_refused(folder: Path) -> None:
    with pytest.raises(RecipeError, match="no shard 3 of 2"):
        made(folder, shard=(3, 2))
    with pytest.raises(DataError, match="24 samples can't be divided into 25"):
        made(folder, shard=(1, 25))
    with pytest.raises(DataError, match="how many samples"):
        octavo.calibrate(convolutions(2), octavo.plan(convolutions(2)), iter([]), shard=(1, 2))


KILLED = """
import os, signal, sys
import octavo
from octavo.calibration import saved

folder, engine = sys.argv[1:]
saved.INTERVAL = 0.0

def progress(phase, done, total):
    if done >= 12 and os.path.exists(folder + "/s.checkpoint"):
        os.kill(os.getpid(), signal.SIGKILL)

path = folder + "/m.onnx"
octavo.calibrate(path, octavo.plan(path), folder + "/data.npy", output=folder + "/s", every_method=True,
                 engine=engine, workers=2 if engine == "processes" else None, progress=progress)
"""


def _environment(folder: Path) -> dict[str, str]:
    """What is killed leaves its temporary files, which go with the test's."""
    path = os.pathsep.join(filter(None, sys.path))
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": str(folder.parent)}


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("engine", ["serial", "processes"])
def test_a_killed_run_goes_on_from_its_checkpoint_with_the_same_bits(engine: str, folder: Path) -> None:
    environment = _environment(folder)
    done = subprocess.run([sys.executable, "-c", KILLED, str(folder), engine], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not (folder / "s").exists()
    finished = saved.load(folder / "s.checkpoint").samples
    assert 0 < finished < 24
    seen: list[int] = []

    def progress(phase: str, count: int, total: int | None) -> None:
        if phase == "calibrate":
            seen.append(count)

    stats = made(folder, output=folder / "s", progress=progress)
    assert seen[0] > finished  # what was finished is not done again
    assert seen[-1] == 24
    assert stats.to_bytes() == (folder / "s").read_bytes() == made(folder).to_bytes()
    assert sorted(p.name for p in folder.iterdir()) == ["data.npy", "m.onnx", "s"]


def test_an_interrupted_run_keeps_what_is_finished(folder: Path) -> None:
    def progress(phase: str, done: int, total: int | None) -> None:
        if done >= 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(folder, output=folder / "s", progress=progress)
    assert 6 <= saved.load(folder / "s.checkpoint").samples < 24
    assert made(folder, output=folder / "s").to_bytes() == made(folder).to_bytes()


def test_a_checkpoint_of_something_else_is_refused(folder: Path) -> None:
    octavo.save_stats(made(folder, shard=(1, 2)), folder / "s.checkpoint")
    again = {"output": folder / "s"}
    assert made(folder, **again).to_bytes() == made(folder).to_bytes()
    octavo.save_stats(made(folder, shard=(1, 2)), folder / "s.checkpoint")
    for options, what in (
        ({"shard": (2, 2)}, "other samples"),
        ({"every_method": False}, "another recipe"),
        ({"prepare": None}, "another model"),
    ):
        with pytest.raises(TableError, match=rf"s\.checkpoint is the checkpoint .* of {what}; remove it"):
            made(folder, **again, **options)
    np.save(folder / "data.npy", ARRAY[:20])
    with pytest.raises(TableError, match="other data"):
        made(folder, **again)


spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 6)).map(lambda p: (p[0], p[0] + p[1])), max_size=6
)


def _numbers(ranges: Any) -> list[int]:
    return [n for first, stop in ranges for n in range(first, stop)]


@given(spans, st.integers(0, 10), st.integers(0, 40))
def test_spans_are_sets_of_numbers(ranges: list[tuple[int, int]], first: int, stop: int) -> None:
    taken: list[tuple[int, int]] = []
    for span in ranges:
        shared = set(_numbers(taken)) & set(_numbers([span]))
        found = overlap(joined(taken), joined([span]))
        assert (found is None) == (not shared)
        assert found is None or set(_numbers([found])) <= shared
        if not shared:
            taken.append(span)
    assert _numbers(joined(taken)) == sorted(_numbers(taken))
    gaps = missing(first, stop, taken)
    assert _numbers(gaps) == sorted(set(range(first, stop)) - set(_numbers(taken)))


@pytest.mark.zoo
@pytest.mark.slow
@pytest.mark.skipif(not MOBILENET.exists(), reason="the model zoo is not here")
def test_mobilenet_killed_and_resumed_gives_the_same_bits(tmp_path: Path) -> None:
    data = np.random.default_rng(0).normal(size=(48, 3, 224, 224)).astype(np.float32)
    np.save(tmp_path / "data.npy", data)
    (tmp_path / "m.onnx").write_bytes(MOBILENET.read_bytes())
    environment = _environment(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), "serial"], env=environment, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert 0 < saved.load(tmp_path / "s.checkpoint").samples < 48
    resumed = made(tmp_path, output=tmp_path / "s", engine="auto")
    assert resumed.to_bytes() == made(tmp_path).to_bytes()
