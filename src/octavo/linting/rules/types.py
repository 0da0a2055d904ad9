"""OCT3…: types that are slow, refused, or newer than the model says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from octavo.linting import repairs
from octavo.linting.findings import Fault, Repair, Severity, rule
from octavo.linting.view import MS, LintedModel, is_dq, is_stored, name, readers, stored
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.model.prepare import raise_opset
from octavo.ops.integer_operators import INTEGER_OPERATORS, IntegerOperator

_ERROR, _WARNING, _NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@rule("OCT301", _WARNING, "Activations have a type that is slow on the target")
def slow_activation(view: LintedModel) -> Iterator[Fault]:
    """Activations in int8 are slow on x86."""
    for node in view.quantizers:
        params = view.params(node)
        slow = (
            view.target.kernels.slow_activations.get(params.qtype.name) if params.qtype is not None else None
        )
        if slow is None or query.constant(node.inputs[0]) is not None:
            continue
        yield Fault(
            name(node),
            f"{params.qtype} activations: {slow}",
            "use uint8: the zero point moves by 128, and nothing else",
            _to_uint8(view, node),
        )


def _to_uint8(view: LintedModel, node: ir.Node) -> Repair | None:
    behind = list(readers(node))
    known = view.params(node).zero is not None and all(is_dq(reader) for reader in behind)
    if not known or node.outputs[0].is_graph_output():
        return None
    kind = view.params(node).qtype
    if kind is None or kind.name != "int8" or any(view.params(r).qtype is not kind for r in behind):
        return None
    return repairs.shift([node, *behind], 128, np.uint8)


@rule("OCT302", _WARNING, "Weights have a type that is slow on the target")
def slow_weight(view: LintedModel) -> Iterator[Fault]:
    """Weights in uint8 are slow on x86."""
    for product in view.products:
        if product.x is None or product.w is None or not is_stored(product.w):
            continue
        kind = view.params(product.w).qtype
        slow = view.target.kernels.slow_weights.get(kind.name) if kind is not None else None
        if slow is not None and kind is not None:
            integers = stored(product.w)
            unsigned = kind.name == "uint8" and integers is not None and integers.dtype == np.uint8
            yield Fault(
                name(product.node),
                f"{kind} weights: {slow}",
                "use int8: integers and zero point move by 128, and nothing else",
                repairs.shift_stored(product.w, 0, 2, -128, np.int8) if unsigned else None,
            )


@rule("OCT303", _WARNING, "Weights of a dynamic product have a type that is slow on the target")
def slow_dynamic_weight(view: LintedModel) -> Iterator[Fault]:
    """Weights of MatMulInteger and DynamicQuantizeMatMul in uint8 are slow on x86."""
    slots = {("", "MatMulInteger"): (1, 3), (MS, "DynamicQuantizeMatMul"): (1, 3)}
    slow = view.target.kernels.slow_weights.get("uint8")
    for node in view.nodes:
        kind = (node.domain, node.op_type)
        if kind not in slots or slow is None:
            continue
        index, zero = slots[kind]
        tensor = query.constant(node.inputs[index])
        if tensor is not None and tensor.dtype is ir.DataType.UINT8:
            yield Fault(
                name(node),
                f"uint8 weights: {slow}",
                "use int8: integers and zero point move by 128, and nothing else",
                repairs.shift_stored(node, index, zero, -128, np.int8),
            )


@rule("OCT304", _WARNING, "A Conv has its input quantized while the model runs")
def dynamic_conv(view: LintedModel) -> Iterator[Fault]:
    """ConvInteger has no fast kernel."""
    reason = view.target.placement.dynamic_kept_in_float.get("Conv")
    for node in view.nodes:
        if node.op_type == "ConvInteger" and reason is not None:
            yield Fault(name(node), reason, "quantize with calibration data, or keep the Conv in float")


@rule("OCT305", _ERROR, "An integer operator has no kernel for its types")
def missing_kernel(view: LintedModel) -> Iterator[Fault]:
    """There is none for int8 × uint8, 16-bit operands, and zero points per channel of ConvInteger."""
    for node in view.nodes:
        known = INTEGER_OPERATORS.get(node.op_type)
        if known is None or not known.is_linear or not _scales_result(known):
            continue
        kinds = [_operand_type(node, known, number) for number in "01"]
        if kinds == [ir.DataType.INT8, ir.DataType.UINT8] or any(kind in _WIDE for kind in kinds):
            yield Fault(
                name(node),
                f"{node.op_type} has no kernel for {kinds[0]} activations with {kinds[1]} weights: the model"
                " does not load, or fails",
                "use uint8 activations with int8 weights",
            )
    for node in view.nodes:
        if node.op_type == "ConvInteger" and len(node.inputs) > 3:
            zero = query.array(node.inputs[3])
            if zero is not None and zero.size > 1:
                yield Fault(
                    name(node),
                    "ConvInteger takes one zero point for its weight: the model fails when it runs",
                    "use a symmetric weight with zero point 0",
                )


_WIDE = frozenset({ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT4, ir.DataType.UINT4})


def _scales_result(known: IntegerOperator) -> bool:
    """Whether an operator reads both of its operands as integers, with their scales."""
    return None not in (known.slot("q0"), known.slot("q1"), known.slot("s0"))


def _operand_type(node: ir.Node, known: IntegerOperator, number: str) -> ir.DataType | None:
    """Return the type of an operand, as it is declared or as its zero point has it."""
    for slot in (known.slot(f"q{number}"), known.slot(f"z{number}")):
        found = (
            query.element_type(node.inputs[slot]) if slot is not None and slot < len(node.inputs) else None
        )
        if found is not None:
            return found
    return None


@rule("OCT306", _ERROR, "A type is newer than the model's opset")
def too_new(view: LintedModel) -> Iterator[Fault]:
    """16 and 4 bits and blocks came with opset 21, float8 with 19, scales per channel with 13."""
    for node in view.conversions:
        params = view.params(node)
        if node.domain or params.qtype is None:
            continue
        needs, what = _needed(view, node)
        if needs > view.opset:
            yield Fault(
                name(node),
                f"{what} came with opset {needs}, and the model says {view.opset}: it does not load",
                f"raise the opset to {needs}",
                _raised(view, needs),
            )


def _needed(view: LintedModel, node: ir.Node) -> tuple[int, str]:
    params = view.params(node)
    kind = params.qtype
    if params.block:
        return 21, "scales in blocks"
    if kind is not None and kind.is_float:
        return 19, kind.name
    if kind is not None and kind.bits in (4, 16):
        return 21, kind.name
    if params.scale is not None and params.scale.size > 1:
        return 13, "scales per channel"
    return 10, str(kind)


def _raised(view: LintedModel, to: int) -> Repair:
    def repair(edit: Editor) -> None:
        raise_opset(view.model, to)

    return repair


@rule("OCT307", _NOTE, "Conversions of com.microsoft where the standard ones do")
def contrib_conversion(view: LintedModel) -> Iterator[Fault]:
    """Other runtimes do not know the domain."""
    for node in view.conversions:
        if node.domain == MS and _needed(view, node)[0] <= view.opset:
            yield Fault(
                name(node),
                f"com.microsoft.{node.op_type} is known to ONNX Runtime alone",
                f"use {node.op_type} of the default domain",
                repairs.to_standard(node),
            )


@rule("OCT308", _WARNING, "A Concat reads tensors of different types")
def mixed_concat(view: LintedModel) -> Iterator[Fault]:
    """QLinearConcat takes one type."""
    for node in view.nodes:
        if node.op_type != "Concat":
            continue
        before = [v.producer() for v in node.inputs if v is not None]
        kinds = {str(view.params(p).qtype) for p in before if p is not None and is_dq(p)}
        if len(kinds) > 1:
            yield Fault(
                name(node),
                f"it joins {' and '.join(sorted(kinds))}: it runs in float, or converts first",
                "quantize all its inputs in one type",
            )


@rule("OCT309", _WARNING, "Scales are not float32")
def half_scales(view: LintedModel) -> Iterator[Fault]:
    """Integer kernels of ONNX Runtime take float32 scales."""
    if not view.target.kernels.rounds_float_weights:
        return
    for product in view.products:
        for dq in (product.x, product.w):
            scale = view.params(dq).scale if dq is not None else None
            if dq is not None and scale is not None and scale.dtype != np.float32:
                yield Fault(
                    name(product.node),
                    f"it computes in {scale.dtype}: the runtime casts around it and fuses nothing",
                    "quantize the model in float32",
                )
                break


@rule("OCT310", _WARNING, "int8 weights use the value -128 though they are symmetric")
def lowest_integer(view: LintedModel) -> Iterator[Fault]:
    """TensorRT's weights are -127 … 127."""
    if not view.target.accepts.symmetric_activations:
        return
    for product in view.products:
        weight = stored(product.w)
        if (
            product.w is None
            or weight is None
            or weight.dtype != np.int8
            or np.any(view.params(product.w).zeros)
        ):
            continue
        count = int((weight == -128).sum())
        if count:
            yield Fault(
                name(product.node),
                f"{count} weights are -128, and target {view.target.name} uses -127 … 127: they are cut off",
                "quantize weights symmetrically, to -127 … 127",
            )
