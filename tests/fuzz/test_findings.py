"""What fuzzing has found stays found: each input of the corpus ends in a result or a typed error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the limits of the harnesses are those of POSIX")

from fuzzing import guard
from fuzzing.harnesses import NAMES, kept, load, present

KEPT = [(name, path) for name in NAMES for path in kept(name)]


@pytest.fixture(scope="module", autouse=True)
def _folder() -> Iterator[None]:
    yield
    guard.remove_folder()


@pytest.mark.parametrize(("name", "path"), KEPT, ids=[f"{name}-{path.stem}" for name, path in KEPT])
def test_an_input_that_was_a_finding_is_none_any_more(name: str, path: Path) -> None:
    if name not in present():
        pytest.skip(f"the packages of {name} are not installed")
    harness = load(name)
    guard.watched(harness.one, path.read_bytes(), harness.SECONDS)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for _, path in KEPT) < 300_000
