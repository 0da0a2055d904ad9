"""The sandbox of each case."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("resource", reason="the limits of a child are those of POSIX")

from hostile.sandbox import Sandbox  # noqa: E402

import octavo.api  # noqa: E402, F401  (children share what is loaded here)
import octavo.model.session  # noqa: E402, F401


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """A fresh one; the current folder is that of the given files."""
    if not hasattr(os, "fork"):
        pytest.skip("a case runs in a forked child")
    made = Sandbox(tmp_path)
    monkeypatch.chdir(made.given)
    return made
