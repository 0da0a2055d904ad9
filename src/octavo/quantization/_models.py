"""Model files and metadata under their stock names. Nothing is ever written beside the model."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
from onnx import ModelProto, TensorProto

from octavo.model.files import io
from octavo.model.graph import protos
from octavo.model.prepare import raise_opset, shapes
from octavo.model.runtime import session
from octavo.quantization import _overrides
from octavo.quantization._errors import OptionError
from octavo.quantization._types import QuantType

_LOG = logging.getLogger("octavo.quantization")
_MAKER = "onnxruntime.quant"  # the value that other tools look for
_PREPARED, _INFERRED = "onnx.quant.pre_process", "onnx.infer"


def model_has_external_data(model_path: str | Path) -> bool:
    """Whether weights of the model lie in other files."""
    proto = io.read_proto(model_path)
    return any(t.data_location == TensorProto.EXTERNAL for t in protos.all_tensors(proto.graph))


def optimize_model(model_path: str | Path, opt_model_path: str | Path) -> None:
    """Write the model as the runtime's basic optimization leaves it."""
    io.save(session.optimized(Path(model_path), "basic"), opt_model_path)


def save_prepared(
    model: ir.Model, output: str | Path, beside: bool, location: str | None, least: int, one_file: bool
) -> None:
    """Write a model; weights of at least so many bytes beside it on request, in one file or one each."""
    if beside:
        one_file = one_file or location is not None
        io.save(model, output, external_data=True, location=location, least=least, one_file=one_file)
    else:
        io.save(model, output)


def _with_metadata(model: ModelProto, key: str) -> None:
    kept = {entry.key: entry.value for entry in model.metadata_props}
    onnx.helper.set_model_props(model, {**kept, key: _MAKER})


def add_pre_process_metadata(model: ModelProto) -> None:
    """Mark a model as prepared."""
    _with_metadata(model, _PREPARED)


def add_infer_metadata(model: ModelProto) -> None:
    """Mark a model as one with inferred shapes."""
    _with_metadata(model, _INFERRED)


def _has_metadata(model: ModelProto, key: str) -> bool:
    return any(entry.key == key and entry.value == _MAKER for entry in model.metadata_props)


def model_has_pre_process_metadata(model: ModelProto) -> bool:
    """Whether a model was prepared."""
    return _has_metadata(model, _PREPARED)


def model_has_infer_metadata(model: ModelProto) -> bool:
    """Whether a model was marked as one with inferred shapes."""
    return _has_metadata(model, _INFERRED)


def _inferred(source: io.ModelSource) -> ModelProto:
    model = io.load(source)
    shapes.infer(model)
    proto = io.to_proto(model)
    add_infer_metadata(proto)
    return proto


def load_model_with_shape_infer(model_path: str | Path) -> ModelProto:
    """Return the model of a file with all its weights and inferred shapes."""
    return _inferred(Path(model_path))


def save_and_reload_model_with_shape_infer(model: ModelProto) -> ModelProto:
    """A copy of a model with inferred shapes; no file is involved, and the caller's model stays as it is."""
    return _inferred(model)


def get_opset_version(model: ModelProto) -> int:
    """Return the version of the default opset."""
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) != 1:
        raise OptionError(f"The model imports the default opset {len(versions)} times; it has to be once.")
    return int(versions[0])


def update_opset_version(
    model: ModelProto,
    weight_type: QuantType,
    activation_type: QuantType | None = None,
    tensor_quant_overrides: Mapping[str, Iterable[Mapping[str, Any]]] | None = None,
    block_size: int = 0,
) -> ModelProto:
    """The model at an opset that has what is requested: 11, for float8 19, for 16 bits and blocks 21."""
    now = get_opset_version(model)
    given = {QuantType.of(kind) for kind in (weight_type, activation_type) if kind is not None}
    types = given | _overrides.types(tensor_quant_overrides)
    wanted, why = 11 if now < 10 else now, "quantization"
    if wanted < 19 and QuantType.QFLOAT8E4M3FN in types:
        wanted, why = 19, "float8 quantization"
    if wanted < 21 and types & {QuantType.QInt16, QuantType.QUInt16}:
        wanted, why = 21, "16-bit quantization"
    if wanted < 21 and block_size:
        wanted, why = 21, "quantization in blocks"
    if wanted <= now:
        return model
    _LOG.warning("The model has opset %d and %s needs %d; it is raised.", now, why, wanted)
    return raised(model, wanted)


def raised(model: ModelProto, opset: int) -> ModelProto:
    """Return a copy of the model at a newer default opset."""
    loaded: ir.Model = io.load(model)
    shapes.infer(loaded)
    raise_opset(loaded, opset)
    return io.to_proto(loaded)
