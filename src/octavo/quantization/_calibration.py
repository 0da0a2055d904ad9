"""Ranges for a plan: from a cache, from a calibrator, or from one pass over what the plan asks for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from octavo import calibration
from octavo.algorithms import steps as stepping
from octavo.core.stats import Range
from octavo.model.files import io
from octavo.pipeline.resolve import float_steps
from octavo.quantization import _work, calibrate
from octavo.quantization._errors import OptionError, QuantizationWarning
from octavo.quantization._models import model_has_external_data
from octavo.quantization._readers import twice
from octavo.quantization._tensors_data import TensorsData, load_tensors_data, narrow, save_tensors_data
from octavo.quantization.translate import Calibration

_ARGUMENTS = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}


def as_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the calibrator's arguments under their keys in ``extra_options``."""
    return {option: arguments[name] for name, option in _ARGUMENTS.items() if name in arguments}


def proto_of(source: _work.Source) -> tuple[onnx.ModelProto, bool]:
    """Return the structure of a model, and whether its weights lie beside it."""
    if isinstance(source, onnx.ModelProto):
        inline = sum(len(t.raw_data) for t in source.graph.initializer)
        return source, any(t.external_data for t in source.graph.initializer) or inline > io.EXTERNAL_ABOVE
    return io.read_proto(source), model_has_external_data(Path(source))


def smoothed(job: _work.Job, reader: Any, providers: Sequence[str] | None) -> tuple[_work.Job, Any]:
    """The job with the steps of its recipe taken, planned anew; and a reader that has all samples left."""
    chosen = stepping.steps(job.recipe.steps)
    if not chosen:
        return job, reader
    if reader is None:
        raise OptionError(
            "SmoothQuant has to see the model at work, and a calibration cache holds ranges only; give a"
            " calibration_data_reader too."
        )
    first, second = twice(reader)
    subject = stepping.Subject(job.model, job.recipe, job.plan)
    float_steps(subject, chosen, first, _work.calibration_run(providers))
    return _work.planned(job.model, job.settings), second


def ranges_for(
    job: _work.Job, reader: Any, providers: Sequence[str] | None, cache: str | Path | None
) -> tuple[_work.Job, dict[str, Range]]:
    """Return the job (planned anew around what has no range) and the range of each tensor it asks for."""
    wanted = job.settings.calibration
    found = _cached(job, reader, cache)
    if found is None and cache is None and _work.plain_extremes(wanted):
        return _work.measured(job, reader, providers)
    if found is None:
        found = calibrated(job, wanted, reader, providers)
        if cache is not None:
            outer = {inner: name for name, inner in job.settings.names.inner.items()}
            named = TensorsData(wanted.method, {outer.get(n, n): data for n, data in found.items()})
            save_tensors_data(named, cache, smooth_quant=bool(job.recipe.steps))
    job = _work.fitted(job, found)
    return job, _work.ranged(job, found)


def _cached(job: _work.Job, reader: Any, cache: str | Path | None) -> TensorsData | None:
    """Return the ranges of a cache; None where there is none, or it is of a model smoothed otherwise."""
    if cache is None or not Path(cache).is_file():
        return None
    found, method = load_tensors_data(cache), job.settings.calibration.method
    if found.calibration_method is not method:
        raise OptionError(
            f"The calibration cache {cache} was made with {found.calibration_method.name}, not with"
            f" {method.name}; delete it, or change calibrate_method."
        )
    was, smooth = bool(getattr(found, "smooth_quant", False)), bool(job.recipe.steps)
    if was == smooth:
        if clipped := narrow(found):
            warnings.warn(calibration.narrow_ranges_note(clipped), QuantizationWarning, stacklevel=4)
        return found
    said = f"The calibration cache {cache} was made with smooth_quant={was}, and smooth_quant={smooth} now"
    if reader is None:
        raise OptionError(f"{said}: give a calibration_data_reader, from which the ranges are found again.")
    warnings.warn(
        f"{said}: the model is calibrated again, and the cache is written anew.",
        QuantizationWarning,
        stacklevel=4,
    )
    return None


def calibrated(
    job: _work.Job, wanted: Calibration, reader: Any, providers: Sequence[str] | None
) -> TensorsData:
    """Return what a calibrator finds, for all tensors at the requested op types."""
    calibrator = calibrate.calibrator_of(
        wanted.method, wanted.options, io.to_proto(job.model), job.recipe.op_types
    )
    if isinstance(calibrator, calibrate.HistogramCalibrater) and job.recipe.activations is not None:
        calibrator.collector.qtype = job.recipe.activations.qtype
    calibrator.set_execution_providers(providers or calibrate.CPU)
    for one in _work.in_strides(reader, wanted.stride):
        calibrator.collect_data(one)
    return calibrator.compute_data()
