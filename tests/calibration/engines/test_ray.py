"""A real Ray on this machine does what the other engines do (:mod:`ray_session` is what it is asked)."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.calibration.engines.ray import RayEngine
from octavo.errors import OctavoError, RecipeError

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install octavo[ray]"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    scratch = tmp_path_factory.mktemp("ray")
    subprocess.run(
        [sys.executable, str(Path(__file__).with_name("ray_session.py")), str(scratch)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=300,
    )
    return dict(json.loads((scratch / "found.json").read_text()))


@needs_ray
def test_a_lost_actors_shard_is_done_again_and_never_counted_twice(found: dict[str, Any]) -> None:
    assert found["killed once"] == [[i, i * i] for i in range(8)]
    assert "while they had shard 1, 3 times" in found["killed always"]


@needs_ray
def test_what_a_job_raises_on_ray_is_raised_as_it_is(found: dict[str, Any]) -> None:
    assert found["refused"] == "DataError: shard 2 is bad."


@needs_ray
def test_files_go_with_the_job_to_nodes_that_do_not_see_them(found: dict[str, Any]) -> None:
    assert found["copied"] == ["7", True, False]


@needs_ray
def test_ray_gives_the_same_bits(found: dict[str, Any]) -> None:
    assert found["same bits"] == [True, True, True]


@needs_ray
def test_the_automatic_choice_on_ray_finds_what_one_process_finds(found: dict[str, Any]) -> None:
    same_choice, same_trials, same_statistics, files = found["tuned"]
    assert (same_choice, same_trials, same_statistics, files) == (True, True, True, 1)


@needs_ray
def test_ray_stays_on_loopback_and_divides_its_processors(found: dict[str, Any]) -> None:
    assert found["address"].startswith("127.0.0.1:")
    assert found["workers"] == [2, 7, 1]


def test_without_ray_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RecipeError, match=r"octavo\[ray\]"):
        list(RayEngine().map(None, [1]))  # type: ignore[arg-type]


@needs_ray
def test_an_address_where_nobody_listens_is_a_sentence() -> None:
    with pytest.raises(OctavoError, match=r"no Ray cluster to connect to at '127\.0\.0\.1:1'"):
        list(RayEngine(address="127.0.0.1:1").map(None, [1]))  # type: ignore[arg-type]
