"""Where the web clients are, and what is missing if their tests can't run; as a script, it says so."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / ".web"  # made by 'make test-web': packages of npm, never part of the project
PACKAGES = ("@huggingface/transformers", "onnxruntime-web")


def missing() -> str | None:
    """What keeps the tests from running; None if nothing does."""
    if shutil.which("node") is None:
        return "there is no node"
    absent = [name for name in PACKAGES if not (MODULES / "node_modules" / name).is_dir()]
    return f"{', '.join(absent)} not installed; 'make test-web' does that with npm" if absent else None


if __name__ == "__main__":
    print(f"web tests: skipped, {missing()}" if missing() else f"web tests: run with {MODULES}")
