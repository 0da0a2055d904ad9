"""Mixed precision: a type that is requested for one tensor makes its neighbours convert.

A node computes in one type. The node that makes a tensor with a type of its own, and those that read it,
compute in that type: what else they read is converted for them, what they make has it, and is converted back
for others.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx
import onnx_ir as ir

from octavo.model.files.serialize import skeleton
from octavo.model.graph.normalize import normalize
from octavo.model.prepare import shapes
from octavo.quantization._errors import OptionError
from octavo.quantization._names import elsewhere
from octavo.quantization._types import QuantType
from octavo.quantization.tensor_quant_overrides import QuantTypeInfo, TensorQuantOverridesHelper


@dataclass
class TensorTypeRequest:
    """The type in which a tensor is to be made, and one in which some nodes are to read it."""

    producer: QuantTypeInfo | None
    consumers: tuple[QuantTypeInfo, set[str]] | None


class MixedPrecisionTensorQuantOverridesFixer:
    """Adds to overrides what a requested type brings about around it."""

    def __init__(
        self,
        overrides: TensorQuantOverridesHelper,
        producers: dict[str, onnx.NodeProto],
        consumers: dict[str, list[onnx.NodeProto]],
        value_infos: dict[str, onnx.ValueInfoProto],
        initializers: dict[str, onnx.TensorProto],
    ) -> None:
        self.overrides = overrides
        self.producers = producers
        self.consumers = consumers
        self.value_infos = value_infos
        self.initializers = initializers

    @staticmethod
    def create_from_model(
        overrides: TensorQuantOverridesHelper,
        model: onnx.ModelProto,
        default_activation_qtype: QuantType,
    ) -> MixedPrecisionTensorQuantOverridesFixer:
        """Return the fixer of a model, whose weights are not read; overrides that do not fit it raise."""
        loaded = ir.from_proto(model)
        normalize(loaded)
        shapes.infer(loaded)
        graph = skeleton(loaded).graph
        producers = {name: node for node in graph.node for name in node.output}
        consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in dict.fromkeys(node.input):
                consumers.setdefault(name, []).append(node)
        initializers = {
            name: onnx.TensorProto(name=name, dims=value.shape.numpy() if value.shape is not None else ())
            for name, value in loaded.graph.initializers.items()
        }
        infos = {value.name: value for value in (*graph.value_info, *graph.input, *graph.output)}
        valid, problem = overrides.is_valid(
            initializers, {*producers, *(value.name for value in graph.input)}, default_activation_qtype
        )
        if not valid:
            raise OptionError(problem or "The overrides do not fit the model.")
        return MixedPrecisionTensorQuantOverridesFixer(overrides, producers, consumers, infos, initializers)

    def apply(self, default_activation_qtype: QuantType, default_activation_symmetric: bool) -> None:
        """Write what follows into the overrides."""
        wanted = self.get_desired_tensor_types(default_activation_qtype, default_activation_symmetric)
        default = QuantTypeInfo(default_activation_qtype)
        for tensor, request in wanted.items():
            known = self.overrides.get(tensor) or [{}]
            asked = "quant_type" in known[0]
            made = QuantTypeInfo.load_from_dict(known[0]) if asked else request.producer or default
            entry: dict[str, object] = {}
            if not asked:
                made.save_to_dict(entry)
            if not known[0].get("convert"):
                self._convert(tensor, made, request, default, entry)
            self.overrides.update_tensor_overrides(tensor, entry)

    def _convert(
        self,
        tensor: str,
        made: QuantTypeInfo,
        request: TensorTypeRequest,
        default: QuantTypeInfo,
        entry: dict[str, object],
    ) -> None:
        """A conversion for the readers that want another type than the tensor is made in."""
        readers = {node.name for node in self.consumers.get(tensor, ())}
        kind, names = request.consumers if request.consumers is not None else (default, readers)
        others = readers - names
        if made == kind:
            kind, names = default, others
        elif others and made != default:
            raise OptionError(
                f"Tensor {tensor!r} would have to be read in three types; let its readers agree."
            )
        if names and made != kind:
            raw: dict[str, object] = {}
            kind.save_to_dict(raw)
            entry["convert"] = {**raw, "recv_nodes": set(names)}

    def get_desired_tensor_types(
        self, default_activation_qtype: QuantType, default_activation_symmetric: bool
    ) -> dict[str, TensorTypeRequest]:
        """For each tensor around one with a type of its own, the types that its ends want."""
        default = QuantTypeInfo(default_activation_qtype, default_activation_symmetric)
        requests: dict[str, TensorTypeRequest] = {}
        for name, kind in self._computing(default).items():
            node = self._nodes()[name]
            for made in node.output:
                if self._is_activation(made):
                    requests.setdefault(made, TensorTypeRequest(None, None)).producer = kind
            for read in node.input:
                if self._is_activation(read):
                    self._read(requests.setdefault(read, TensorTypeRequest(None, None)), read, kind, name)
        return requests

    def _read(self, request: TensorTypeRequest, tensor: str, kind: QuantTypeInfo, node: str) -> None:
        if request.consumers is None:
            request.consumers = (kind, {node})
            return
        known, names = request.consumers
        if known != kind:
            raise OptionError(
                f"Tensor {tensor!r} is wanted as {known.quant_type} and as {kind.quant_type}; choose one."
            )
        names.add(node)

    def _computing(self, default: QuantTypeInfo) -> dict[str, QuantTypeInfo]:
        """Return the nodes that compute in a type other than the default one."""
        found: dict[str, QuantTypeInfo] = {}
        for tensor, entries in self.overrides.items():
            if not entries or tensor in self.initializers or "quant_type" not in entries[0]:
                continue
            made = QuantTypeInfo.load_from_dict(entries[0])
            producer = self.producers.get(tensor)
            if producer is not None and made != default:
                found.setdefault(producer.name, made)
            for reader in self.consumers.get(tensor, ()):
                kind = self.overrides.get_node_input_qtype_info(tensor, reader.name, default.quant_type)
                if kind != default:
                    found.setdefault(reader.name, kind)
        return found

    def _nodes(self) -> dict[str, onnx.NodeProto]:
        readers = (node for nodes in self.consumers.values() for node in nodes)
        return {node.name: node for node in (*readers, *self.producers.values())}

    def _is_activation(self, name: str) -> bool:
        """Whether a tensor is a float that is computed or fed."""
        if not name or name in self.initializers:
            return False
        info = self.value_infos.get(name)
        return info is None or info.type.tensor_type.elem_type in (
            onnx.TensorProto.FLOAT,
            onnx.TensorProto.FLOAT16,
            onnx.TensorProto.UNDEFINED,
        )


__all__ = ["MixedPrecisionTensorQuantOverridesFixer", "TensorTypeRequest"]

__getattr__ = elsewhere(__name__)
