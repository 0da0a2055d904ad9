"""Every way by which a model gets into Octavo: the verbs, the Python functions, the drop-in's functions.

A door takes the path of a model that may be anything, and a folder with the good model beside it
(``good.onnx``, ``quantized.onnx``), samples (``calib.npz``) and room for results. Whatever is behind it, it
ends with a result or with a typed error; a verb ends with the exit code 0, 1 or 2 and a sentence.
"""

from __future__ import annotations

import contextlib
import functools
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gguf_files import write_gguf
from google.protobuf.message import DecodeError

import octavo
from hostile.models import feeds, layer, written
from octavo.errors import ModelError

Door = Callable[[Path, Path], object]

LONG = ("--time-limit", "1", "--engine", "serial", "--threads", "1")


class VerbError(AssertionError):
    """A verb that ended with a code that no hostile file may cause, or without a sentence."""


@functools.cache
def _quantized() -> bytes:
    """The good model, quantized."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "quantized.onnx"
        octavo.quantize(layer(), feeds(4), effort="plain", threads=1, output=path)
        return path.read_bytes()


@functools.cache
def _plan() -> str:
    """The plan of the good model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        octavo.plan(layer()).save(path)
        return path.read_text()


def provide(folder: Path) -> None:
    """Write what the doors need beside the model."""
    written(layer(), folder, "good.onnx")
    (folder / "quantized.onnx").write_bytes(_quantized())
    (folder / "good.plan.json").write_text(_plan())
    weight = onnx.numpy_helper.to_array(layer().graph.initializer[0])
    write_gguf(folder / "good.gguf", {"w": ("Q8_0", np.ascontiguousarray(weight.T))}, {})
    np.savez(folder / "calib.npz", x=np.concatenate([one["x"] for one in feeds(4)]))


def _verb(*words: str) -> Door:
    """A command line; ``{m}`` is the model, ``{o}`` the output folder."""

    def enter(model: Path, out: Path) -> object:
        from octavo.cli.main import main

        given = [
            word.format(
                m=model,
                o=out,
                d=model.parent / "calib.npz",
                g=model.parent / "good.onnx",
                q=model.parent / "quantized.onnx",
                p=model.parent / "good.plan.json",
                f=model.parent / "good.gguf",
            )
            for word in words
        ]
        said, printed = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(printed):
            code = main([*given, "--quiet"])
        text = said.getvalue()
        if code not in (0, 1, 2) or (
            code and not printed.getvalue() and text.rstrip()[-1:] not in (".", "?")
        ):
            raise VerbError(f"octavo {words[0]} ended with {code}: {text[-800:]}")
        return code

    return enter


def _folder(model: Path, out: Path) -> object:
    """A model folder with the model as its part."""
    source = out / "folder"
    source.mkdir()
    (source / "model.onnx").write_bytes(model.read_bytes())
    return _verb("quantize", "{o}/folder", "-o", "{o}/variants", "--variants", "q8,q4")(model, out)


def _proto(model: Path) -> onnx.ModelProto:
    try:
        return onnx.ModelProto.FromString(model.read_bytes())
    except DecodeError as error:
        raise ModelError("Protobuf itself refuses it.") from error


class _Reader:
    """Samples in the drop-in's manner."""

    def __init__(self) -> None:
        self._left = iter(feeds(2))

    def get_next(self) -> Any:
        return next(self._left, None)


def _static(model: Path, out: Path) -> None:
    from octavo.quantization import quantize_static

    quantize_static(model, out / "static.onnx", _Reader())  # type: ignore[arg-type]


def _dynamic(model: Path, out: Path) -> None:
    from octavo.quantization import quantize_dynamic

    quantize_dynamic(model, out / "dynamic.onnx")


def _preprocess(model: Path, out: Path) -> None:
    from octavo.quantization.shape_inference import quant_pre_process

    quant_pre_process(model, out / "pre.onnx")


def _nbits(model: Path, out: Path) -> None:
    from octavo.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(str(model), block_size=32)
    made.process()
    made.model.save_model_to_file(str(out / "nbits.onnx"), use_external_data_format=False)


def _bnb4(model: Path, out: Path) -> None:
    from octavo.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
    from octavo.quantization.quant_utils import load_model_with_shape_infer

    MatMulBnb4Quantizer(load_model_with_shape_infer(model), 0, 64).process()


def _config(model: Path, out: Path) -> None:
    from octavo.quantization import get_qdq_config, quantize

    quantize(model, out / "config.onnx", get_qdq_config(model, _Reader()))  # type: ignore[arg-type]


def _calibrator(model: Path, out: Path) -> None:
    from octavo.quantization import create_calibrator

    made = create_calibrator(model, augmented_model_path=str(out / "augmented.onnx"))
    made.collect_data(_Reader())  # type: ignore[arg-type]
    made.compute_data()


def _debug(model: Path, out: Path) -> None:
    from octavo.quantization.qdq_loss_debug import (
        create_weight_matching,
        modify_model_output_intermediate_tensors,
    )

    modify_model_output_intermediate_tensors(str(model), str(out / "tapped.onnx"))
    create_weight_matching(str(model), str(model))


DOORS: dict[str, Door] = {
    # the verbs
    "quantize --plain": _verb("quantize", "{m}", "-o", "{o}/a.onnx", "--data", "{d}", "--plain"),
    "quantize": _verb("quantize", "{m}", "-o", "{o}/b.onnx", "--data", "{d}", *LONG),
    "quantize --effort search": _verb(
        "quantize", "{m}", "-o", "{o}/c.onnx", "--data", "{d}", "--effort", "search", *LONG
    ),
    "quantize --max-drop": _verb(
        "quantize", "{m}", "-o", "{o}/d.onnx", "--data", "{d}", "--min-sqnr", "20", "--plain"
    ),
    "quantize, dynamic": _verb("quantize", "{m}", "-o", "{o}/e.onnx"),
    "quantize --recipe W4": _verb("quantize", "{m}", "-o", "{o}/f.onnx", "--recipe", "W4"),
    "quantize --float fp16": _verb("quantize", "{m}", "-o", "{o}/g.onnx", "--float", "fp16"),
    "quantize --weights int4": _verb("quantize", "{m}", "-o", "{o}/n.onnx", "--weights", "int4"),
    "quantize --bits": _verb(
        "quantize", "{m}", "-o", "{o}/o.onnx", "--data", "{d}", "--weights", "int4", "--bits", "5"
    ),
    "quantize --steps": _verb(
        "quantize",
        "{m}",
        "-o",
        "{o}/p.onnx",
        "--data",
        "{d}",
        "--plain",
        "--steps",
        "smoothquant,rounding,bias-correction,equalize,clip",
    ),
    "quantize --steps awq": _verb(
        "quantize", "{m}", "-o", "{o}/q.onnx", "--data", "{d}", "--weights", "int4", "--steps", "awq"
    ),
    "quantize --format qoperator": _verb(
        "quantize",
        "{m}",
        "-o",
        "{o}/r.onnx",
        "--data",
        "{d}",
        "--plain",
        "--format",
        "qoperator",
        "--card",
        "{o}/card.md",
        "--manifest",
        "--report",
        "{o}/page.html",
    ),
    "quantize --optimize size": _verb(
        "quantize", "{m}", "-o", "{o}/s.onnx", "--data", "{d}", "--optimize", "size", *LONG
    ),
    "quantize --plan": _verb("quantize", "{m}", "-o", "{o}/t.onnx", "--data", "{d}", "--plan", "{p}"),
    "quantize FOLDER": _folder,
    "import-gguf": _verb("import-gguf", "{f}", "--graph", "{m}", "-o", "{o}/u.onnx"),
    "quantize --no-prepare": _verb(
        "quantize", "{m}", "-o", "{o}/h.onnx", "--data", "{d}", "--plain", "--no-prepare"
    ),
    "qat": _verb("qat", "{m}", "-o", "{o}/i.onnx"),
    "plan": _verb("plan", "{m}", "-o", "{o}/plan.json"),
    "prepare": _verb("prepare", "{m}", "-o", "{o}/j.onnx"),
    "prepare --runtime-optimization": _verb(
        "prepare", "{m}", "-o", "{o}/k.onnx", "--runtime-optimization", "--no-symbolic-shapes"
    ),
    "calibrate": _verb("calibrate", "{m}", "-o", "{o}/a.stats", "--data", "{d}", "--threads", "1"),
    "inspect": _verb("inspect", "{m}"),
    "doctor": _verb("doctor", "{m}"),
    "doctor --data": _verb("doctor", "{m}", "--data", "{d}"),
    "lint": _verb("lint", "{m}"),
    "lint --fix": _verb("lint", "{m}", "--fix", "{o}/l.onnx"),
    "compare, as float": _verb("compare", "{m}", "{q}", "--data", "{d}"),
    "compare, as quantized": _verb("compare", "{g}", "{m}", "--data", "{d}"),
    "evaluate, as float": _verb("evaluate", "{m}", "{g}", "--data", "{d}", "--task", "agreement"),
    "evaluate, as quantized": _verb("evaluate", "{g}", "{m}", "--data", "{d}", "--task", "agreement"),
    "bench": _verb("bench", "{m}", "--seconds", "0.1", "--threads", "1", "--no-memory"),
    "bench, as quantized": _verb(
        "bench", "{g}", "{m}", "--seconds", "0.1", "--threads", "1", "--no-memory", "--no-profile"
    ),
    "compare --propose": _verb("compare", "{g}", "{m}", "--data", "{d}", "--propose", "{o}/recipe.yaml"),
    "report --overlay": _verb("report", "{m}", "--overlay", "{o}/overlay"),
    "report": _verb("report", "{m}", "-o", "{o}/r.html"),
    # Python, from memory
    "octavo.quantize(bytes)": lambda model, out: str(
        octavo.quantize(model.read_bytes(), feeds(), effort="plain", threads=1)
    ),
    "octavo.quantize(ModelProto)": lambda model, out: str(
        octavo.quantize(_proto(model), feeds(), effort="standard", threads=1, time_limit=1)
    ),
    "octavo.tune": lambda model, out: str(
        octavo.tune(model, feeds(), effort="standard", threads=1, time_limit=1, seconds=0.1)
    ),
    # the drop-in
    "quantize_static": _static,
    "quantize_dynamic": _dynamic,
    "quant_pre_process": _preprocess,
    "MatMulNBitsQuantizer": _nbits,
    "MatMulBnb4Quantizer": _bnb4,
    "get_qdq_config": _config,
    "create_calibrator": _calibrator,
    "qdq_loss_debug": _debug,
}

# They try several ways and time them: a second and more for a model that is accepted.
SLOW = (
    "quantize",
    "quantize FOLDER",
    "quantize --optimize size",
    "quantize --effort search",
    "octavo.quantize(ModelProto)",
    "octavo.tune",
)
# What the drop-in's tools write before the runtime has seen the model, as their callers expect.
DRAFTS = {"augmented.onnx", "tapped.onnx"}
