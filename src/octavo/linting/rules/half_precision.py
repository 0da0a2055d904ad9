"""OCT7…: 16-bit floats, and what converters to them are known to break."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from octavo.linting.findings import Fault, Severity, rule
from octavo.linting.view import LintedModel, name
from octavo.model.graph import query
from octavo.ops.half_precision import UNDEFINED_AT_ZERO, half_slots
from octavo.planning.half_precision import reaches_softmax

_SMALLEST_NORMAL = float(np.finfo(np.float16).smallest_normal)  # below it a float16 loses bits

_CUTS = (65504.0, 1e4)  # the largest number of onnxruntime's converter, and that of onnxconverter-common


def _half_constants(view: LintedModel) -> Iterator[tuple[ir.Node, int, ir.TensorProtocol]]:
    """Yield every 16-bit float constant, with each node that reads it."""
    for node in query.nodes(view.model):
        for index, value in enumerate(node.inputs):
            tensor = query.constant(value)
            if tensor is not None and tensor.dtype in query.HALF_FLOATS:
                yield node, index, tensor


@rule("OCT701", Severity.ERROR, "A 16-bit float constant holds infinity or NaN")
def overflowed(view: LintedModel) -> Iterator[Fault]:
    """A number beyond 65504 has become infinite in the conversion; a mask of -infinity is left alone."""
    for node, _, tensor in _half_constants(view):
        values = tensor.numpy().astype(np.float32)
        wrong = ~np.isfinite(values)
        is_mask = bool(np.all(values[wrong] == -np.inf)) and reaches_softmax(node)
        if np.any(wrong) and not is_mask:
            yield Fault(
                name(node),
                f"{int(wrong.sum())} of {values.size} values of {tensor.name} are not finite",
                "convert the float32 model again and leave this constant in float32, as --float fp16 does",
            )


@rule("OCT702", Severity.WARNING, "A constant that keeps a divisor from zero is too small for float16")
def vanished(view: LintedModel) -> Iterator[Fault]:
    """Numbers below 6e-5 lose bits in float16, and below 3e-8 they are zero: a root of zero divides by it."""
    for node, _, tensor in _half_constants(view):
        if not query.is_op(node, "Add") or tensor.dtype is not ir.DataType.FLOAT16 or tensor.size != 1:
            continue
        value = abs(float(tensor.numpy().astype(np.float32).reshape(-1)[0]))
        readers = [reader for out in node.outputs for reader in query.readers(out)]
        if value < _SMALLEST_NORMAL and any(reader.op_type in UNDEFINED_AT_ZERO for reader in readers):
            yield Fault(
                name(node),
                f"its constant {tensor.name} is {value:.3g} in float16: where the sum is as small, the result"
                " is infinite or far off",
                "keep this sum and what divides by it in float32",
            )


@rule("OCT703", Severity.ERROR, "An input is a 16-bit float where the operator takes none")
def wrong_type(view: LintedModel) -> Iterator[Fault]:
    """Scales of Resize and the like are float32 in every opset: the model does not load."""
    opset = query.opset(view.model)
    for node in query.nodes(view.model):
        for index, value in enumerate(node.inputs):
            kind = query.element_type(value) if value is not None else None
            if kind not in query.HALF_FLOATS or kind is None or query.subgraphs(node):
                continue
            slots = half_slots(node, opset, kind)
            if slots is not None and slots.inputs and not slots.takes(index):
                yield Fault(
                    name(node),
                    f"its input {index} is {kind.name.lower()}, which {node.op_type} does not take at opset"
                    f" {opset}: the model does not load",
                    "give it this input in float32",
                )


@rule("OCT704", Severity.NOTE, "A Cast to 16 bits is undone at once")
def there_and_back(view: LintedModel) -> Iterator[Fault]:
    """Two Casts that follow each other round values and save nothing."""
    for node in query.nodes(view.model):
        before = (
            node.inputs[0].producer() if query.is_op(node, "Cast") and node.inputs[0] is not None else None
        )
        if before is None or not query.is_op(before, "Cast") or before.inputs[0] is None:
            continue
        first, middle = query.element_type(before.inputs[0]), query.element_type(node.inputs[0])
        if (
            middle in query.HALF_FLOATS
            and first is ir.DataType.FLOAT
            and query.element_type(node.outputs[0]) is first
        ):
            yield Fault(
                name(node),
                "float32 is rounded to 16 bits and back between two operators that compute in float32",
                "read the tensor before both Casts",
            )


@rule("OCT705", Severity.WARNING, "A 16-bit weight ends where converters cut numbers off")
def cut_off(view: LintedModel) -> Iterator[Fault]:
    """Converters write 65504 or 10000 for what is larger; a lowest number in front of a Softmax is a mask."""
    for node, _, tensor in _half_constants(view):
        if tensor.dtype is not ir.DataType.FLOAT16 or len(tensor.shape) < 2 or not tensor.size:
            continue
        values = np.abs(tensor.numpy())
        most = float(values.max())
        if most in _CUTS and not reaches_softmax(node):
            yield Fault(
                name(node),
                f"{int((values == most).sum())} of {values.size} values of {tensor.name} are {most:g}, and"
                " none is larger",
                "convert the float32 model again and leave this weight in float32, as --float fp16 does",
            )
