"""A quick look at speed, for a result that nothing else was tried beside."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from octavo.errors import ModelError, OctavoError
from octavo.model.files import io
from octavo.model.runtime.samples import sample_inputs, specs_of
from octavo.tuning.measure import speeds

SECONDS = 0.5
SAVED = 0.05  # of the bytes, or of the time: less is no gain


def quick_speed(
    model: io.ModelSource, other: str | Path | ir.Model, threads: int | None = None
) -> float | None:
    """Return how many times as fast the other is, on a made-up input; None where that can't be found out."""
    try:
        loaded = io.load(model)
        sample = sample_inputs(specs_of(loaded))
        source = Path(model) if isinstance(model, str | Path) else loaded
        made = other if isinstance(other, ir.Model) else Path(other)
        (found,) = speeds(source, [made], [sample], threads=threads, seconds=SECONDS)
    except OctavoError:
        return None
    return found.value if found.is_known else None


def refuse_no_gain(source: io.ModelSource, threads: int | None, made: ir.Model, float_bytes: int) -> None:
    """Raise for a model that was quantized without data and is neither smaller nor faster than float."""
    size = io.weight_bytes(made) / max(float_bytes, 1)
    if size <= 1 - SAVED:
        return
    speed = quick_speed(source, made, threads)
    if speed is None or speed > 1 + SAVED:
        return
    raise ModelError(
        f"{io.describe(io.load(source))} gains nothing without calibration: {size:.2f} × its size at"
        f" {speed:.2f} × its speed. Give data=… for static quantization; effort='plain' takes it as it is."
    )
