"""Where quantization loses: weights and activations of a float model beside those of its QDQ twin.

The measure is the signal to quantization noise ratio, ``20 log10(‖x‖ / ‖x − y‖)`` in dB; higher is better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.calibration.observe.output_models import with_rows
from octavo.comparison import constant_values
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import shapes
from octavo.model.runtime.session import Session
from octavo.quantization._calibrater import float_tensors, usable_providers
from octavo.quantization._names import elsewhere
from octavo.quantization._values import (
    DEQUANT_OP_NAME,
    DEQUANT_OUTPUT_SUFFIX,
    QUANT_INPUT_SUFFIX,
    QUANT_OP_NAME,
    TENSOR_NAME_QUANT_SUFFIX,
)

__all__ = [
    "DEQUANT_OP_NAME", "DEQUANT_OUTPUT_SUFFIX", "QUANT_INPUT_SUFFIX", "TENSOR_NAME_QUANT_SUFFIX",
    "collect_activations", "compute_activation_error", "compute_signal_to_quantization_noice_ratio",
    "compute_weight_error", "create_activation_matching", "create_weight_matching",
    "modify_model_output_intermediate_tensors",
]  # fmt: skip

Array: TypeAlias = npt.NDArray[Any]
Activations: TypeAlias = Mapping[str, Sequence[Array]]

_SAVED = "_ReshapedSavedOutput"
_LEAST_NORM = float(np.finfo(np.float64).eps)


def modify_model_output_intermediate_tensors(
    input_model_path: str | Path,
    output_model_path: str | Path,
    op_types_for_saving: Sequence[str] | None = None,
    save_as_external_data: bool = False,
) -> None:
    """Write a model that also returns its float tensors, flattened: all, or those at some operators."""
    model = io.load(Path(input_model_path))
    shapes.infer(model)
    tensors = {n: int(k) for n, k in float_tensors(model, op_types_for_saving).items()}
    augmented = io.load(with_rows(io.to_proto(model), tensors, _SAVED))
    io.save(augmented, output_model_path, external_data=True if save_as_external_data else None)


def collect_activations(
    augmented_model: str | Path,
    input_reader: Any,
    session_options: Any = None,
    execution_providers: Sequence[str] | None = None,
) -> dict[str, list[Array]]:
    """Run such a model on all samples; returns the values of each tensor, one array for each sample."""
    session = Session.open(
        augmented_model,
        providers=usable_providers(execution_providers, stacklevel=2),
        optimize=False,
        native=session_options,
    )
    saved = [name for name in session.output_names if name.endswith(_SAVED)]
    found: dict[str, list[Array]] = {name.removesuffix(_SAVED): [] for name in saved}
    for sample in iter(input_reader.get_next, None):
        for name, array in session.run(sample, saved).items():
            found[name.removesuffix(_SAVED)].append(array)
    return found


def create_activation_matching(
    qdq_activations: Activations, float_activations: Activations | None = None
) -> dict[str, dict[str, Sequence[Array]]]:
    """For each quantized tensor its values before and after the round trip, and those of the float model."""
    found: dict[str, dict[str, Sequence[Array]]] = {}
    for name in qdq_activations:
        if name.endswith(QUANT_INPUT_SUFFIX):
            tensor = name.removesuffix(QUANT_INPUT_SUFFIX)
            before, after = name, tensor
        elif name.endswith(DEQUANT_OUTPUT_SUFFIX):
            tensor = name.removesuffix(DEQUANT_OUTPUT_SUFFIX)
            before, after = tensor, name
        else:
            continue
        if before not in qdq_activations or after not in qdq_activations:
            continue
        found[tensor] = {"pre_qdq": qdq_activations[before], "post_qdq": qdq_activations[after]}
        if float_activations is not None and tensor in float_activations:
            found[tensor]["float"] = float_activations[tensor]
    return found


def create_weight_matching(
    float_model_path: str | Path, qdq_model_path: str | Path
) -> dict[str, dict[str, Array]]:
    """Each quantized weight and bias as the float model has it, and as it comes back from its integers."""
    plain, quantized = _normal(float_model_path), _normal(qdq_model_path)
    found: dict[str, dict[str, Array]] = {}
    for node in query.nodes(quantized):
        if node.op_type != DEQUANT_OP_NAME or not constant_values.is_constant(node.inputs[0]):
            continue
        name = _stored_name(node.inputs[0])
        value = plain.graph.initializers.get(name)
        back = constant_values.real(node.outputs[0])
        if value is None or value.const_value is None or back is None:
            continue
        array = np.asarray(value.const_value.numpy())
        if array.shape == back.shape and array.dtype.kind in "fV":
            found[name] = {"float": array, "dequantized": back}
    return found


def _normal(path: str | Path) -> ir.Model:
    model = io.load(Path(path))
    normalize(model)
    return model


def _stored_name(value: ir.Value | None) -> str:
    """Return the name that a quantized constant had in the float model."""
    while value is not None and (maker := value.producer()) is not None and maker.op_type == QUANT_OP_NAME:
        value = maker.inputs[0]
    return (value.name or "").removesuffix(TENSOR_NAME_QUANT_SUFFIX) if value is not None else ""


def compute_signal_to_quantization_noice_ratio(
    x: Sequence[Array] | Array, y: Sequence[Array] | Array
) -> float:
    """``20 log10(‖x‖ / ‖x − y‖)`` in dB, over all arrays where lists are given.

    Neither norm counts as less than float64 can tell from zero: without noise the ratio is large, but finite.
    """
    xs, ys = ([v] if isinstance(v, np.ndarray) else list(v) for v in (x, y))
    if len(xs) != len(ys):
        raise RuntimeError(f"{len(xs)} arrays can't be compared with {len(ys)}; give as many of both.")
    left, right = (np.concatenate([np.asarray(v, np.float64).ravel() for v in arrays]) for arrays in (xs, ys))
    signal, noise = (max(float(np.linalg.norm(v)), _LEAST_NORM) for v in (left, left - right))
    return 20.0 * math.log10(signal / noise)


def compute_weight_error(
    weights_match: Mapping[str, Mapping[str, Array]],
    err_func: Callable[[Array, Array], float] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, float]:
    """Return the error of each weight."""
    return {name: err_func(pair["float"], pair["dequantized"]) for name, pair in weights_match.items()}


def compute_activation_error(
    activations_match: Mapping[str, Mapping[str, Sequence[Array]]],
    err_func: Callable[
        [Sequence[Array], Sequence[Array]], float
    ] = compute_signal_to_quantization_noice_ratio,
) -> dict[str, dict[str, float]]:
    """``qdq_err``, of a tensor's own round trip, and ``xmodel_err``, all that came together on the way to it.

    The second needs the activations of the float model, and is left out for tensors without.
    """
    found: dict[str, dict[str, float]] = {}
    for name, match in activations_match.items():
        found[name] = {"qdq_err": err_func(match["pre_qdq"], match["post_qdq"])}
        if "float" in match:
            found[name]["xmodel_err"] = err_func(match["float"], match["post_qdq"])
    return found


__getattr__ = elsewhere(__name__)
