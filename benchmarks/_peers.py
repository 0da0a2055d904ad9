"""Other quantizers, on the same model and calibration samples: ONNX Runtime's own and NNCF.

NNCF may live in an environment of its own, since its versions pin others' (``--nncf-python``). The tasks here
need numpy, onnx, onnxruntime, the quantizer, and what the zoo needs to make its samples.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from _measure import Feed, Feeds, Figures, Meter, TaskError, failure, folder_bytes
from _zoo import MODELS, stock_best, stock_raw, zoo_module

NOT_INSTALLED = "not installed"
LEAST_OPSET = 13  # of NNCF


def some_feeds(payload: Figures) -> list[Feed]:
    """Calibration feeds: ``samples`` of them, after the first ``skip``; the same for every variant."""
    evaluate = zoo_module(payload["zoo"], "evaluate")
    each = MODELS[payload["model"]].samples_per_feed
    skip, count = payload.get("skip", 0), payload["samples"]
    every = evaluate.calibration(payload["model"], limit=skip + count)
    return list(islice(every, skip // each, -(-(skip + count) // each)))


def task_peer(payload: Figures) -> Figures:
    """Quantize one model with another tool; seconds, size, and a note."""
    output = Path(payload["output"])
    dynamic = MODELS[payload["model"]].dynamic
    given = some_feeds(payload) if not dynamic or payload["variant"].startswith("nncf") else []
    feeds = Feeds(lambda: given)
    model_path = zoo_module(payload["zoo"], "evaluate").model_path(payload["model"])
    quantizer = PEERS[payload["variant"]]
    shutil.rmtree(output.parent, ignore_errors=True)
    output.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as scratch:
        source = Path(scratch) / "model.onnx"
        shutil.copyfile(model_path, source)
        try:
            with Meter(feeds) as meter:
                note = quantizer(source, output, feeds if given else None, payload["model"])
        except Exception as error:
            raise failure("quantizing fails", error) from error
    seconds = meter.figures["wall_s"]
    return {"path": str(output), "seconds": seconds, "bytes": folder_bytes(output.parent), "note": note}


def _stock(source: Path, output: Path, feeds: Feeds | None, name: str) -> str:
    """The best settings of onnxruntime.quantization; unprepared where its preparation makes it fail."""
    try:
        return stock_best(source, output, feeds)
    except Exception:
        stock_raw(source, output, feeds)
        return "unprepared: with its own preparation it fails"


def _nncf(source: Path, output: Path, feeds: Feeds | None, name: str, preset: str | None = None) -> str:
    import onnx

    try:
        import nncf
    except ImportError as error:
        raise TaskError(NOT_INSTALLED) from error
    model, note = onnx.load(source), ""
    opset = next(entry.version for entry in model.opset_import if not entry.domain)
    if opset < LEAST_OPSET:
        model = onnx.version_converter.convert_version(model, LEAST_OPSET)
        note = f"opset raised from {opset} to {LEAST_OPSET}"
    items = list(feeds or ())
    settings: dict[str, Any] = {"subset_size": len(items)}
    if MODELS[name].transformer or MODELS[name].dynamic:
        settings["model_type"] = nncf.ModelType.TRANSFORMER
    if preset is not None:
        settings["preset"] = nncf.QuantizationPreset(preset)
    made = nncf.quantize(model, nncf.Dataset(items), **settings)
    onnx.save(made, output)
    return note


def _nncf_mixed(source: Path, output: Path, feeds: Feeds | None, name: str) -> str:
    return _nncf(source, output, feeds, name, preset="mixed")


PEERS: dict[str, Callable[[Path, Path, Feeds | None, str], str]] = {
    "stock-best": _stock,
    "nncf": _nncf,
    "nncf-mixed": _nncf_mixed,
}


def has_nncf(python: str) -> bool:
    """Whether an interpreter has NNCF."""
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('nncf') is None)"
    try:
        return subprocess.run([python, "-c", find], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def python_of(variant: str, nncf_python: str) -> str:
    """The interpreter that a peer runs in."""
    return nncf_python if variant.startswith("nncf") else sys.executable
