"""``qnn_preprocess_model``: operators that QNN runs as one, and borders as the device wants them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import onnx

from octavo.model.files import io
from octavo.model.graph.scopes import remove_unused
from octavo.model.prepare import for_qnn, shapes
from octavo.quantization._errors import OptionError, as_stock
from octavo.quantization._models import save_prepared
from octavo.quantization._names import elsewhere
from octavo.quantization.execution_providers.qnn.fusion_lpnorm import FusionLpNormalization
from octavo.quantization.execution_providers.qnn.fusion_spacetodepth import FusionSpaceToDepth
from octavo.quantization.fusions import FusionGelu, FusionLayerNormalization
from octavo.quantization.onnx_model import ONNXModel

_LOG = logging.getLogger("octavo.quantization")
_LAYER_NORM = 17  # the first opset that has LayerNormalization
_PREFIX = "qnn_preproc_node_"


def qnn_preprocess_model(
    model_input: str | Path | onnx.ModelProto,
    model_output: str | Path,
    exclude_initializer_from_input: bool = False,
    fuse_layernorm: bool = False,
    save_as_external_data: bool = False,
    all_tensors_to_one_file: bool = False,
    external_data_location: str | None = None,
    external_data_size_threshold: int = 1024,
    external_data_convert_attribute: bool = False,
    inputs_to_make_channel_last: list[str] | None = None,
    outputs_to_make_channel_last: list[str] | None = None,
    dynamic_input_shapes: list[tuple[str, str]] | None = None,
) -> bool:
    """Write the model with what QNN likes better; returns whether there was anything to change.

    ``dynamic_input_shapes`` are pairs of an input's name and its shape, written ``"1,3,224,224"``. Attributes
    are never stored outside of the model, whatever ``external_data_convert_attribute`` says.
    """
    with as_stock():
        loaded = io.load(model_input)
        borders = bool(inputs_to_make_channel_last or outputs_to_make_channel_last or dynamic_input_shapes)
        for_qnn.fix_shapes(loaded, [(name, _dims(name, text)) for name, text in dynamic_input_shapes or ()])
        shapes.infer(loaded)  # while the nodes are there that inference knows: it stops at fused ones
        for_qnn.inputs_channels_last(loaded, inputs_to_make_channel_last or ())
        for_qnn.outputs_channels_last(loaded, outputs_to_make_channel_last or ())
        model = ONNXModel(io.to_proto(loaded))
        changed = borders | _fused(model, fuse_layernorm) | _named(model)
        if exclude_initializer_from_input:
            changed |= _plain_inputs(model)
        if not changed:
            return False
        written = io.load(model.model)
        remove_unused(written)
        save_prepared(
            written,
            model_output,
            save_as_external_data,
            external_data_location,
            external_data_size_threshold,
            all_tensors_to_one_file,
        )
    return True


def _dims(name: str, text: str | Sequence[int]) -> list[int]:
    parts = text.split(",") if isinstance(text, str) else list(text)
    try:
        found = [int(part) for part in parts]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise OptionError(
            f"The shape {text!r} of input {name!r} is not a list of positive numbers; write '1,3,224,224'."
        )
    return found


def _fused(model: ONNXModel, layer_norm: bool) -> bool:
    passes = [FusionGelu(model), FusionLpNormalization(model), FusionSpaceToDepth(model)]
    changed = [fusion.apply() for fusion in passes]
    if layer_norm:
        version = next(
            (entry.version for entry in model.opset_import() if entry.domain in ("", "ai.onnx")), 0
        )
        if version < _LAYER_NORM:
            _LOG.warning(
                "LayerNormalization needs opset %d, and the model has %d; it was not fused.",
                _LAYER_NORM,
                version,
            )
        else:
            changed.append(FusionLayerNormalization(model).apply())
    return any(changed)


def _named(model: ONNXModel) -> bool:
    """Give each node without a name one: settings for single nodes need it."""
    taken, number, changed = {node.name for node in model.nodes()}, 0, False
    for node in model.nodes():
        if not node.name:
            while f"{_PREFIX}{number}" in taken:
                number += 1
            node.name, number, changed = f"{_PREFIX}{number}", number + 1, True
    return changed


def _plain_inputs(model: ONNXModel) -> bool:
    """Take initializers out of the inputs."""
    stored, inputs = model.get_initializer_name_set(), model.graph().input
    kept = [value for value in inputs if value.name not in stored]
    changed = len(kept) < len(inputs)
    if changed:
        del inputs[:]
        inputs.extend(kept)
    return changed


__getattr__ = elsewhere(__name__)
