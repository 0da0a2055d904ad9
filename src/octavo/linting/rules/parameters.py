"""OCT1…: scales, zero points and axes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.linting import repairs
from octavo.linting.findings import Fault, Severity, rule
from octavo.linting.view import (
    LintedModel,
    channel_axis,
    dq_of,
    is_dq,
    is_q,
    is_stored,
    name,
    readers,
    stored,
)
from octavo.model.graph import query

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING


@rule("OCT101", _ERROR, "A scale or zero point is computed, not constant")
def computed(view: LintedModel) -> Iterator[Fault]:
    """A conversion has to have constant parameters to be fused."""
    for node in view.conversions:
        for index, what in ((1, "scale"), (2, "zero point")):
            value = query.operand(node, index)
            producer = value.producer() if value is not None else None
            dynamic = producer is not None and producer.op_type == "DynamicQuantizeLinear"
            if value is not None and query.constant(value) is None and not dynamic:
                yield Fault(
                    name(node),
                    f"its {what} is computed while the model runs: nothing around it is fused",
                    "store the number as an initializer",
                )


@rule("OCT102", _ERROR, "A scale is zero, negative, infinite or not a number")
def bad_scale(view: LintedModel) -> Iterator[Fault]:
    """A scale is a positive, finite number; ONNX Runtime also reads weights in blocks with a negative one."""
    for node in view.conversions:
        scale = view.params(node).scale
        if scale is None or scale.dtype.kind not in "fV":
            continue
        wide = scale.astype(np.float64)
        may_be_negative = view.target.accepts.contrib_ops and query.attribute(node, "block_size", 0) > 0
        bad = ~(np.isfinite(wide) & ((wide != 0) if may_be_negative else (wide > 0)))
        if bad.any():
            shown = float(wide[bad].reshape(-1)[0])
            yield Fault(
                name(node),
                f"{int(bad.sum())} of {wide.size} scales are not positive numbers ({shown:g}): what is read"
                " through it is zero, reversed or not a number",
                "quantize the tensor again, with finite calibration data",
            )


@rule("OCT103", _ERROR, "A zero point has another type than the tensor")
def zero_type(view: LintedModel) -> Iterator[Fault]:
    """Zero point and integers have one type."""
    for node in view.dequantizers:
        zero = query.operand(node, 2)
        kinds = [query.element_type(value) for value in (node.inputs[0], zero)]
        if zero is not None and None not in kinds and kinds[0] != kinds[1]:
            yield Fault(
                name(node),
                f"it reads {kinds[0]} with a zero point of {kinds[1]}: the model does not load",
                "give the zero point the type of the tensor",
            )


@rule("OCT104", _WARNING, "A tensor is dequantized by other parameters than it was quantized by")
def unlike_pair(view: LintedModel) -> Iterator[Fault]:
    """A pair of conversions has one scale and one zero point."""
    for node in view.dequantizers:
        before = node.inputs[0].producer() if node.inputs[0] is not None else None
        if before is None or not is_q(before):
            continue
        one, other = view.params(before), view.params(node)
        if one.scale is None or other.scale is None or one.same_as(other):
            continue
        yield Fault(
            name(node),
            f"its scale or zero point is not that of {name(before)}: values behind it are stretched or moved",
            "let both read the same scale and zero point",
        )


@rule("OCT105", _ERROR, "Scales of a weight do not lie along its output channels")
def wrong_axis(view: LintedModel) -> Iterator[Fault]:
    """Scales per channel lie along the operator's output channels."""
    for product in view.products:
        weight = stored(product.w)
        if product.w is None or weight is None or product.node.op_type == "ConvTranspose":
            continue
        params, axis = view.params(product.w), channel_axis(product.node)
        if params.scale is None or params.scale.size < 2 or params.block or axis is None:
            continue
        if (params.axis - axis) % max(weight.ndim, 1):
            yield Fault(
                name(product.node),
                f"the scales of its weight lie along axis {params.axis}, its channels along axis {axis}: the"
                " runtime fuses it without a check, and the results are wrong, or it fails",
                f"quantize the weight with scales along axis {axis}",
            )


@rule("OCT106", _ERROR, "There are more or fewer scales than channels")
def scale_count(view: LintedModel) -> Iterator[Fault]:
    """There is one scale for each index along the axis."""
    for node in view.conversions:
        params, dims = view.params(node), query.shape(node.inputs[0])
        if params.scale is None or params.scale.size < 2 or params.block or not dims:
            continue
        axis = params.axis if params.axis >= 0 else params.axis + len(dims)
        length = dims[axis] if 0 <= axis < len(dims) else -1
        if length is not None and params.scale.size != length:
            where = f"of length {length}" if length >= 0 else "that does not exist"
            yield Fault(
                name(node),
                f"{params.scale.size} scales along axis {params.axis} {where}: it does not load, or fails",
                "give one scale for each index along the axis",
            )


@rule("OCT107", _ERROR, "An activation has a scale for each channel")
def channel_activation(view: LintedModel) -> Iterator[Fault]:
    """Activations have one scale for the tensor."""
    for node in view.quantizers:
        params = view.params(node)
        if params.scale is None or params.scale.size < 2 or query.constant(node.inputs[0]) is not None:
            continue
        yield Fault(
            name(node),
            "an activation with a scale for each channel: products behind it have no kernel and fail",
            "quantize activations with one scale for the tensor",
        )


@rule("OCT108", _WARNING, "The weight of a Gemm has no zero point")
def missing_zero_point(view: LintedModel) -> Iterator[Fault]:
    """ONNX Runtime fuses a Gemm only if the zero point of its weight is written down."""
    if not view.target.kernels.rounds_float_weights:
        return
    for product in view.products:
        w = product.w
        if product.node.op_type != "Gemm" or w is None or (len(w.inputs) > 2 and w.inputs[2] is not None):
            continue
        kind = view.params(w).qtype
        if kind is not None and kind.bits == 8 and product.x is not None:
            yield Fault(
                name(w),
                "the runtime does not fuse a Gemm whose weight has no zero point: it runs in float",
                "write the zero point into the model, though it is 0",
                repairs.add_zero_point(w, kind.dtype),
            )


@rule("OCT109", _WARNING, "A range is narrower than the target takes")
def narrow_range(view: LintedModel) -> Iterator[Fault]:
    """QNN refuses very narrow ranges."""
    least = view.target.accepts.min_range
    if least is None:
        return
    for node in view.quantizers:
        params = view.params(node)
        if params.scale is None or not params.per_tensor or params.qtype is None or params.qtype.is_float:
            continue
        width = float(params.scale.reshape(-1)[0]) * (params.qtype.qmax - params.qtype.qmin)
        if width < least * 0.999:
            yield Fault(
                name(node),
                f"its range is {width:.3g} wide, and target {view.target.name} wants {least:g} at least",
                f"quantize with min_range: {least:g}",
            )


@rule("OCT110", _ERROR, "8-bit weights in blocks stand beside quantized activations")
def blocked_weight(view: LintedModel) -> Iterator[Fault]:
    """ONNX Runtime fuses such a product to a kernel that fails."""
    if not view.target.kernels.rounds_float_weights:
        return
    for product in view.products:
        if product.x is None or product.w is None or not view.params(product.w).block:
            continue
        kind = view.params(product.w).qtype
        if kind is not None and kind.bits == 8 and not kind.is_float:
            yield Fault(
                name(product.node),
                f"{kind} weights in blocks with a quantized input: the runtime fuses it, and it fails",
                "use scales per channel, 4-bit weights, or a float input",
            )


@rule("OCT111", _WARNING, "A tensor is quantized twice, with different parameters")
def requantized(view: LintedModel) -> Iterator[Fault]:
    """Each round trip moves values; of one type, a second one gains nothing."""
    for node in view.quantizers:
        before = dq_of(node.inputs[0])
        if before is None or is_stored(before):
            continue
        one, other = view.params(before), view.params(node)
        if one.scale is None or other.scale is None or one.qtype is not other.qtype or one.same_as(other):
            continue
        if any(is_dq(reader) for reader in readers(node)):
            yield Fault(
                name(node),
                f"what {name(before)} gives is quantized again with another scale: values move by up to half"
                " of the coarser step",
                "share one scale and zero point, or quantize once",
            )
