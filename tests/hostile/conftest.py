"""The sandbox of each case."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the limits of a child are those of POSIX")

import octavo.api
import octavo.model.runtime.session  # noqa: F401
from hostile.sandbox import Sandbox

gc.freeze()  # what is loaded stays shared between parent and children


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A fresh one; the current folder is that of the given files."""
    if not hasattr(os, "fork"):
        pytest.skip("a case runs in a forked child")
    made = Sandbox(tmp_path)
    monkeypatch.chdir(made.given)
    return made
