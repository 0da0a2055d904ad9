"""One set of integers for weights that two parts have in common.

4-bit weights follow the inputs of their layers, and so the data of their part: the decoder and the one with a
cache would have different integers for the same weight, and nothing to share. The decoder has seen whole
texts, which the one with a cache reads token by token, so its integers fit both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from octavo.model.files import io
from octavo.model.files.serialize import tensor_digest
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.graph.scopes import remove_unused
from octavo.ops import MATMUL_NBITS

_SUFFIX = re.compile(r"_Q\d+(G\d+)?$")  # after the name of a weight: its integers
_FIRST, _STOP = 1, 4  # inputs of MatMulNBits: integers, scales and zero points
_NUMBERS = ("bits", "block_size", "accuracy_level")
_SIZES = ("K", "N")


def with_integers_of(source: tuple[Path, Path], other: tuple[Path, Path]) -> ir.Model | None:
    """Return the quantized ``other`` with the integers of ``source`` for equal float weights.

    Both are a float model and a quantized one. None where nothing would change.
    """
    known: dict[bytes, ir.Node] = {}
    for digest, node in _products(*source):
        known.setdefault(digest, node)
    model = io.load(other[1])
    edit, copies, count = Editor(model), dict[int, ir.Value](), 0
    for digest, node in _products(other[0], model):
        like = known.get(digest)
        if like is None or any(_number(node, name) != _number(like, name) for name in _SIZES):
            continue
        if _contents(node) == _contents(like):
            continue
        rest = list(node.inputs[_STOP:])
        values = [_copied(edit, value, copies) for value in like.inputs[_FIRST:_STOP]]
        node.resize_inputs(_STOP + len(rest) if rest else _FIRST + len(values))
        for place, value in enumerate(values, _FIRST):
            node.replace_input_with(place, value)
        for place, value in enumerate(rest, _STOP):
            node.replace_input_with(place, value)
        for name in _NUMBERS:
            node.attributes.pop(name, None)
            if name in like.attributes:
                node.attributes[name] = like.attributes[name]
        count += 1
    remove_unused(model)
    return model if count else None


def _contents(node: ir.Node) -> list[object]:
    """What a product is computed from, beside its input."""
    tensors = [query.constant(value) for value in node.inputs[_FIRST:_STOP]]
    numbers = [_number(node, name) for name in _NUMBERS]
    return [None if one is None else tensor_digest(one) for one in tensors] + numbers


def _copied(edit: Editor, value: ir.Value | None, copies: dict[int, ir.Value]) -> ir.Value | None:
    """A constant of another model as one of this model, once."""
    tensor = query.constant(value)
    if value is None or tensor is None:
        return None
    if id(tensor) not in copies:
        copies[id(tensor)] = edit.constant(value.name or "weight", tensor)
    return copies[id(tensor)]


def _products(float_path: Path, made: Path | ir.Model) -> Iterator[tuple[bytes, ir.Node]]:
    """The products with weights in blocks, each with a digest of its float weight."""
    float_model = io.load(float_path)
    weights = query.initializers(float_model.graph)
    model = io.load(made) if isinstance(made, Path) else made
    digests: dict[str, bytes] = {}
    for node in query.nodes(model):
        if (node.domain, node.op_type) != (MATMUL_NBITS.domain, MATMUL_NBITS.op_type):
            continue
        integers = node.inputs[_FIRST]
        name = _SUFFIX.sub("", (integers.name or "") if integers is not None else "")
        tensor = query.constant(weights.get(name))
        if tensor is None:
            continue
        if name not in digests:
            digests[name] = tensor_digest(tensor)
        yield digests[name], node


def _number(node: ir.Node, name: str) -> object:
    return query.attribute(node, name, None)
