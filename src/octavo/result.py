"""What a run hands over: the model, and everything that says how it came about."""

from __future__ import annotations

import json
import platform
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo._version import __version__
from octavo.core import codec
from octavo.core.plan import Key, Plan
from octavo.core.qparams import QParams
from octavo.core.recipe import Recipe
from octavo.core.stats import Stats
from octavo.errors import OutputError
from octavo.model import io
from octavo.model.prepare import PrepareReport
from octavo.model.session import Feeds, verify
from octavo.reporting.summary import summary


@dataclass(frozen=True, eq=False)
class Result:
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
    fingerprints: Mapping[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """What was done, in a few lines."""
        return summary(self)

    def __str__(self) -> str:
        return self.summary()

    def save(
        self, path: str | Path, *, manifest: bool = False, external_data: bool | None = None
    ) -> list[Path]:
        """Write the model, and beside it a manifest if asked for; returns the files written."""
        written = io.save(self.model, path, external_data=external_data)
        if manifest:
            written.append(self.save_manifest(path))
        return written

    def save_manifest(self, path: str | Path) -> Path:
        """Write ``<model>.manifest.json``: versions, recipe and fingerprints, enough to make the model again."""
        target = Path(f"{path}.manifest.json")
        text = json.dumps(self.manifest(), indent=2, default=str)
        with tempfile.NamedTemporaryFile("w", dir=target.parent, suffix=".tmp", delete=False, encoding="utf-8") as file:
            file.write(text + "\n")
        Path(file.name).replace(target)
        return target

    def manifest(self) -> dict[str, Any]:
        """Versions, recipe and fingerprints."""
        import onnx
        import onnxruntime

        return {
            "octavo": __version__,
            "versions": {
                "python": platform.python_version(),
                "numpy": np.__version__,
                "onnx": onnx.__version__,
                "onnxruntime": onnxruntime.__version__,
            },
            "machine": platform.machine(),
            "recipe": _plain_recipe(self.recipe),
            "samples": self.stats.samples if self.stats is not None else 0,
            "fingerprints": dict(self.fingerprints),
            "float_bytes": self.float_bytes,
            "bytes": self.bytes,
            "notes": list(self.notes),
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for machines: counts, sizes, the plan, and scales and zero points per tensor."""
        return {
            "quantized": dict(self.plan.counts()),
            "skipped": [codec.encode(s) for s in self.plan.skipped],
            "float_bytes": self.float_bytes,
            "bytes": self.bytes,
            "notes": list(self.notes),
            "recipe": _plain_recipe(self.recipe),
            "plan": self.plan.to_dict(),
            "params": {str(k): _numbers(p) for k, p in self.params.items() if p.scale.size == 1},
        }


def _plain_recipe(recipe: Recipe | None) -> Any:
    if recipe is None:
        return None
    readable = recipe.but(
        exclude=tuple(p if isinstance(p, str) else repr(p) for p in recipe.exclude),
        include=tuple(p if isinstance(p, str) else repr(p) for p in recipe.include),
    )
    return readable.to_dict()


def _numbers(params: QParams) -> dict[str, Any]:
    return {
        "type": params.qtype.name,
        "scale": float(params.scale.astype(np.float64).reshape(-1)[0]),
        "zero_point": int(params.zero_point.astype(np.int64).reshape(-1)[0]) if not params.qtype.is_float else 0,
    }


def write_verified(model: ir.Model, path: Path, feeds: Feeds | None, external_data: bool | None = None) -> list[Path]:
    """Write into a folder of its own beside the target, check the files there as a user would load them, then move.

    The old output stays until the new one has passed.
    """
    path = path.absolute()
    if not path.parent.is_dir():
        raise OutputError(f"{path.parent} is no folder; create it first, or choose another output.")
    io.refuse_overwriting(model, path)
    folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".octavo", dir=path.parent))
    try:
        files = io.save(model, folder / path.name, external_data=external_data)
        verify(files[0], feeds=feeds)
        moved = []
        for file in reversed(files):
            file.replace(path.parent / file.name)
            moved.append(path.parent / file.name)
        return list(reversed(moved))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
