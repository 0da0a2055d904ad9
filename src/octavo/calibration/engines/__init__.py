"""Where the work is done: in this process, in several, or on a Ray cluster; the results are the same."""

from __future__ import annotations

from octavo.calibration.engines.engine import ENGINES, Engine, FileJob, Job, cores, divided, engine_of, held

__all__ = ["ENGINES", "Engine", "FileJob", "Job", "cores", "divided", "engine_of", "held"]
