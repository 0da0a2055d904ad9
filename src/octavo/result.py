"""The result of a run: the model, and how it was made."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo._version import __version__
from octavo.algorithms.steps import StepReport
from octavo.core import codec, files
from octavo.core.arguments import check_arguments
from octavo.core.effort import best_path
from octavo.core.files import json_text, write_text
from octavo.core.outputs import refuse_sources, refuse_special
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.core.recipe import Recipe
from octavo.core.shown import Shown
from octavo.core.stats import Stats
from octavo.errors import OutputError
from octavo.model.files import io
from octavo.model.prepare import PrepareReport
from octavo.model.runtime.session import Feeds
from octavo.model.runtime.verification import verify
from octavo.reporting.summary import headline, sizes, summary

SCHEMA = 1  # the version of what to_dict() gives
_MOST_SHRUNK = 10  # a result has at least this part of the float weights' bytes


@dataclass(frozen=True, eq=False, repr=False)
class Result(Shown):
    """A quantized model with its plan, parameters and statistics; prints as a summary."""

    model: ir.Model
    plan: Plan
    params: Mapping[Key, QParams]
    recipe: Recipe | None = None
    stats: Stats | None = None
    prepared: PrepareReport | None = None
    notes: Sequence[str] = ()
    float_bytes: int = 0
    bytes: int = 0
    source: io.ModelSource | None = None
    data_fingerprint: str | None = None
    steps: Sequence[StepReport] = ()
    choice: Any = None  # the trials that this one was chosen from, where ways were compared: octavo.Tuned
    gates: Sequence[Any] = ()  # the requirements that were given, and what was measured of each

    @property
    def met(self) -> bool:
        """Whether the result meets what was required of it; True where nothing was."""
        return (self.choice is None or self.choice.met) and all(gate.passed for gate in self.gates)

    def summary(self) -> str:
        """Say what was done, in a few lines."""
        return summary(self)

    def __str__(self) -> str:
        return self.summary()

    def _line(self) -> str:
        return f"{headline(self.plan, self.params)}, {sizes(self)}"

    def _repr_html_(self) -> str:
        """Return what a notebook shows."""
        from octavo.reporting.notebook import result_html  # loaded where a page is shown

        return result_html(self)

    def save(
        self, path: str | Path, *, manifest: bool = False, external_data: bool | None = None
    ) -> list[Path]:
        """Write the model, and beside it a manifest on request; returns the files written."""
        check_arguments(path=path)
        refuse_sources(self, written_files(path))
        written = io.save(self.model, path, external_data=external_data)
        if manifest:
            written.append(self.save_manifest(path))
        return written

    def save_manifest(self, path: str | Path) -> Path:
        """Write ``<model>.manifest.json``: versions, recipe and fingerprints, to make the model again."""
        target = f"{path}.manifest.json"
        refuse_sources(self, {"the manifest": target})
        return write_text(target, json_text(self.manifest()) + "\n")

    def fingerprints(self) -> dict[str, str | None]:
        """Digests of the float model and of the calibration data; None where there is none to tell."""
        model = io.fingerprint(io.load(self.source)) if self.source is not None else None
        return {"model": model, "data": self.data_fingerprint}

    def manifest(self) -> dict[str, Any]:
        """Versions, recipe and fingerprints."""
        return {
            **versions(),
            "recipe": _plain_recipe(self.recipe),
            "samples": self.stats.samples if self.stats is not None else 0,
            "fingerprints": self.fingerprints(),
            "float_bytes": self.float_bytes,
            "bytes": self.bytes,
            "stored": len(self.plan.compressed),  # weights in integers that run as float
            "notes": list(self.notes),
            **({"tuning": self.choice.chosen_dict()} if self.choice is not None else {}),
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for machines; docs/report.md says what each key holds."""
        return {
            "schema": SCHEMA,
            "kind": "quantization",
            "quantized": dict(self.plan.counts()),
            "skipped": [codec.encode(s) for s in self.plan.skipped],
            "float_bytes": self.float_bytes,
            "bytes": self.bytes,
            "notes": list(self.notes),
            "recipe": _plain_recipe(self.recipe),
            "plan": self.plan.to_dict(),
            "params": {str(k): _numbers(p) for k, p in self.params.items()},
            **({"tuning": self.choice.to_dict()} if self.choice is not None else {}),
            **({"gates": [gate.to_dict() for gate in self.gates]} if self.gates else {}),
        }


def versions() -> dict[str, Any]:
    """Return what a manifest says of the software and the machine."""
    return {
        "octavo": __version__,
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("numpy", "onnx", "onnx_ir", "onnxruntime")},
        },
        "machine": platform.machine(),
    }


def _version(module: str) -> str:
    """Return the installed version of a module, whatever its distribution is called (onnxruntime-gpu, …)."""
    try:
        return metadata.version(module)
    except metadata.PackageNotFoundError:
        names = metadata.packages_distributions().get(module, ())
        return next((metadata.version(name) for name in names), "unknown")


def _plain_recipe(recipe: Recipe | None) -> Any:
    if recipe is None:
        return None
    readable = recipe.but(
        exclude=tuple(p if isinstance(p, str) else repr(p) for p in recipe.exclude),
        include=tuple(p if isinstance(p, str) else repr(p) for p in recipe.include),
    )
    return readable.to_dict()


def _numbers(params: QParams) -> dict[str, Any]:
    """Return a scale and a zero point; of many, how many there are and their extremes."""
    scale = params.scale.astype(np.float64)
    zero = np.zeros(1, np.int64) if params.qtype.is_float else params.zero_point.astype(np.int64)
    if scale.size == 1:
        return {
            "type": params.qtype.name,
            "scale": float(scale.reshape(())),
            "zero_point": int(zero.reshape(())),
        }
    return {
        "type": params.qtype.name,
        "granularity": str(params.granularity),
        "count": int(scale.size),
        "scale": [float(scale.min()), float(scale.max())],
        "zero_point": [int(zero.min()), int(zero.max())],
    }


def written_files(output: str | Path | None, *, may_miss: bool = False) -> dict[str, str | Path]:
    """Return the files that a model may be written to; one that misses a requirement has another name."""
    if output is None:
        return {}
    found = {"output": output, "the weights beside the output,": f"{output}.data"}
    if may_miss and Path(output).name:
        found["the name for a result that misses its requirements,"] = best = best_path(output)
        found["the weights beside that,"] = f"{best}.data"
    return found


def inputs_of(model: io.ModelSource, **read: Any) -> dict[str, Any]:
    """Return what a call reads, by the names of its parameters; only data can be a folder."""
    files = {name: one for name, one in read.items() if name in ("data", "task") or _is_file(one)}
    return {"model": model, **files, "weights of the model": io.read_files(model)}


def _is_file(given: Any) -> bool:
    """Whether an argument is the path of a file, or several, and not a name or what is read from there."""
    if isinstance(given, list | tuple):
        return all(map(_is_file, given))
    return isinstance(given, str | Path) and os.path.isfile(given)  # noqa: PTH113 - False for names too long


def check_output(model: ir.Model, path: Path) -> None:
    """Raise where a result could not be written, before work is spent on it."""
    path = path.absolute()
    with _reported(path):
        if not path.parent.is_dir():
            there = "is not a folder" if path.parent.exists() else "does not exist"
            raise OutputError(f"The folder {path.parent} {there}; create it, or choose another output.")
    beside = path.with_name(path.name + ".data")
    refuse_special(path)
    refuse_special(beside)
    files.sweep(path.parent)
    io.refuse_overwriting(model, path, beside)
    files.check_room(path, io.weight_bytes(model) // _MOST_SHRUNK)


def _make(folder: Path, path: Path) -> None:
    """Make a folder that only this user may read."""
    with _reported(path):
        folder.mkdir(0o700)


@contextlib.contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn what the system says into an error that names the output."""
    try:
        yield
    except OSError as error:
        raise OutputError(f"{path} can't be written: {error.strerror or error}.") from error


def _saved(model: ir.Model, draft: Path, path: Path, external_data: bool | None) -> list[Path]:
    """Write a draft; what goes wrong is told of the output, which is the name that the user knows."""
    try:
        return io.save(model, draft, external_data=external_data)
    except OutputError as error:
        raise OutputError(str(error).replace(str(draft), str(path))) from error


def write_verified(
    model: ir.Model,
    path: Path,
    feeds: Feeds | None = None,
    external_data: bool | None = None,
    custom_ops: Sequence[str | Path] = (),
    threads: int | None = None,
) -> list[Path]:
    """Write into a folder of its own beside the target, check the files there as a user would, then move.

    The old output stays until the new one has passed.
    """
    path = path.absolute()
    check_output(model, path)
    folder = path.parent / files.new_name("dir")
    try:
        _make(folder, path)
        written = _saved(model, folder / path.name, path, external_data)
        verify(written[0], feeds=feeds, custom_ops=custom_ops, nodes=len(model.graph), threads=threads)
        targets = [path.parent / file.name for file in written]
        with _reported(path):
            files.swap(targets, written)
        return targets
    finally:
        shutil.rmtree(folder, ignore_errors=True)
