"""The models of the zoo as a table, and the tasks that quantize, evaluate and time them.

The zoo itself (models, labelled data, metrics) is a folder that brings ``evaluate.py`` and
``inputs.py``; nothing of it is stored here. The tasks run in child processes (`_measure.run_task`).
"""

from __future__ import annotations

import importlib
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from _measure import (
    Feed,
    Feeds,
    Figures,
    Meter,
    failure,
    folder_bytes,
    import_octavo,
    import_whole,
    median,
    quantized_nodes,
    shorten,
    stock_reader,
)
from _timing import timed_session, turns


@dataclass(frozen=True)
class ZooModel:
    """How a model is judged, and what its quantized copy is held to."""

    metric: str
    higher_is_better: bool = True
    feeds: int = 64  # calibration feeds
    samples_per_feed: int = 1
    dynamic: bool = False  # quantized without calibration data
    transformer: bool = False
    max_file_ratio: float = 0.35
    max_loss: float | None = None
    relative: bool = False  # `max_loss` is a share of the float figure

    def loss(self, float_value: float, value: float) -> float:
        """How much worse than float, in the metric's own unit (or as a share of it)."""
        loss = float_value - value if self.higher_is_better else value - float_value
        return loss / float_value if self.relative else loss


MODELS: dict[str, ZooModel] = {
    "fashion_cnn": ZooModel("accuracy"),
    "mobilenet_v2": ZooModel("top1"),
    "efficientnet_lite0": ZooModel("top1"),
    "yolov8n": ZooModel("mAP", max_loss=0.04),
    "ppocrv4_rec": ZooModel("cer", higher_is_better=False, max_loss=0.01),
    "ppocrv4_det": ZooModel("sqnr_db"),
    "silero_vad": ZooModel("mean_difference", higher_is_better=False, max_file_ratio=0.6),
    "silero_vad_ifless": ZooModel("mean_difference", higher_is_better=False, max_file_ratio=0.6),
    "magika": ZooModel("accuracy"),
    "all_minilm_l6_v2": ZooModel(
        "spearman", feeds=16, samples_per_feed=8, transformer=True, max_file_ratio=0.6, max_loss=0.01
    ),
    "minilm_sst2": ZooModel("accuracy", feeds=16, samples_per_feed=8, transformer=True, max_file_ratio=0.6),
    "smollm2_135m": ZooModel(
        "perplexity",
        higher_is_better=False,
        feeds=16,
        dynamic=True,
        max_file_ratio=0.6,
        max_loss=0.05,
        relative=True,
    ),
}


def zoo_module(folder: str, name: str) -> Any:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


def calibration_feeds(payload: Figures) -> Feeds:
    """The same calibration feeds for every variant of a model."""
    evaluate = zoo_module(payload["zoo"], "evaluate")
    samples = payload["feeds"] * MODELS[payload["model"]].samples_per_feed
    return Feeds(lambda: evaluate.calibration(payload["model"], limit=samples))


# ---------------------------------------------------------------------------------- quantization


def stock_default(source: Path, output: Path, feeds: Feeds | None) -> str:
    from onnxruntime.quantization import quantize_dynamic, quantize_static

    if feeds is None:
        quantize_dynamic(source, output)
    else:
        quantize_static(source, output, stock_reader(feeds))
    return ""


def stock_best(source: Path, output: Path, feeds: Feeds | None) -> str:
    if feeds is None:
        return stock_dynamic(source, output, feeds)
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, note = source.with_name("prepared.onnx"), ""
    try:
        quant_pre_process(str(source), str(prepared))
    except Exception as error:
        note = f"prepared without symbolic shapes ({shorten(str(error)) or type(error).__name__})"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    stock_raw(prepared, output, feeds)
    return note


def stock_raw(source: Path, output: Path, feeds: Feeds | None) -> str:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static

    quantize_static(
        source,
        output,
        stock_reader(feeds or ()),
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return ""


def stock_dynamic(source: Path, output: Path, feeds: Feeds | None) -> str:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(source, output, per_channel=True, weight_type=QuantType.QInt8)
    return ""


def octavo_default(source: Path, output: Path, feeds: Feeds | None) -> str:
    import octavo

    octavo.quantize(source, feeds, output=output, effort="plain")
    return ""


def octavo_dynamic(source: Path, output: Path, feeds: Feeds | None) -> str:
    return octavo_default(source, output, None)


def octavo_auto(source: Path, output: Path, feeds: Feeds | None, threads: int | None = None) -> str:
    """The command without options. Where no trial meets its requirements, the best trial, and a note."""
    import octavo

    result = octavo.quantize(source, feeds, output=output, threads=threads)
    tuned = result.choice
    if tuned is None or tuned.best is None:
        return ""
    if tuned.met:
        return tuned.best.name
    result.save(output)
    return f"{MISSED}: {shorten(tuned.reason)}"


MISSED = "requirements missed"

VARIANTS: dict[str, Callable[[Path, Path, Feeds | None], str] | None] = {
    "float": None,
    "stock-default": stock_default,
    "stock-best": stock_best,
    "stock-raw": stock_raw,
    "stock-dynamic": stock_dynamic,
    "octavo": octavo_default,
    "octavo-dynamic": octavo_dynamic,
    "octavo-auto": octavo_auto,
}


def applies(variant: str, name: str, errors: dict[str, str | None]) -> bool:
    """Whether a variant makes sense for a model, given how the earlier ones fared.

    The dynamic extras are for transformers that also have a static form; ``stock-raw`` is the
    second try where ``stock-best`` failed.
    """
    model = MODELS[name]
    if variant.endswith("-dynamic"):
        return model.transformer and not model.dynamic
    return variant != "stock-raw" or bool(errors.get("stock-best"))


def task_quantize(payload: Figures) -> Figures:
    """Quantize one model in one way; the answer holds the file's size, seconds and memory.

    The source is copied first, because some variants write beside it.
    """
    variant, output = payload["variant"], Path(payload["output"])
    feeds = None if MODELS[payload["model"]].dynamic else calibration_feeds(payload)
    if variant.startswith("octavo"):
        import_octavo()
    else:
        import_whole("onnxruntime.quantization")
    quantizer = VARIANTS[variant]
    assert quantizer is not None
    if variant == "octavo-auto":
        quantizer = partial(octavo_auto, threads=payload.get("threads"))
    model_path = zoo_module(payload["zoo"], "evaluate").model_path(payload["model"])
    shutil.rmtree(output.parent, ignore_errors=True)
    output.parent.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="octavo-bench-") as scratch:
        source = Path(scratch) / "model.onnx"
        shutil.copyfile(model_path, source)
        try:
            with Meter(feeds) as meter:
                note = quantizer(source, output, feeds)
        except Exception as error:
            raise failure("quantizing fails", error) from error
    figures = {key: value for key, value in meter.figures.items() if key != "marks"}
    nodes = quantized_nodes(output)
    note = note if nodes else "; ".join(filter(None, ["nothing quantized", note]))
    return {**figures, "bytes": folder_bytes(output.parent), "quantized_nodes": nodes, "note": note}


# ----------------------------------------------------------------------------- accuracy and speed


def task_speed(payload: Figures) -> Figures:
    """Speed of each file against the first one: interleaved runs on inputs of the metric's data.

    A round runs every file once over the same feeds, in turn. With one thread the clock is the
    process's CPU time, which other work on the machine disturbs little; otherwise it is wall time.
    Each file's figure is the median over rounds of (seconds of the first file / its own seconds).
    """
    zoo_module(payload["zoo"], "evaluate")
    feeds = list(itertools.islice(speed_feeds(payload["zoo"], payload["model"]), 4))
    sessions: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for variant, path in payload["paths"].items():
        try:
            sessions[variant] = timed_session(path, payload["threads"])
            sessions[variant].run(None, feeds[0])
        except Exception as error:
            sessions.pop(variant, None)
            errors[variant] = shorten(str(error))
    reference = next(iter(payload["paths"]))

    def run_feeds(variant: str) -> None:
        for feed in feeds:
            sessions[variant].run(None, feed)

    calls = {variant: partial(run_feeds, variant) for variant in sessions}
    taken = turns(calls, threads=payload["threads"], seconds=payload["budget"], fewest=9)
    seconds = {variant: [value / len(feeds) for value in row] for variant, row in taken.items()}
    base = np.array(seconds[reference])
    return {
        "ms": {variant: 1000 * median(values) for variant, values in seconds.items()},
        "speed": {variant: median(list(base / np.array(values))) for variant, values in seconds.items()},
        "rounds": len(base),
        "errors": errors,
    }


def speed_feeds(zoo: str, name: str) -> Iterator[Feed]:
    """Single inputs as the metric feeds them (batches where one input would take microseconds)."""
    inputs = zoo_module(zoo, "inputs")
    if name in inputs.IMAGENET_INPUT:
        for image, _ in inputs.imagenet_rows("dev", 4):
            yield {"input": inputs.IMAGENET_INPUT[name](image)[None]}
    elif name == "yolov8n":
        for image, _ in inputs.coco_images("val2017", 2):
            yield {"images": inputs.letterbox(image)[0]}
    elif name == "fashion_cnn":
        yield {"input": inputs.fashion_samples("test", 32)[0]}
    elif name in inputs.ENCODER_MAX_LENGTH:
        texts = [row[0] for row in (inputs.sts_rows() if "l6" in name else inputs.sst2_rows())[:64]]
        texts.sort(key=len)
        for start in (16, 40):
            yield inputs.encode(inputs.tokenizer(name), texts[start : start + 8])
    elif name == "smollm2_135m":
        yield {"input_ids": inputs.wikitext_windows("test", 1)[0]}
    elif name == "ppocrv4_rec":
        for seed, line in enumerate(inputs.text_lines(4, seed=0)):
            yield {"x": inputs.ocr_input(inputs.render(line, seed))}
    elif name == "ppocrv4_det":
        for seed, (photo, _) in enumerate(inputs.coco_images("val2017", 2)):
            yield {"x": inputs.ocr_input(inputs.text_scene(photo, seed)[0])}
    elif name.startswith("silero"):
        clip = inputs.speech_clip("test")[: 4 * inputs.VAD_WINDOW]
        state = np.zeros((2, 1, 128), np.float32)
        for feed, _ in inputs.vad_feeds(lambda feed: (np.zeros(1, np.float32), state), clip):
            yield feed
    elif name == "magika":
        for file, _ in inputs.filetype_rows("test")[:4]:
            yield {"bytes": inputs.magika_input(file)}
    else:
        raise ValueError(f"no inputs for {name!r}")
