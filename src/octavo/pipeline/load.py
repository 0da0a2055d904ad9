"""First stage: read a model, and refuse what can't be quantized or written before any work is done."""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from octavo.model.files import io
from octavo.model.graph import query
from octavo.pipeline.options import Run
from octavo.pipeline.prepare import prepare_name
from octavo.result import check_output


@dataclass(frozen=True)
class Loaded:
    """A model as it was read, what it was read from, and the bytes of its weights."""

    model: ir.Model
    source: io.ModelSource
    float_bytes: int


def load(source: io.ModelSource, run: Run) -> Loaded:
    """Read a model for this run."""
    run.progress("load", 0, 1)
    model = io.load(source)
    stats = run.observation.stats
    if stats is not None and stats.origin is not None:
        stats.origin.check_model(io.fingerprint(model), prepare_name(run.prepare), io.describe(model))
    query.refuse_unsupported(model)
    if run.destination.path is not None:
        check_output(model, run.destination.path)
    return Loaded(model, source, io.held_bytes(model))
