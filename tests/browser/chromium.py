"""Where a Chromium is, and what is missing if the tests of the page can't run; as a script, it says so."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")


def path() -> str | None:
    """The browser: ``OCTAVO_CHROMIUM``, or the first that is installed."""
    named = os.environ.get("OCTAVO_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


def missing() -> str | None:
    """What keeps the tests from running; None if nothing does."""
    if path() is None:
        return "no Chromium was found; 'make test-browser' installs it on Debian"
    if importlib.util.find_spec("playwright") is None:
        return "the playwright package is not installed; 'make test-browser' installs it"
    return None


if __name__ == "__main__":
    if "--find" in sys.argv:
        sys.exit(path() is None)
    print(f"browser tests: skipped, {missing()}" if missing() else f"browser tests: run in {path()}")
