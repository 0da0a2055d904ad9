"""The fuzzing package lies beside the tests."""

from __future__ import annotations

import sys
from pathlib import Path

FUZZ = str(Path(__file__).resolve().parents[2] / "fuzz")
if FUZZ not in sys.path:
    sys.path.append(FUZZ)
