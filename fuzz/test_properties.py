"""Every harness as a property: hypothesis looks for a chain of mutations that breaks it, and shortens it.

``pytest fuzz/test_properties.py``; ``EXAMPLES=2000`` says how many inputs each harness gets.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
pytest.importorskip("hypothesis")

from fuzzing import guard
from fuzzing.engines.with_hypothesis import property_of
from fuzzing.harnesses import corpus, load, present

EXAMPLES = int(os.environ.get("EXAMPLES", "100"))


@pytest.fixture(scope="module", autouse=True)
def _folder() -> Iterator[None]:
    yield
    guard.remove_folder()


@pytest.mark.parametrize("name", present())
def test_a_result_or_a_typed_error(name: str) -> None:
    """Nothing else is allowed, whatever is read."""
    harness = load(name)
    property_of(
        harness, corpus(name), lambda data: guard.watched(harness.one, data, harness.SECONDS), EXAMPLES
    )()
