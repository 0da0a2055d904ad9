"""Checks of a model's protobuf before a model is built from it: sizes, names, depth, references.

Nothing here reads a weight or allocates for one; a model that fails is refused with the place of the fault.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TensorProto

from octavo.errors import ModelError
from octavo.model.files import tensor_bounds
from octavo.model.files.wire import ByteRange
from octavo.model.graph.inline import MOST_NODES, Key, check_calls
from octavo.model.graph.operators import SUBGRAPH_ATTRIBUTES, UNCHECKED_NUMBERS
from octavo.model.graph.tensors import ELEMENT_TYPES

_MAX_DEPTH = 64  # of subgraphs; exporters nest two or three, and each walk recurses so deep
_MOST_DIGITS = 20  # of an offset or a length: those of 2^64
_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_NUMBERS = frozenset(
    {
        onnx.AttributeProto.INT,
        onnx.AttributeProto.INTS,
        onnx.AttributeProto.FLOAT,
        onnx.AttributeProto.FLOATS,
        onnx.AttributeProto.STRING,
    }
)
_MOST_OPERANDS = 10_000  # inputs or outputs of a node; a change of each walks over all of them


def _is_equation(attribute: onnx.AttributeProto) -> bool:
    """Whether each term has ``...`` once at most: shape inference of onnx never ends with two."""
    if attribute.type != onnx.AttributeProto.STRING or attribute.ref_attr_name:
        return True
    terms = attribute.s.replace(b"->", b",").replace(b" ", b"").split(b",")
    return all((rest := term.replace(b"...", b"", 1)).isalpha() or not rest for term in terms)


def _is_type(attribute: onnx.AttributeProto) -> bool:
    """Whether a number stands for a type of elements."""
    return attribute.type != onnx.AttributeProto.INT or attribute.i in ELEMENT_TYPES


# Attributes whose values are checked, whatever the operator: a call hands them on into its function.
_CHECKED_VALUES: Mapping[str, Callable[[onnx.AttributeProto], bool]] = {
    "equation": _is_equation, "output_dtype": _is_type,
}  # fmt: skip


def check_model(
    proto: onnx.ModelProto, where: str, apart: Mapping[str, ByteRange]
) -> Mapping[str, str] | None:
    """Refuse what is damaged or without bounds.

    ``apart`` are the initializers whose content was left in the file, and where it lies. Gives the checksums
    that weights in other files name, by location; None where no weight is in another file.
    """
    if not proto.HasField("graph") or (not proto.ir_version and not proto.opset_import):
        raise ModelError(
            f"{where} is not an ONNX model: it holds no graph; check that this is the right file."
        )
    _check_imports(proto.opset_import, where)
    walk = _Walk(where, opset=_opset(proto.opset_import))
    walk.graph(proto.graph, apart)
    used, functions = walk.operators, {}
    walk.in_function = True
    for function in proto.functions:
        _check_function(function, where)
        walk.operators, walk.opset = [], _opset(function.opset_import)
        for attribute in function.attribute_proto:
            walk.default(attribute, function.name)
        walk.count(len(function.node))
        walk.nodes(function.node, 0)
        key = (_domain(function.domain), function.name, function.overload)
        functions[key] = (len(function.node), walk.operators)
    if functions:
        check_calls(functions, used, where)
    return walk.checksums if walk.external else None


def _opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the version of the standard operators; 0 where they are not imported."""
    return max((entry.version for entry in imports if not _domain(entry.domain)), default=0)


@functools.lru_cache(maxsize=1024)
def _attribute_types(op_type: str, opset: int) -> Mapping[str, int]:
    """Return the types of the attributes of a standard operator; none of an unknown operator."""
    try:
        schema = onnx.defs.get_schema(op_type, opset)
    except onnx.defs.SchemaError:
        return {}
    number = onnx.AttributeProto.AttributeType.Value
    kinds: dict[str, Any] = {name: attribute.type for name, attribute in schema.attributes.items()}
    return {name: number(kind.name) for name, kind in kinds.items()}


def _check_imports(imports: Iterable[onnx.OperatorSetIdProto], where: str) -> None:
    for entry in imports:
        if not isinstance(entry.domain, str):
            raise ModelError(f"{where} is damaged: it imports operators of the domain {entry.domain!r}.")
        if not 0 < entry.version < 1 << 31:
            raise ModelError(f"{where} imports the impossible opset version {entry.version}.")


def _check_function(function: onnx.FunctionProto, where: str) -> None:
    """Refuse names that are not text, and impossible imports; its nodes are checked elsewhere."""
    names = (function.domain, function.name, function.overload, *function.input, *function.output,
             *function.attribute, *(one.name for one in function.attribute_proto))  # fmt: skip
    for text in names:
        if not isinstance(text, str):
            raise ModelError(f"{where} is damaged: a function has the name {text!r}.")
    _check_imports(function.opset_import, where)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def check_tensor(tensor: onnx.TensorProto, where: str) -> None:
    """Refuse a tensor whose content does not fit its type and shape."""
    _Walk(where).tensor(tensor, f"in {where}")


@dataclass
class _Walk:
    """A walk over graphs, subgraphs and functions, which counts what it has seen."""

    where: str
    seen: int = 0
    opset: int = 0
    in_function: bool = False
    external: bool = False
    operators: list[Key] = field(default_factory=list)  # of all nodes since it was set
    checksums: dict[str, str] = field(default_factory=dict)
    empty: set[str] = field(default_factory=set)  # constants without elements

    def graph(self, graph: onnx.GraphProto, apart: Mapping[str, ByteRange], depth: int = 0) -> None:
        """Check a graph and what is inside its nodes."""
        if depth > _MAX_DEPTH:
            raise ModelError(f"{self.where}: subgraphs are nested more than {_MAX_DEPTH} deep.")
        self.count(len(graph.node))
        _check_names(graph, self.where)
        for tensor in graph.initializer:
            place = apart.get(tensor.name)
            self.tensor(tensor, "", place.length if place is not None else None)
            if 0 in tensor.dims:
                self.empty.add(tensor.name)
        self.nodes(graph.node, depth)

    def count(self, nodes: int) -> None:
        """Take note of further nodes, before any of them is looked at."""
        self.seen += nodes
        if self.seen > MOST_NODES:
            raise ModelError(f"{self.where} has more than {MOST_NODES} nodes, the most that are read.")

    def nodes(self, nodes: Iterable[onnx.NodeProto], depth: int) -> None:
        """Check nodes with all of their attributes."""
        for node in nodes:
            attributes = list(node.attribute)
            _check_text(node, attributes, self.where)
            domain = _domain(node.domain)
            self.operators.append((domain, node.op_type, node.overload))
            _check_bodies(node, self.where)
            self.operands(node)
            if self.empty and node.op_type in UNCHECKED_NUMBERS:
                self.numbers(node)
            due = _attribute_types(node.op_type, self.opset) if attributes and not domain else {}
            for attribute in attributes:
                if attribute.type and attribute.type != due.get(attribute.name, attribute.type):
                    _refuse_type(node, attribute, due[attribute.name], self.where)
                if attribute.name in _CHECKED_VALUES and not _CHECKED_VALUES[attribute.name](attribute):
                    raise ModelError(
                        f"{self.where}: the attribute {attribute.name!r} of the {node.op_type} node "
                        f"{node.name[:200]!r} has an impossible value; export the model again."
                    )
                if attribute.type not in _NUMBERS or attribute.ref_attr_name:
                    self.attribute(attribute, f"of node {node.name or node.op_type!r}", depth)

    def operands(self, node: onnx.NodeProto) -> None:
        """Refuse a node with inputs or outputs without end, or placed on a device without a name."""
        if len(node.input) > _MOST_OPERANDS or len(node.output) > _MOST_OPERANDS:
            raise ModelError(
                f"{self.where}: the {node.op_type} node {node.name[:200]!r} has more than {_MOST_OPERANDS} "
                "inputs or outputs, the most that are read."
            )
        if any(not one.configuration_id for one in node.device_configurations):
            raise ModelError(
                f"{self.where} is damaged: the {node.op_type} node {node.name[:200]!r} is to run on a device "
                "without a name; export the model again."
            )

    def numbers(self, node: onnx.NodeProto) -> None:
        """Refuse constants without elements where the runtime reads a number from them unchecked."""
        is_number = UNCHECKED_NUMBERS[node.op_type]
        for place, name in enumerate(node.input):
            if name in self.empty and is_number(place):
                raise ModelError(
                    f"{self.where}: the {node.op_type} node {node.name[:200]!r} reads a number from "
                    f"{name!r}, which has no elements; the model is damaged: export it again."
                )

    def default(self, attribute: onnx.AttributeProto, function: str) -> None:
        """Check the value that a function's parameter has where a call gives none."""
        before, self.external = self.external, False
        self.attribute(attribute, f"of the function {function[:200]!r}", 0)
        if self.external:
            raise ModelError(
                f"{self.where}: the parameter {attribute.name!r} of the function {function[:200]!r} lies in "
                "another file, which is not supported; store it in the model."
            )
        self.external = before

    def attribute(self, attribute: onnx.AttributeProto, place: str, depth: int) -> None:
        """Check the tensors and graphs that an attribute holds."""
        if attribute.ref_attr_name and (not self.in_function or attribute.type in _GRAPHS):
            raise ModelError(
                f"{self.where}: the attribute {attribute.name!r} {place} stands for a function's parameter, "
                "which is possible only in a function, and never for a graph; export the model again."
            )
        if attribute.ref_attr_name:
            return  # the call gives the value
        if attribute.type == onnx.AttributeProto.UNDEFINED:
            raise ModelError(
                f"{self.where}: the attribute {attribute.name!r} {place} does not say of which type it is; "
                "export the model again."
            )
        if attribute.HasField("t") or attribute.type == onnx.AttributeProto.TENSOR:
            self.tensor(attribute.t, place)
        for tensor in attribute.tensors:
            if tensor.data_location == TensorProto.EXTERNAL:
                raise ModelError(
                    f"{self.where}: the list {attribute.name!r} {place} keeps a tensor in another file, "
                    "which is not supported; store it in the model."
                )
            self.tensor(tensor, place)
        if attribute.HasField("g"):
            self.graph(attribute.g, {}, depth + 1)
        for inner in attribute.graphs:
            self.graph(inner, {}, depth + 1)

    def tensor(self, tensor: onnx.TensorProto, place: str, apart: int | None = None) -> None:
        """Check that a tensor's content is in one place, and is as much as its type and shape say."""
        name = f"The tensor {tensor.name!r} {place}".rstrip()
        present = {field.name: value for field, value in tensor.ListFields()}
        if "segment" in present:
            raise ModelError(f"{name} is stored in segments, which is not supported.")
        dtype, shape = tensor_bounds.dims(present.get("data_type", 0), tuple(present.get("dims", ())), name)
        filled = [one for one in tensor_bounds.FIELDS if one in present]
        content = present.get("raw_data", b"")
        raw = len(content) if "raw_data" in present else apart
        external = present.get("data_location") == TensorProto.EXTERNAL
        if raw is not None:
            filled.append("raw_data")
        if external:
            filled.append("external data")
        if len(filled) > 1:
            raise ModelError(f"{name} holds {' and '.join(filled)} at once; the model is damaged.")
        if external:
            self._reference(tensor, name)
        elif raw is not None:
            tensor_bounds.check_size(dtype, shape, raw, name)
            tensor_bounds.check_padding(dtype, shape, content[-1:], name)
        else:
            tensor_bounds.check_typed(tensor, (dtype, shape), filled, name)

    def _reference(self, tensor: onnx.TensorProto, name: str) -> None:
        """Check what a tensor says of the file that its content lies in."""
        self.external = True
        for entry in tensor.external_data:
            plain = entry.value.isascii() and entry.value.isdigit() and len(entry.value) <= _MOST_DIGITS
            if entry.key in ("offset", "length") and not plain:
                raise ModelError(
                    f"{name} lies in an external file at the {entry.key} {entry.value[:40]!r}, which is "
                    "not a number of bytes; the model is damaged."
                )
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries.get("checksum"):
            self.checksums[entries.get("location", "")] = entries["checksum"]


def _check_names(graph: onnx.GraphProto, where: str) -> None:
    """Refuse sparse weights, names that are not text, and names that are defined twice."""
    if graph.sparse_initializer:
        raise ModelError(
            f"{where} holds sparse weights ({graph.sparse_initializer[0].values.name!r}), which are not "
            "supported; store them dense."
        )
    for named in (*graph.initializer, *graph.input, *graph.output):
        if not isinstance(named.name, str):
            raise ModelError(f"{where} is damaged: a tensor has the name {named.name!r}.")
    names = _refuse_twice([tensor.name for tensor in graph.initializer], f"{where}: the initializer")
    _refuse_twice([value.name for value in graph.input], f"{where}: the graph input")
    made = [name for node in graph.node for name in node.output if name]
    outputs = _refuse_twice(made, f"{where}: the tensor")
    if not names.isdisjoint(outputs):
        defined = next(name for name in made if name in names)
        raise ModelError(f"{where}: the tensor {defined!r} is an initializer and a node's output at once.")
    if "" in names:
        raise ModelError(f"{where} has an initializer without a name.")


def _check_text(node: onnx.NodeProto, attributes: Iterable[onnx.AttributeProto], where: str) -> None:
    """Refuse names that are not text: protobuf returns as bytes what it can't decode."""
    texts = [node.op_type, node.domain, node.overload, node.name, *node.input, *node.output]
    texts += [attribute.name for attribute in attributes]
    try:
        "".join(texts)
    except TypeError:
        text = next(text for text in texts if not isinstance(text, str))
        raise ModelError(f"{where} is damaged: a {node.op_type!r} node has the name {text!r}.") from None


def _refuse_type(node: onnx.NodeProto, attribute: onnx.AttributeProto, due: int, where: str) -> None:
    kind = onnx.AttributeProto.AttributeType.Name
    raise ModelError(
        f"{where}: the attribute {attribute.name!r} of node {node.name[:200] or node.op_type!r} is "
        f"{kind(attribute.type)} where {node.op_type} takes {kind(due)}; export the model again."
    )


def _check_bodies(node: onnx.NodeProto, where: str) -> None:
    """Refuse control flow without the graphs that it runs."""
    due = SUBGRAPH_ATTRIBUTES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if due is None:
        return
    found = sorted(attribute.name for attribute in node.attribute if attribute.type in _GRAPHS)
    sequences = [attribute.i for attribute in node.attribute if attribute.name == "num_scan_inputs"]
    lost = node.op_type == "Scan" and (len(sequences) != 1 or not 0 < sequences[0] <= len(node.input))
    inputs = any(one.g.input for one in node.attribute if one.type in _GRAPHS) and node.op_type == "If"
    if found != sorted(due) or lost or inputs:
        needed = " and ".join(due) + (" and num_scan_inputs" if lost else "")
        raise ModelError(
            f"{where} is damaged: the {node.op_type} node {node.name[:200]!r} has no proper {needed}; export "
            "the model again."
        )


def _refuse_twice(names: list[str], what: str) -> set[str]:
    """Return the names as a set; raise if one of them is there twice."""
    found = set(names)
    if len(found) != len(names):
        name = next(name for name, count in Counter(names).items() if count > 1)
        raise ModelError(f"{what} {name!r} is defined twice; give each definition a name of its own.")
    return found
