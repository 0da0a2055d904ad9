"""Rows of `accuracy.py`: one variant of one model, quantized and judged, or found in the cache."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from _fragile import PATTERNS, task_fidelity, task_fragile
from _measure import SOURCE, Figures, folder_bytes, import_octavo, run_task, write_json
from _peers import NOT_INSTALLED, PEERS, has_nncf, python_of, some_feeds, task_peer
from _samples import task_judge
from _zoo import MISSED, MODELS, task_speed, zoo_module

SAMPLES = 256  # of calibration
MORE = {"ppocrv4_rec": 512}  # lines that are read; with 64 the error rate has a standard error of .004
FEWER = {"yolov8n": 64, "ppocrv4_det": 64, "smollm2_135m": 16, "magika": 50}  # what the zoo has


def known_steps() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The steps of Octavo, and those of them that cost no speed."""
    if (SOURCE / "octavo").is_dir():
        sys.path.insert(0, str(SOURCE))
    from octavo.algorithms.steps import NAMES, Phase, step_class

    return tuple(NAMES), tuple(name for name in NAMES if step_class(name).phase is not Phase.PLAN)


def step_variants() -> dict[str, tuple[str, ...] | None]:
    """Which steps a variant takes; None: those that are taken where nothing is said."""
    every, free = known_steps()
    single = {name: (name,) for name in every}
    sequential = {"bias-correction:sequential": ("bias-correction:sequential",)}
    return {"plain": (), "default": None, **single, **sequential, "free": free, "all": every}


STEPS = step_variants()
VARIANTS = ("float", *STEPS, "auto", *PEERS)


# ----------------------------------------------------------------------------------------- tasks


def task_octavo(payload: Figures) -> Figures:
    """Quantize one model with some steps, or by the automatic choice."""
    import_octavo()
    import octavo

    weights = octavo.W8A8.weights
    if payload["per"] == "tensor":
        weights = weights.but(granularity=octavo.PerTensor())
    recipe = octavo.W8A8.but(weights=weights)
    source = zoo_module(payload["zoo"], "evaluate").model_path(payload["model"])
    output = Path(payload["output"])
    output.parent.mkdir(parents=True, exist_ok=True)
    feeds = some_feeds(payload)
    figures: Figures = {"path": str(output), "calibration": len(feeds)}
    began = time.perf_counter()
    if payload["variant"] == "auto":
        tuned = octavo.tune(source, feeds, recipe=None if payload["per"] == "channel" else recipe)
        result = tuned.result
        if result is None:
            return {"note": tuned.reason}
        result.save(output)
        figures["note"] = tuned.reason if tuned.met else f"{MISSED}: {tuned.reason}"
    elif MODELS[payload["model"]].dynamic:
        result = octavo.quantize(source, output=output)
    else:
        steps = payload["steps"]
        wanted = recipe.but(steps=tuple(steps)) if steps is not None else None
        result = octavo.quantize(source, feeds, recipe=wanted, output=output)
    figures["seconds"] = time.perf_counter() - began
    reports = [_report(report) for report in result.steps]
    operators = len(result.model.graph)
    return {**figures, "bytes": folder_bytes(output.parent), "operators": operators, "reports": reports}


def _report(report: Any) -> Figures:
    return {
        "step": report.step,
        "changed": len(report.changed),
        "refused": len(report.refused),
        "fall": report.fall,
    }


# ------------------------------------------------------------------------------------------ rows


class Bench:
    """Rows, made or found in the cache."""

    def __init__(self, arguments: argparse.Namespace, cache: Path) -> None:
        self.arguments, self.cache = arguments, cache

    def samples(self, model: str) -> int:
        """How many calibration samples a model gets."""
        return min(self.arguments.calib or SAMPLES, FEWER.get(model, SAMPLES))

    def limit(self, model: str) -> int | None:
        """How many samples a model is judged by; None: as many as the zoo takes by itself."""
        found: int | None = self.arguments.limit or MORE.get(model)
        return found

    def row(self, model: str, variant: str, *, skip: int = 0, samples: int | None = None) -> Figures:
        """One variant of one model: quantized and judged."""
        count = samples if samples is not None else self.samples(model)
        origin = f"-{self.arguments.per}-{count}{f'-from-{skip}' if skip else ''}"
        where = "float" if variant == "float" else f"{variant.replace(':', '-')}{origin}"
        folder = self.cache / model / where
        payload: Figures = {
            "zoo": str(self.arguments.zoo),
            "model": model,
            "variant": variant,
            "per": self.arguments.per,
            "steps": STEPS.get(variant, ()),
            "output": str(folder / "model" / "model.onnx"),
            "samples": count,
            "skip": skip,
            "limit": self.limit(model),
            "path": None,
        }
        made: Figures = {} if variant == "float" else self._made(folder, payload)
        if made.get("error"):
            return made
        payload["path"] = made.get("path")
        limit = self.limit(model) or "all"
        judged = self._kept(folder / f"judged-{limit}.json", task_judge, payload)
        row = {**made, **judged, "error": judged.get("error")}
        if payload["path"] is not None:
            row["sqnr_db"] = self._near(folder, payload).get("sqnr_db")
        return row

    def _near(self, folder: Path, payload: Figures) -> Figures:
        """How close the outputs are to those of the float model."""
        source = zoo_module(payload["zoo"], "evaluate").model_path(payload["model"])
        return self._kept(folder / "fidelity.json", task_fidelity, {**payload, "float": str(source)})

    def _made(self, folder: Path, payload: Figures) -> Figures:
        variant = payload["variant"]
        if variant not in PEERS:
            return self._kept(folder / "made.json", task_octavo, payload)
        python = python_of(variant, self.arguments.nncf_python)
        if variant.startswith("nncf") and not has_nncf(python):
            return {"error": NOT_INSTALLED}
        return self._kept(folder / "made.json", task_peer, payload, python)

    def _kept(self, file: Path, task: Any, payload: Figures, python: str = sys.executable) -> Figures:
        """What a task gives, from the file if it ran before; failures are not kept."""
        if file.exists():
            found: Figures = json.loads(file.read_text())
            return found
        outcome = run_task(task, payload, timeout=self.arguments.timeout, python=python)
        if outcome.error:
            return {"error": outcome.error}
        write_json(file, outcome.figures)
        return outcome.figures

    def fragile_row(self, name: str, side: str) -> Figures:
        """One side of a fragile pattern: its rule on, or off."""
        pattern = PATTERNS[name]
        count = min(self.samples(pattern.model), pattern.samples)
        where = "on" if side == "on" else f"off-{name.replace(', ', '-').replace(' ', '-')}"
        folder = self.cache / pattern.model / f"fragile-{where}-{count}"
        payload: Figures = {
            "zoo": str(self.arguments.zoo),
            "model": pattern.model,
            "pattern": name,
            "side": side,
            "output": str(folder / "model" / "model.onnx"),
            "samples": count,
            "limit": self.limit(pattern.model),
        }
        made = self._kept(folder / "made.json", task_fragile, payload)
        if made.get("error"):
            return made
        payload["path"] = made["path"]
        limit = self.limit(pattern.model) or "all"
        judged = self._kept(folder / f"judged-{limit}.json", task_judge, payload)
        near = self._near(folder, payload)
        return {**made, **judged, **near, "error": judged.get("error") or near.get("error")}

    def add_speed(self, model: str, rows: dict[str, Figures]) -> None:
        """Time all variants of a model in turns."""
        paths = {name: row["path"] for name, row in rows.items() if row.get("path")}
        if not paths or not self.arguments.seconds:
            return
        first = str(zoo_module(str(self.arguments.zoo), "evaluate").model_path(model))
        payload: Figures = {
            "zoo": str(self.arguments.zoo),
            "model": model,
            "threads": 1,
            "budget": self.arguments.seconds * (1 + len(paths)),
            "paths": {"float": first, **paths},
        }
        timed = run_task(task_speed, payload, timeout=self.arguments.timeout)
        for name, row in rows.items():
            row["speed"] = timed.figures.get("speed", {}).get(name)
            row["ms"] = timed.figures.get("ms", {}).get(name)
