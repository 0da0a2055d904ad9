"""Ranges for a plan: from a cache, from a calibrator, or from one pass over what the plan asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from octavo import measuring, pipeline
from octavo.algorithms import steps as stepping
from octavo.core.stats import Range
from octavo.model import io
from octavo.quantization import _work, calibrate
from octavo.quantization._errors import OptionError
from octavo.quantization._models import model_has_external_data
from octavo.quantization._readers import twice
from octavo.quantization._tensors_data import TensorsData, load_tensors_data, save_tensors_data
from octavo.quantization.translate import Calibration

_ARGUMENTS = {
    "symmetric": "CalibTensorRangeSymmetric",
    "moving_average": "CalibMovingAverage",
    "averaging_constant": "CalibMovingAverageConstant",
    "max_intermediate_outputs": "CalibMaxIntermediateOutputs",
    "percentile": "CalibPercentile",
}


def as_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The calibrator's arguments under their keys in ``extra_options``."""
    return {option: arguments[name] for name, option in _ARGUMENTS.items() if name in arguments}


def proto_of(source: _work.Source) -> tuple[onnx.ModelProto, bool]:
    """The structure of a model, and whether its weights lie beside it."""
    if isinstance(source, onnx.ModelProto):
        inline = sum(len(t.raw_data) for t in source.graph.initializer)
        return source, any(t.external_data for t in source.graph.initializer) or inline > io.EXTERNAL_ABOVE
    return onnx.load(str(source), load_external_data=False), model_has_external_data(Path(source))


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
    pipeline.reworked(subject, chosen, first, measuring.Run(providers=providers, stride=1))
    return _work.planned(job.model, job.settings), second


def ranges_for(
    job: _work.Job, reader: Any, providers: Sequence[str] | None, cache: str | Path | None
) -> tuple[_work.Job, dict[str, Range]]:
    """The job (planned anew around what has no range) and the range of each tensor it asks for."""
    wanted = job.settings.calibration
    if cache is not None and Path(cache).is_file():
        found = load_tensors_data(cache)
        if found.calibration_method is not wanted.method:
            raise OptionError(
                f"The calibration cache {cache} was made with {found.calibration_method.name}, and"
                f" {wanted.method.name} is asked for; delete it, or change calibrate_method."
            )
        smooth = bool(job.recipe.steps)
        if bool(getattr(found, "smooth_quant", False)) != smooth:
            raise OptionError(
                f"The calibration cache {cache} was made with{'out' if smooth else ''} SmoothQuant, which"
                " changes ranges; delete it, or change the option."
            )
        job = _work.fitted(job, found)
        return job, _work.ranged(job, found)
    if cache is None and _work.plain_extremes(wanted):
        return _work.measured(job, reader, providers)
    found = calibrated(job, wanted, reader, providers)
    if cache is not None:
        save_tensors_data(found, cache, smooth_quant=bool(job.recipe.steps))
    job = _work.fitted(job, found)
    return job, _work.ranged(job, found)


def calibrated(
    job: _work.Job, wanted: Calibration, reader: Any, providers: Sequence[str] | None
) -> TensorsData:
    """What a calibrator finds, for all tensors at the op types asked for."""
    kind, defaults = calibrate._OPTIONS[wanted.method]
    options = {key: wanted.options.get(key, default) for key, default in defaults.items()}
    calibrator = kind(io.to_proto(job.model), job.recipe.op_types, **options)
    calibrator.set_execution_providers(providers or calibrate.CPU)
    if wanted.stride is None:
        calibrator.collect_data(reader)
        return calibrator.compute_data()
    count = len(reader)
    if wanted.stride < 1 or count % wanted.stride:
        raise OptionError(
            f"The reader has {count} samples, which strides of {wanted.stride} do not divide evenly."
        )
    for start in range(0, count, wanted.stride):
        reader.set_range(start_index=start, end_index=start + wanted.stride)
        calibrator.collect_data(reader)
    return calibrator.compute_data()
