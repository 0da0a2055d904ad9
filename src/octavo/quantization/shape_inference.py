"""``quant_pre_process``: a model made ready for quantization, under its stock name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx import ModelProto

from octavo.errors import RecipeError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.prepare import PrepareOptions, prepare, shapes
from octavo.quantization._models import save_prepared
from octavo.quantization._names import elsewhere
from octavo.reporting.text import clean

__all__ = ["quant_pre_process"]

_LOG = logging.getLogger("octavo.quantization")
_INT_MAX = 2**31 - 1  # the default of stock
_LEAST_OPSET = 11  # older models are raised to it, as stock does


def quant_pre_process(
    input_model: str | Path | ModelProto | None = None,
    output_model_path: str | Path | None = None,
    skip_optimization: bool = False,
    skip_onnx_shape: bool = False,
    skip_symbolic_shape: bool = False,
    auto_merge: bool = False,
    int_max: int = _INT_MAX,
    guess_output_rank: bool = False,
    verbose: int = 0,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    **deprecated_kwargs: Any,
) -> None:
    """Infer shapes, let the runtime optimize, and write the model; opsets below 11 are raised to it.

    Symbolic inference runs where ONNX's own leaves ranks unknown, or where one of its settings
    (``auto_merge``, ``int_max``, ``guess_output_rank``) was chosen. What failed is logged as a warning.
    """
    source = _source(input_model, deprecated_kwargs)
    if output_model_path is None:
        raise RecipeError("There is no place for the prepared model; give output_model_path.")
    model = io.load(source)
    report = prepare(
        model,
        PrepareOptions(
            symbolic_shapes=False,
            runtime_optimization=not skip_optimization,
            onnx_shapes=not skip_onnx_shape,
            fold_batch_norm=not skip_optimization,
            fold_constants=not skip_optimization,
            fuse=False,
            opset=_LEAST_OPSET if query.opset(model) < _LEAST_OPSET else None,
        ),
    )
    notes = list(report.notes)
    settings = {"auto_merge": auto_merge, "int_max": int_max, "guess_output_rank": guess_output_rank}
    chosen = settings != {"auto_merge": False, "int_max": _INT_MAX, "guess_output_rank": False}
    if not skip_symbolic_shape and (chosen or shapes.lacks_ranks(model)):
        notes += shapes.infer_symbolically(model, {**settings, "verbose": verbose})[1]
    for note in notes:
        _LOG.warning("%s", clean(note, 800))
    model.metadata_props["onnx.quant.pre_process"] = "onnxruntime.quant"
    save_prepared(
        model,
        output_model_path,
        save_as_external_data,
        external_data_location,
        external_data_size_threshold,
        all_tensors_to_one_file,
    )


def _source(given: str | Path | ModelProto | None, older: dict[str, Any]) -> io.ModelSource | ir.Model:
    unknown = sorted(set(older) - {"input_model_path"})
    if unknown:
        raise TypeError(f"quant_pre_process has no argument {unknown[0]!r}.")
    found = given if given is not None else older.get("input_model_path")
    if found is None:
        raise RecipeError("There is no model to prepare; give input_model.")
    return found


__getattr__ = elsewhere(__name__)
