"""OCT2…: biases that a kernel would read wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from octavo.linting import repairs
from octavo.linting.findings import Fault, Repair, Severity, rule
from octavo.linting.view import Array, LintedModel, Product, is_stored, name, stored
from octavo.model.graph import query

_TOLERANCE = 1e-3  # of a bias scale; products in float32 differ by 1e-7
_HEADROOM = 2**30  # half of int32: the other half is for the sum of products
_INT32_MAX = 2**31 - 1  # the largest integer of a bias


def _stored_biases(view: LintedModel) -> Iterator[tuple[Product, Array]]:
    for product in view.products:
        if product.bias is not None and is_stored(product.bias):
            integers = stored(product.bias)
            if integers is not None and integers.dtype == np.int32:
                yield product, integers


def _wanted(view: LintedModel, product: Product) -> Array | None:
    """Return the scale that a bias has to have: that of the input times that of the weight."""
    if product.x is None or product.w is None:
        return None
    x, w = view.params(product.x).scale, view.params(product.w)
    if x is None or x.size != 1 or w.scale is None or w.block:
        return None
    return np.asarray(x.astype(np.float64).reshape(()) * w.scale.astype(np.float64))


@rule("OCT201", Severity.ERROR, "The scale of a bias is not that of the input times that of the weight")
def bias_scale(view: LintedModel) -> Iterator[Fault]:
    """Kernels add the bias to sums of products, whose scale is the product of both scales."""
    for product, integers in _stored_biases(view):
        bias, wanted = product.bias, _wanted(view, product)
        scale = view.params(bias).scale if bias is not None else None
        if bias is None or wanted is None or scale is None or not np.all(wanted > 0):
            continue
        given = scale.astype(np.float64)
        if given.size not in (1, wanted.size) and wanted.size != 1:
            continue  # OCT106 says so
        off = float(np.max(np.abs(given.reshape(-1) / wanted.reshape(-1) - 1.0)))
        if off <= _TOLERANCE:
            continue
        yield Fault(
            name(product.bias_reader),
            f"the scale of its bias is off by {100 * off:.0f} %: a Gemm adds a bias that is wrong by as much,"
            " a Conv runs in float",
            "give the bias the scale of the input times that of the weight, and integers to match",
            _rescaled(product, integers, given, wanted),
        )


def _rescaled(product: Product, integers: Array, given: Array, wanted: Array) -> Repair | None:
    bias = product.bias
    if bias is None or len(bias.outputs[0].consumers()) != 1 or integers.ndim != 1:
        return None
    zero = query.array(bias.inputs[2]) if len(bias.inputs) > 2 else None
    shifted = integers.astype(np.float64) - (zero.astype(np.float64) if zero is not None else 0.0)
    fresh = np.rint(shifted * given.reshape(-1) / wanted.reshape(-1))
    if np.abs(fresh).max(initial=0.0) > _INT32_MAX:
        return None
    scale = wanted.astype(np.float32)
    return repairs.rescale(
        bias, fresh.astype(np.int32), scale.reshape(-1) if scale.size > 1 else scale.reshape(())
    )


@rule("OCT202", Severity.WARNING, "The integers of a bias leave no room for the sum")
def headroom(view: LintedModel) -> Iterator[Fault]:
    """Sums of products are added to the bias in 32 bits."""
    for product, integers in _stored_biases(view):
        top = int(np.abs(integers.astype(np.int64)).max(initial=0))
        if top > _HEADROOM:
            yield Fault(
                name(product.bias_reader),
                f"its bias reaches {top}, more than half of what 32 bits hold: the sum wraps around, or"
                " the bias was cut off",
                "raise the weight's scale for that channel, or keep the layer in float",
            )


@rule("OCT203", Severity.ERROR, "A bias has a zero point that is not zero")
def bias_zero_point(view: LintedModel) -> Iterator[Fault]:
    """Kernels add the integers of a bias as they are."""
    for product, integers in _stored_biases(view):
        bias = product.bias
        params = view.params(bias) if bias is not None else None
        if bias is None or params is None or not np.any(params.zeros) or params.scale is None:
            continue
        moved = integers.astype(np.int64) - params.zeros
        fits = integers.ndim == 1 and np.abs(moved).max(initial=0) <= _INT32_MAX
        alone = len(bias.outputs[0].consumers()) == 1
        yield Fault(
            name(product.bias_reader),
            "the zero point of its bias is not 0, and integer kernels leave it out: the bias is wrong",
            "subtract the zero point from the integers",
            repairs.rescale(bias, moved.astype(np.int32), params.scale) if fits and alone else None,
        )


@rule("OCT204", Severity.ERROR, "A bias is quantized where the target wants it float")
def quantized_bias(view: LintedModel) -> Iterator[Fault]:
    """TensorRT refuses int32 biases; others gain nothing by them."""
    if view.target.accepts.int32_biases:
        return
    for product, integers in _stored_biases(view):
        bias = product.bias
        params = view.params(bias) if bias is not None else None
        if bias is None or params is None or params.scale is None:
            continue
        fits = params.scale.size in (1, integers.size) and integers.ndim == 1
        real = (integers.astype(np.float64) - params.zeros) * params.scale if fits else None
        yield Fault(
            name(product.bias_reader),
            f"its bias is int32 behind DequantizeLinear, which target {view.target.name} does not take",
            "store the bias in float",
            repairs.become(bias, real.astype(np.float32)) if real is not None else None,
        )
