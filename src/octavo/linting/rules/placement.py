"""OCT4…: conversions that are superfluous, or stand where they hurt."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from octavo.core.granularity import PerChannel, PerTensor
from octavo.core.kernels import quantize
from octavo.core.qparams import QParams
from octavo.linting import repairs
from octavo.linting.findings import Fault, Repair, Severity, rule
from octavo.linting.view import LintedModel, dq_of, is_q, is_stored, name, readers
from octavo.model.graph import query
from octavo.ops import CLAMPS, names_of
from octavo.ops.hooks import clamp_bounds, is_gate

_WARNING, _NOTE = Severity.WARNING, Severity.NOTE
_ROUNDED = names_of(lambda rule: rule.is_linear and rule.has_bias)


@rule("OCT401", _NOTE, "A tensor is quantized more than once with the same parameters")
def twice(view: LintedModel) -> Iterator[Fault]:
    """One QuantizeLinear is enough for all readers."""
    first: dict[ir.Value, list[ir.Node]] = {}
    for node in view.quantizers:
        source = node.inputs[0]
        if source is None or query.constant(source) is not None:
            continue
        same = next((n for n in first.get(source, []) if view.params(n).same_as(view.params(node))), None)
        if same is None:
            first.setdefault(source, []).append(node)
        else:
            yield Fault(
                name(node),
                f"it repeats what {name(same)} does",
                "let its readers read that one",
                repairs.replace_by(node, same.outputs[0]) if same.graph is node.graph else None,
            )


@rule("OCT402", _NOTE, "A tensor is dequantized and quantized again with the same parameters")
def round_trip(view: LintedModel) -> Iterator[Fault]:
    """DequantizeLinear followed by QuantizeLinear with equal parameters changes nothing."""
    for node in view.quantizers:
        before = dq_of(node.inputs[0])
        if before is None or before.inputs[0] is None or not view.params(before).same_as(view.params(node)):
            continue
        yield Fault(
            name(node),
            f"it undoes {name(before)}: both together cost time and change nothing",
            "let its readers read the integers",
            repairs.replace_by(node, before.inputs[0]) if not is_stored(before) else None,
        )


@rule("OCT403", _NOTE, "A Relu or Clip does what the quantized range before it has done")
def idle_clamp(view: LintedModel) -> Iterator[Fault]:
    """A tensor whose zero point is its smallest integer has no negative values."""
    for node in view.nodes:
        before = dq_of(node.inputs[0]) if node.op_type in CLAMPS and node.inputs else None
        if before is None or is_stored(before):
            continue
        params, bounds = view.params(before), clamp_bounds(node)
        if params.scale is None or not params.per_tensor or params.qtype is None or params.qtype.is_float:
            continue
        scale, zero = float(params.scale.reshape(-1)[0]), int(params.zeros.reshape(-1)[0])
        low, high = (params.qtype.qmin - zero) * scale, (params.qtype.qmax - zero) * scale
        if bounds is not None and bounds[0] <= low and high <= bounds[1]:
            yield Fault(
                name(node),
                f"its input lies within {low:g} … {high:g} already: it costs time and changes nothing",
                "remove it",
                repairs.replace_by(node, before.outputs[0]),
            )


@rule("OCT404", _NOTE, "A weight is stored in float and quantized while the model runs")
def unfolded(view: LintedModel) -> Iterator[Fault]:
    """Constants can be quantized once and for all."""
    for node in view.quantizers:
        tensor = query.constant(node.inputs[0])
        if tensor is not None:
            yield Fault(
                name(node),
                f"{tensor.nbytes} bytes of float weights in the file, quantized again at each load",
                "store the integers",
                _folded(view, node),
            )


def _folded(view: LintedModel, node: ir.Node) -> Repair | None:
    params, tensor = view.params(node), query.constant(node.inputs[0])
    if tensor is None or params.scale is None or params.qtype is None or params.block:
        return None
    many = params.scale.size > 1
    content = np.asarray(tensor.numpy())
    axis = params.axis % max(content.ndim, 1)
    shape = content.shape[axis : axis + 1] if many else ()
    zero = params.zero if params.zero is not None else np.zeros(shape)
    sizes = {params.scale.size, zero.size, math.prod(shape)}
    if len(sizes) > 1:
        return None
    zero = zero.reshape(shape).astype(params.qtype.dtype)
    grain = PerChannel(axis) if many else PerTensor()
    known = QParams(params.scale.reshape(shape), zero, params.qtype, grain)
    return repairs.become(node, quantize(content, known))


@rule("OCT405", _WARNING, "An operator is quantized that is slower or coarser so")
def better_float(view: LintedModel) -> Iterator[Fault]:
    """Softmax, LayerNormalization and others that the target's sheet keeps in float."""
    for node in view.nodes:
        reason = view.target.placement.kept_in_float.get(node.op_type)
        if reason is None or not node.inputs or dq_of(node.inputs[0]) is None:
            continue
        if node.op_type in view.target.placement.gates and is_gate(node):
            continue
        if any(is_q(reader) for value in node.outputs for reader in value.consumers()):
            yield Fault(
                name(node),
                f"{node.op_type} between conversions: {reason}",
                "keep it in float: no QuantizeLinear behind it, and none in front of it",
            )


@rule("OCT406", _WARNING, "A whole table is dequantized to look up a few rows")
def whole_table(view: LintedModel) -> Iterator[Fault]:
    """DequantizeLinear in front of Gather converts every row at each run."""
    for node in view.nodes:
        dq = dq_of(node.inputs[0]) if node.op_type == "Gather" and not node.domain else None
        if dq is None or not is_stored(dq):
            continue
        single = view.params(dq).per_tensor and not node.outputs[0].is_graph_output()
        yield Fault(
            name(node),
            "every row of its table is dequantized at each run: some forty times slower than in float",
            "look rows up as integers, and dequantize those",
            repairs.gather_first(node, dq) if single else None,
        )


@rule("OCT407", _WARNING, "The runtime rounds the weights of a layer that looks float")
def rounded_layer(view: LintedModel) -> Iterator[Fault]:
    """A float Conv or Gemm between conversions gets int8 weights, with one scale for all channels."""
    if not view.target.kernels.rounds_float_weights:
        return
    for node in view.nodes:
        if node.op_type not in _ROUNDED or node.domain or dq_of(node.inputs[0]) is None:
            continue
        if query.constant(node.inputs[1]) is None or not query.is_float(node.inputs[1]):
            continue
        behind = query.only_reader(node.outputs[0])
        if behind is not None and behind.op_type in CLAMPS:
            behind = query.only_reader(behind.outputs[0])
        if is_q(behind):
            yield Fault(
                name(node),
                "its weights are float in the file, but the runtime rounds them to int8 with one scale"
                " for all channels",
                "quantize its weight per channel, or put a Max that changes nothing behind it",
            )


@rule("OCT408", _WARNING, "A Relu or Clip stands before a zero point that is not at the end of the range")
def open_clamp(view: LintedModel) -> Iterator[Fault]:
    """ONNX Runtime fuses Conv and Relu only if the quantized range begins at zero."""
    if not view.target.kernels.fused:
        return
    for node in view.quantizers:
        clamp = node.inputs[0].producer() if node.inputs[0] is not None else None
        if clamp is None or clamp.op_type != "Relu" or query.only_reader(clamp.outputs[0]) is not node:
            continue
        params, layer = view.params(node), clamp.inputs[0].producer() if clamp.inputs[0] is not None else None
        if params.qtype is None or params.qtype.is_float or layer is None or layer.op_type != "Conv":
            continue
        if dq_of(layer.inputs[0]) is not None and np.any(params.zeros != params.qtype.qmin):
            yield Fault(
                name(node),
                f"its zero point is {int(params.zeros.reshape(-1)[0])} and not {params.qtype.qmin}: the Conv"
                " before the Relu runs in float, and half of the integers are never used",
                "quantize what a Relu gives asymmetrically",
            )


@rule("OCT409", Severity.ERROR, "A Relu or Clip stands in front of a float8 QuantizeLinear")
def float8_clamp(view: LintedModel) -> Iterator[Fault]:
    """ONNX Runtime drops it, and negative values pass."""
    if not view.target.kernels.rounds_float_weights:
        return
    for node in view.quantizers:
        kind = view.params(node).qtype
        clamp = node.inputs[0].producer() if node.inputs[0] is not None else None
        if kind is not None and kind.is_float and clamp is not None and clamp.op_type in CLAMPS:
            yield Fault(
                name(node),
                f"the runtime removes the {clamp.op_type} before it, and values that it cuts off pass",
                "put a Max that changes nothing between the two",
            )


@rule("OCT410", _WARNING, "A grouped Conv is quantized that is faster in float")
def grouped(view: LintedModel) -> Iterator[Fault]:
    """Grouped, not depthwise convolutions have slow integer kernels."""
    most = view.target.placement.convolutions.max_groups
    for product in view.products:
        node = product.node
        dims = query.shape(node.inputs[1]) or (
            query.shape(product.w.inputs[0]) if product.w is not None else None
        )
        group = query.attribute(node, "group", 1) if node.op_type == "Conv" else 1
        if most is None or group <= most or product.x is None or product.w is None:
            continue
        if dims is not None and len(dims) > 1 and dims[1] != 1:
            yield Fault(
                name(node),
                f"a Conv of {group} groups is slower with integers",
                "keep it in float, behind a fusion barrier: a Max that changes nothing",
            )


@rule("OCT411", _NOTE, "The input of a float layer is quantized without effect")
def for_nothing(view: LintedModel) -> Iterator[Fault]:
    """An input that no integer kernel reads or has to write need not be quantized."""
    if view.target.static_recipe.activations is None:
        return
    for product in view.products:
        node = product.node
        if product.x is None or product.w is not None or query.constant(node.inputs[1]) is None:
            continue
        before = product.x.inputs[0].producer() if product.x.inputs[0] is not None else None
        if (
            before is None
            or not is_q(before)
            or len(list(readers(before))) > 1
            or len(list(readers(product.x))) > 1
        ):
            continue
        if _maker(before.inputs[0]) not in view.target.placement.needs_output and not any(
            is_q(r) for r in readers(node)
        ):
            yield Fault(
                name(node),
                "its input is quantized and its weight is not: it runs in float, after two conversions",
                "quantize its weight as well, or not its input",
            )


def _maker(value: ir.Value | None) -> str:
    """Return the operator that gives a value, behind a Relu or Clip."""
    node = value.producer() if value is not None else None
    if node is not None and node.op_type in CLAMPS and node.inputs[0] is not None:
        node = node.inputs[0].producer()
    return node.op_type if node is not None else ""
