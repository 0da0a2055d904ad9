"""``quantize_static``, ``quantize_dynamic`` and ``quantize``: stock's arguments, Octavo's core."""

from __future__ import annotations

import copy
import inspect
import logging
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx

from octavo.core.lazy import uncollected
from octavo.core.recipe import Style
from octavo.model.graph.operators import CONVERSIONS
from octavo.quantization import _calibration, _overrides, _work, registry, translate
from octavo.quantization._calibrater import usable_providers
from octavo.quantization._configs import DynamicQuantConfig, QuantConfig, StaticQuantConfig
from octavo.quantization._errors import OptionError, QuantizationWarning, as_stock
from octavo.quantization._models import get_opset_version
from octavo.quantization._names import elsewhere
from octavo.quantization._overrides import Names
from octavo.quantization._types import (
    EIGHT_BITS,
    FOUR_BITS,
    SIXTEEN_BITS,
    CalibrationMethod,
    QuantFormat,
    QuantType,
)
from octavo.quantization._work import Source
from octavo.quantization.translate import Calibration, Request

_LOG = logging.getLogger("octavo.quantization")
_FLOAT8 = QuantType.QFLOAT8E4M3FN


def get_qdq_config(
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: Any,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibrate_args: dict[str, Any] | None = None,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QInt8,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    keep_removable_activations: bool = False,
    min_real_range: float | None = None,
    tensor_quant_overrides: dict[str, list[dict[str, Any]]] | None = None,
    calibration_providers: Sequence[str] | None = None,
    op_types_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | Callable[[onnx.ModelProto, onnx.NodeProto], bool] | None = None,
    extra_options: dict[str, Any] | None = None,
) -> StaticQuantConfig:
    """Return a configuration that quantizes every operator of a model, or those requested, in QDQ."""
    model, external = _calibration.proto_of(model_input)
    activation, weight = QuantType.of(activation_type), QuantType.of(weight_type)
    overrides = copy.deepcopy(tensor_quant_overrides or {})
    if callable(nodes_to_exclude):
        excluded = [node.name for node in model.graph.node if nodes_to_exclude(model, node)]
    else:
        excluded = list(nodes_to_exclude or ())
    chosen = {node.op_type for node in model.graph.node if node.name not in excluded}
    options = {
        "MinimumRealRange": min_real_range,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True,
        "TensorQuantOverrides": overrides,
        **_calibration.as_options(calibrate_args or {}),
    }
    types = {activation, weight, *_overrides.types(overrides)}
    if get_opset_version(model) < 21 and types & FOUR_BITS and not types & SIXTEEN_BITS:
        options["UseQDQContribOps"] = True  # 16 bits raise the model to an opset whose own operators take 4
    options.update(extra_options or {})
    return StaticQuantConfig(
        calibration_data_reader,
        calibrate_method=calibrate_method,
        quant_format=QuantFormat.QDQ,
        activation_type=activation,
        weight_type=weight,
        op_types_to_quantize=op_types_to_quantize or sorted(chosen - {"Cast", *CONVERSIONS}),
        nodes_to_exclude=excluded,
        per_channel=per_channel,
        reduce_range=reduce_range,
        use_external_data_format=external,
        calibration_providers=calibration_providers,
        extra_options=options,
    )


def check_static_quant_arguments(
    quant_format: QuantFormat, activation_type: QuantType, weight_type: QuantType
) -> None:
    """Raise where the types do not go together; say where they make a slow model."""
    activation_type, weight_type = QuantType.of(activation_type), QuantType.of(weight_type)
    quant_format = QuantFormat.of(quant_format)
    if activation_type is QuantType.QInt8 and weight_type is QuantType.QUInt8:
        raise OptionError("QInt8 activations with QUInt8 weights have no kernel; choose QUInt8 activations.")
    if (activation_type is _FLOAT8) != (weight_type is _FLOAT8):
        raise OptionError(
            "QFLOAT8E4M3FN goes with itself; choose it for activations and weights, or for neither."
        )
    if quant_format is not QuantFormat.QDQ:
        for kind in (activation_type, weight_type):
            if kind not in {*EIGHT_BITS, _FLOAT8}:
                raise OptionError(
                    f"{kind} exists in QDQ only; choose quant_format=QuantFormat.QDQ, or an 8-bit type."
                )
    if quant_format is QuantFormat.QOperator and (activation_type, weight_type) == (QuantType.QInt8,) * 2:
        _LOG.warning(
            "QInt8 activations in QOperator are slow on x86-64; choose activation_type=QuantType.QUInt8."
        )


def quantize_static(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    calibration_data_reader: Any = None,
    quant_format: QuantFormat = QuantFormat.QDQ,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    activation_type: QuantType = QuantType.QInt8,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    calibration_providers: Sequence[str] | None = None,
    extra_options: dict[str, Any] | None = None,
    calibration_cache_path: str | Path | None = None,
) -> None:
    """Quantize weights and, by calibration, activations; write the result to ``model_output``."""
    activation_type, weight_type = QuantType.of(activation_type), QuantType.of(weight_type)
    quant_format = QuantFormat.of(quant_format)
    calibrate_method = CalibrationMethod.of(calibrate_method)
    translate.warn_of_unknown(extra_options, stacklevel=2)
    calibration_providers = usable_providers(calibration_providers, stacklevel=2)
    cached = calibration_cache_path is not None and Path(calibration_cache_path).is_file()
    _refuse_no_data(calibration_data_reader, calibration_cache_path, cached)
    if (activation_type is _FLOAT8) and calibrate_method is not CalibrationMethod.Distribution:
        raise OptionError("QFLOAT8E4M3FN needs calibrate_method=CalibrationMethod.Distribution.")
    check_static_quant_arguments(quant_format, activation_type, weight_type)
    _advise_static(quant_format, activation_type, weight_type, bool((extra_options or {}).get("BlockSize")))
    request = Request(
        Style.QDQ if quant_format is QuantFormat.QDQ else Style.QOPERATOR,
        activation_type,
        weight_type,
        per_channel,
        reduce_range,
        tuple(op_types_to_quantize or registry.static_op_types()),
        tuple(nodes_to_quantize or ()),
        tuple(nodes_to_exclude or ()),
        extra_options,
    )
    with as_stock(), uncollected():
        _work.refuse_output(model_output, model_input, calibration_data_reader, calibration_cache_path)
        model = _work.opened(model_input, request, model_output)
        _work.check_overrides(model, extra_options, activation_type)
        settings = translate.settings(request, Names(model), Calibration(calibrate_method))
        job = _work.planned(model, settings)
        job, reader = _calibration.smoothed(job, calibration_data_reader, calibration_providers)
        job, ranges = _calibration.ranges_for(job, reader, calibration_providers, calibration_cache_path)
        _work.save(_work.written(job, ranges), model_output, use_external_data_format)


def quantize_dynamic(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    op_types_to_quantize: Sequence[str] | None = None,
    per_channel: bool = False,
    reduce_range: bool = False,
    weight_type: QuantType = QuantType.QInt8,
    nodes_to_quantize: Sequence[str] | None = None,
    nodes_to_exclude: Sequence[str] | None = None,
    use_external_data_format: bool = False,
    extra_options: dict[str, Any] | None = None,
) -> None:
    """Quantize weights, and activations while the model runs; write the result to ``model_output``."""
    weight_type = QuantType.of(weight_type)
    translate.warn_of_unknown(extra_options, stacklevel=2)
    if weight_type not in EIGHT_BITS:
        raise OptionError(
            f"Dynamic quantization has kernels for 8-bit weights, not for {weight_type}; choose QInt8 or"
            " QUInt8."
        )
    request = Request(
        Style.INTEGER,
        QuantType.QUInt8,
        weight_type,
        per_channel,
        reduce_range,
        tuple(op_types_to_quantize or registry.dynamic_op_types()),
        tuple(nodes_to_quantize or ()),
        tuple(nodes_to_exclude or ()),
        extra_options,
        constant_weights_only=True,
    )
    with as_stock(), uncollected():
        model = _work.opened(model_input, request, model_output)
        _work.check_overrides(model, extra_options, QuantType.QUInt8)
        job = _work.planned(model, translate.settings(request, Names(model)))
        _advise_dynamic(job)
        _work.save(_work.written(job, {}), model_output, use_external_data_format)


def quantize(*args: Any, **kwargs: Any) -> onnx.ModelProto | None:
    """``quantize(model_input, model_output, quant_config)`` writes a file, as a configuration says.

    ``quantize(model, per_channel=…, quantization_mode=…, static=…)``, the first generation, returns a model:
    :func:`octavo.quantization.old_api.quantize`. What it is called with tells the two apart.
    """
    given = {"model_input", "model_output", "quant_config"} & kwargs.keys()
    if given or (len(args) > 1 and isinstance(args[1], str | os.PathLike)):
        _by_config(*args, **kwargs)
        return None
    from octavo.quantization.old_api import quantize as first_generation

    return first_generation(*args, **kwargs)


def _by_config(
    model_input: str | Path | onnx.ModelProto, model_output: str | Path, quant_config: QuantConfig
) -> None:
    """Quantize as a configuration says: static, dynamic, or weights alone."""
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(
            model_input,
            model_output,
            quant_config.calibration_data_reader,
            calibrate_method=quant_config.calibrate_method,
            quant_format=quant_config.quant_format,
            activation_type=quant_config.activation_type,
            calibration_providers=quant_config.calibration_providers,
            **_shared(quant_config),
        )
    elif isinstance(quant_config, DynamicQuantConfig):
        quantize_dynamic(model_input, model_output, **_shared(quant_config))
    elif hasattr(quant_config, "algorithm"):
        _weights_alone(model_input, model_output, quant_config)
    else:
        raise TypeError(
            "quant_config is a StaticQuantConfig, a DynamicQuantConfig or a WeightOnlyQuantConfig, not a"
            f" {type(quant_config).__name__}."
        )


def _shared(config: Any) -> dict[str, Any]:
    names = (
        "weight_type", "op_types_to_quantize", "nodes_to_quantize", "nodes_to_exclude", "per_channel",
        "reduce_range", "use_external_data_format", "extra_options",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}


def _weights_alone(model_input: Source, model_output: str | Path, config: Any) -> None:
    from octavo.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    model = model_input if isinstance(model_input, onnx.ModelProto) else str(model_input)
    quantizer = MatMulNBitsQuantizer(model, algo_config=config)
    quantizer.process()
    quantizer.model.save_model_to_file(str(model_output), True)


def _refuse_no_data(reader: Any, cache: str | Path | None, cached: bool) -> None:
    if reader is not None or cached:
        return
    if cache is not None:
        raise FileNotFoundError(
            f"There is no calibration cache at {cache}, and no calibration_data_reader was given."
        )
    raise OptionError(
        "Static quantization needs a calibration_data_reader, or a calibration_cache_path that exists."
    )


def _advise_static(
    quant_format: QuantFormat, activation_type: QuantType, weight_type: QuantType, blocks: bool
) -> None:
    if quant_format is QuantFormat.QDQ and blocks and {activation_type, weight_type} <= set(EIGHT_BITS):
        warnings.warn(
            "ONNX Runtime's default session refuses 8-bit weights in blocks beside 8-bit activations: load"
            " the model with graph_optimization_level ORT_ENABLE_BASIC, or choose weight_type=QInt4.",
            QuantizationWarning,
            stacklevel=3,
        )
    if quant_format is QuantFormat.QDQ and activation_type is QuantType.QInt8:
        warnings.warn(
            "QInt8 activations run slower than float for many models on x86-64; choose"
            " activation_type=QuantType.QUInt8.",
            QuantizationWarning,
            stacklevel=3,
        )


def _advise_dynamic(job: _work.Job) -> None:
    if any(node.op_type == "Conv" for node in job.plan.nodes.values()):
        warnings.warn(
            "A Conv whose input is quantized while the model runs is several times slower than float; leave"
            " Conv out with op_types_to_quantize=['MatMul', 'Attention', 'LSTM'], or quantize statically.",
            QuantizationWarning,
            stacklevel=3,
        )


quantize.__signature__ = inspect.signature(_by_config)  # type: ignore[attr-defined]

__all__ = [
    "DynamicQuantConfig",
    "QuantConfig",
    "StaticQuantConfig",
    "check_static_quant_arguments",
    "get_qdq_config",
    "quantize",
    "quantize_dynamic",
    "quantize_static",
]

__getattr__ = elsewhere(__name__)
