"""The tasks of ``more.py``: quantize one of the further models in one way, and judge the result.

The zoo's own ``more.py`` brings models, feeds and the judge. It is loaded by its file, as a module of this
folder has the same name.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _measure import Feeds, Figures, Meter, failure, import_octavo, import_whole, shorten
from _zoo import stock_best, stock_default, stock_dynamic


def zoo_more(folder: str) -> Any:
    """The zoo's module of the further models."""
    if folder not in sys.path:
        sys.path.append(folder)
    spec = importlib.util.spec_from_file_location("zoo_more", Path(folder) / "more.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{folder} has no more.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def octavo_command(source: Path, output: Path, feeds: Feeds | None) -> str:
    """Octavo as it is called without any option; what it chose."""
    import octavo

    result = octavo.quantize(source, list(feeds or ()), output=output)
    choice = result.choice
    if choice is None or choice.best is None:
        return ""
    if not choice.met:
        result.save(output)
    return choice.best.name if choice.met else f"nothing met the requirements; nearest: {choice.best.name}"


def octavo_plain(source: Path, output: Path, feeds: Feeds | None) -> str:
    """Octavo's recipe and nothing else."""
    import octavo

    octavo.quantize(source, list(feeds or ()), output=output, effort="plain")
    return ""


VARIANTS: dict[str, Callable[[Path, Path, Feeds | None], str]] = {
    "octavo": octavo_command,
    "octavo-plain": octavo_plain,
    "stock-default": stock_default,
    "stock-best": stock_best,
    "stock-dynamic": stock_dynamic,
}


def task_quantize(payload: Figures) -> Figures:
    """Quantize a model in one way; seconds and what was chosen."""
    zoo = zoo_more(payload["zoo"])
    feeds = Feeds(lambda: zoo.calibration(payload["model"]))
    if payload["variant"].startswith("octavo"):
        import_octavo()
    else:
        import_whole("onnxruntime.quantization")
    output = Path(payload["output"])
    shutil.rmtree(output.parent, ignore_errors=True)
    output.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as scratch:
        source = Path(scratch) / "model.onnx"
        shutil.copyfile(zoo.model_path(payload["model"]), source)
        try:
            with Meter(feeds) as meter:
                note = VARIANTS[payload["variant"]](source, output, feeds)
        except Exception as error:
            raise failure("quantizing fails", error) from error
    return {"wall_s": meter.figures["wall_s"], "cpu_s": meter.figures["cpu_s"], "note": shorten(note, 60)}


def task_judge(payload: Figures) -> Figures:
    """The zoo's verdict on a quantized model: fidelity, size, and processor time of one thread."""
    zoo = zoo_more(payload["zoo"])
    zoo.SECONDS = payload["seconds"]
    found: Figures = zoo.judge(payload["model"], payload["output"])
    return found
