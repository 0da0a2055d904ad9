"""What all calibrators share: the model runs in Octavo's own session, one sample at a time."""

from __future__ import annotations

import abc
import itertools
import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import ModelProto, TensorProto, ValueInfoProto

from octavo.calibration.methods import need_of
from octavo.calibration.observe.collect import Collector
from octavo.core.scheme import Method, MinMax
from octavo.core.stats import Range, Stats
from octavo.data.feeds import checked
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import shapes
from octavo.model.runtime.session import Session, available_providers
from octavo.quantization._errors import QuantizationWarning, UnsupportedError
from octavo.quantization._models import add_infer_metadata
from octavo.quantization._tensors_data import TensorsData

CPU = ("CPUExecutionProvider",)


def usable_providers(given: Sequence[str] | None, *, stacklevel: int) -> list[str]:
    """Return the execution providers that the runtime has, else the CPU's, and warn of the others."""
    available = available_providers()
    names = [one if isinstance(one, str) else one[0] for one in given or CPU]
    usable = [name for name in names if name in available] or list(CPU)
    absent = [name for name in names if name not in available]
    if absent:
        warnings.warn(
            f"{', '.join(absent)} is not among the execution providers of the installed onnxruntime"
            f" ({', '.join(available)}); {', '.join(usable)} runs the model instead.",
            QuantizationWarning,
            stacklevel=stacklevel + 1,
        )
    return usable


def _loaded(source: Any) -> ir.Model:
    """Return a model with inferred shapes; large weights stay where they are."""
    if not isinstance(source, str | Path | ModelProto | ir.Model):
        raise ValueError(f"A calibrator takes the path of a model, not a {type(source).__name__}.")
    model = io.load(source)
    shapes.infer(model)
    return model


class CalibraterBase(abc.ABC):
    """Runs a model on samples and finds the range of each tensor of the chosen operators."""

    def __init__(
        self,
        model_path: str | Path | ModelProto | ir.Model,
        op_types_to_calibrate: Sequence[str] | None = None,
        augmented_model_path: str | Path = "augmented_model.onnx",
        symmetric: bool = False,
        use_external_data_format: bool = False,
        per_channel: bool = False,
    ) -> None:
        self._source = _loaded(model_path)
        self.op_types_to_calibrate = op_types_to_calibrate
        self.augmented_model_path = augmented_model_path
        self.symmetric = symmetric
        self.use_external_data_format = use_external_data_format
        self.per_channel = per_channel
        self.augment_model: ModelProto | None = None
        self.execution_providers: list[str] = list(CPU)
        self._collector: Collector | None = None
        self._normal: ir.Model | None = None
        self._samples = 0

    @cached_property
    def model(self) -> ModelProto:
        """Return the model with all its weights and inferred shapes."""
        proto = io.to_proto(self._source)
        add_infer_metadata(proto)
        return proto

    def set_execution_providers(self, execution_providers: Sequence[str] = CPU) -> None:
        """Choose what runs the model."""
        self.execution_providers = usable_providers(execution_providers, stacklevel=2)
        self.create_inference_session()

    def create_inference_session(self) -> None:
        """Load the model, without the runtime's rewriting, so that values are those of the graph as it is."""
        self.__dict__.pop("infer_session", None)
        self._normal = io.load(self._source)
        normalize(self._normal)
        known = {value.name for node in query.nodes(self._normal) for value in node.outputs}
        known |= {value.name for value in self._normal.graph.inputs}
        wanted = need_of(self._method())
        needs = {name: wanted for name in self._tensors if name in known}
        self._collector = Collector(self._normal, needs, few_samples=True, providers=self.execution_providers)

    @cached_property
    def infer_session(self) -> Any:
        """Return the runtime's own session of the model at ``augmented_model_path``, for subclasses."""
        path = str(self.augmented_model_path)
        return Session.open(path, providers=self.execution_providers, optimize=False).native

    @cached_property
    def _tensors(self) -> dict[str, ir.DataType]:
        """Return the tensors that are calibrated, and their types."""
        return float_tensors(self._source, self.op_types_to_calibrate)

    def _method(self) -> Method:
        return MinMax()

    def select_tensors_to_calibrate(self, model: ModelProto) -> tuple[set[str], dict[str, ValueInfoProto]]:
        """Return the float tensors at the chosen operators, and what the model says of its tensors."""
        names = tensors_to_calibrate(model, self.op_types_to_calibrate)
        return set(names), value_infos(model)

    def get_augment_model(self) -> ModelProto:
        """Return the model that also returns what is calibrated."""
        if self.augment_model is None:
            self.augment_model = self._augmented()
        return self.augment_model

    def augment_graph(self) -> None:
        """Write the model that also returns what is calibrated to ``augmented_model_path``."""
        model = io.load(self.get_augment_model())
        io.save(model, self.augmented_model_path, external_data=self.use_external_data_format or None)

    def _augmented(self) -> ModelProto:
        raise UnsupportedError(
            f"{type(self).__name__} has no augmented model; override augment_graph(), or derive from"
            " MinMaxCalibrater or HistogramCalibrater."
        )

    @abc.abstractmethod
    def collect_data(self, data_reader: Any) -> None:
        """Run the model on all samples of a reader, and remember what its tensors' values were."""

    @abc.abstractmethod
    def compute_data(self) -> TensorsData:
        """Return the range of each tensor."""

    def compute_range(self) -> TensorsData:
        """Return the same under its older name."""
        return self.compute_data()

    def _read(self, data_reader: Any) -> Iterator[dict[str, Any]]:
        """Yield the samples of a reader, each checked against the model's inputs; at least one."""
        if self._collector is None:
            self.create_inference_session()
        specs = self._collector.inputs if self._collector is not None else ()
        first = data_reader.get_next()
        if first is None:
            raise ValueError("No data is collected: the reader has no sample (left). Give a fresh reader.")
        for sample in itertools.chain([first], iter(data_reader.get_next, None)):
            yield checked(sample, specs, self._samples) if specs else sample
            self._samples += 1

    def _collect(self, samples: Iterable[dict[str, Any]]) -> Stats:
        if self._collector is None:
            self.create_inference_session()
        if not self._collector:
            for _ in samples:
                pass
            return Stats()
        return self._collector.collect(samples, self._samples)

    def _constants(self) -> dict[str, Range]:
        """Return the ranges of what Constant nodes give; these need no data."""
        if self._normal is None:
            return {}
        found: dict[str, Range] = {}
        for name in self._tensors:
            value = self._normal.graph.initializers.get(name)
            if value is not None and value.const_value is not None and value.const_value.size:
                array = value.const_value.numpy().astype(np.float64)
                found[name] = Range(float(array.min()), float(array.max()))
        return found

    def _dtype(self, name: str) -> type[np.float16] | type[np.float32]:
        return np.float16 if self._tensors.get(name) == ir.DataType.FLOAT16 else np.float32


# ---- Which tensors are calibrated: floats that are computed, at the requested operators

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16)


def value_infos(model: ModelProto) -> dict[str, ValueInfoProto]:
    """Return what the model says of its tensors."""
    graph = model.graph
    return {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}


def tensors_to_calibrate(model: ModelProto, op_types: Sequence[str] | None) -> list[str]:
    """Return the names in the order of the graph; all operators where none are named."""
    known = value_infos(model)
    constants = {tensor.name for tensor in model.graph.initializer}
    found: dict[str, None] = {}
    for node in model.graph.node:
        if op_types and node.op_type not in op_types:
            continue
        for name in (*node.input, *node.output):
            if name in known and name not in constants and element_type(known[name]) in FLOATS:
                found[name] = None
    return list(found)


def float_tensors(model: ir.Model, op_types: Sequence[str] | None) -> dict[str, ir.DataType]:
    """Return the same of a model in memory, with the types; a shape need not be known."""
    found: dict[str, ir.DataType] = {}
    for node in model.graph:
        if op_types and node.op_type not in op_types:
            continue
        for value in (*node.inputs, *node.outputs):
            kind = query.element_type(value)
            if value is not None and value.name and kind in _FLOATS and not value.is_initializer():
                found[value.name] = kind
    return found


def element_type(value: ValueInfoProto) -> int | None:
    """Return the element type of a tensor; None for anything else."""
    kind = value.type
    return int(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else None
