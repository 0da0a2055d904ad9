"""The op table and the targets, as text for a terminal and as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from octavo.core.recipe import Style
from octavo.ops.rule import (
    Act,
    Axis,
    Bias,
    Kind,
    Lowering,
    OpRule,
    Out,
    Raw,
    RawOut,
    Result,
    Role,
    Same,
    Table,
    Weight,
)
from octavo.reporting.summary import scheme_text
from octavo.reporting.text import columns
from octavo.targets import Target

KINDS = {
    Kind.LINEAR: "linear in weights: what quantization is for",
    Kind.ELEMENTWISE: "worth quantizing between quantized neighbours",
    Kind.DATA_MOVEMENT: "moves values, so the output has the parameters of the input",
    Kind.CLAMP: "clips values, which a quantized range may do instead",
    Kind.LOOKUP: "looks rows up in a table",
    Kind.RECURRENT: "recurrent: only the weights are quantized",
    Kind.EXPERTS: "experts that a router chooses among: only the weights are quantized, in blocks",
}


def op_name(rule: OpRule | Lowering) -> str:
    """Return ``Conv``, or ``com.microsoft.Gelu`` where the domain is not the standard one."""
    return f"{rule.domain}.{rule.op_type}" if rule.domain else rule.op_type


def lowering_text(rule: OpRule, style: Style) -> str:
    """Return what the operator becomes in a style: a name, ``yes`` where it keeps its own, or a dash."""
    lowering = rule.lowerings.get(style)
    if lowering is not None:
        return lowering.op_type
    return "yes" if style is Style.QDQ and rule.kind is not Kind.EXPERTS else "–"


def inputs_text(rule: OpRule) -> str:
    """Return the roles of the inputs."""
    names = [type(role).__name__.lower() for role in rule.inputs]
    return ", ".join(names) + (" …" if rule.variadic else "")


def op_table(rules: Iterable[OpRule]) -> str:
    """Return one line for each operator."""
    rows = [
        [op_name(rule), rule.kind.value, inputs_text(rule), *(lowering_text(rule, style) for style in Style)]
        for rule in sorted(rules, key=rank)
    ]
    return columns(rows, ["op type", "kind", "inputs", *(style.value for style in Style)])


def rank(rule: OpRule) -> tuple[int, str, str]:
    """Return what rules are sorted by: their kind, then their name."""
    return list(Kind).index(rule.kind), rule.op_type, rule.domain


def op_detail(rule: OpRule) -> str:
    """Return one operator in full."""
    lines = [f"{op_name(rule)}: {KINDS[rule.kind]}"]
    lines += [
        f"  input {i}{' …' if _repeats(rule, i) else ''}: {role_text(role)}"
        for i, role in enumerate(rule.inputs)
    ]
    lines += [f"  output {i}: {result_text(result)}" for i, result in enumerate(rule.outputs)]
    lines += [f"  {style.value}: {_lowering(rule, style)}" for style in Style]
    if rule.refuse is not None:
        lines.append(f"  exceptions: {first_sentence(rule.refuse)}")
    if rule.note:
        lines.append(f"  note: {rule.note}")
    return "\n".join(lines)


def _repeats(rule: OpRule, index: int) -> bool:
    return rule.variadic and index == len(rule.inputs) - 1


def _lowering(rule: OpRule, style: Style) -> str:
    lowering = rule.lowerings.get(style)
    if lowering is None:
        return f"{rule.op_type} between DequantizeLinear and QuantizeLinear" if style is Style.QDQ else "none"
    granularity = "" if lowering.per_channel else ", one scale per tensor"
    but = f"; not where: {first_sentence(lowering.refuse)}" if lowering.refuse is not None else ""
    return f"{op_name(lowering)} (activation and weight types: {', '.join(lowering.pairs)}{granularity}){but}"


def role_text(role: Role) -> str:
    """Return what an input is to its operator."""
    match role:
        case Act():
            return "activation"
        case Weight(axis, sums):
            return "weight" + _axis(", channels on ", axis) + _axis(", summed over ", sums)
        case Bias():
            return "bias, int32 with the scale of input 0 × that of input 1"
        case Table():
            return "table, quantized where it is constant"
        case Raw():
            return "as it is, never quantized"


def _axis(before: str, axis: Axis | None) -> str:
    if axis is None:
        return ""
    return f"{before}an axis that depends on the node" if callable(axis) else f"{before}axis {axis}"


def result_text(result: Result) -> str:
    """Return what an output is."""
    match result:
        case Out(low, high) if low is not None and high is not None:
            return f"a range known without data, {low:g} … {high:g}"
        case Out():
            return "a range of its own"
        case Same():
            return "the parameters of input 0"
        case RawOut():
            return "never quantized"


def first_sentence(hook: Callable[..., object]) -> str:
    """Return the first line of the docstring of a hook."""
    return (hook.__doc__ or hook.__name__).strip().splitlines()[0].rstrip(".")


def op_data(rule: OpRule) -> dict[str, Any]:
    """Return one operator as plain data."""
    return {
        "op_type": rule.op_type,
        "domain": rule.domain,
        "kind": rule.kind.value,
        "inputs": [type(role).__name__.lower() for role in rule.inputs],
        "variadic": rule.variadic,
        "outputs": [result_text(result) for result in rule.outputs],
        "lowerings": {
            style.value: _lowering_data(rule.lowerings[style]) for style in Style if style in rule.lowerings
        },
        "note": rule.note,
    }


def _lowering_data(lowering: Lowering) -> dict[str, Any]:
    return {
        "op_type": lowering.op_type,
        "domain": lowering.domain,
        "operands": lowering.operands,
        "pairs": list(lowering.pairs),
        "per_channel": lowering.per_channel,
    }


def target_table(targets: Iterable[Target]) -> str:
    """Return one line for each target."""
    return columns([[target.name, target.summary] for target in targets], ["target", "what it is"])


def target_detail(target: Target) -> str:
    """Return one target in full."""
    rows = [[key, value] for key, value in datasheet(target).items()]
    blocks = [f"{target.name}: {target.summary}", columns(rows, indent="  ", limit=4000)]
    for head, reasons in not_quantized(target).items():
        if reasons:
            lines = [f"  {reason}: {', '.join(ops)}" for reason, ops in reasons.items()]
            blocks.append("\n".join([f"{head}:", *lines]))
    for head, said in documented(target).items():
        blocks.append("\n".join([f"{head}:", *(f"  {line}" for line in said)]))
    return "\n\n".join(blocks)


def not_quantized(target: Target) -> dict[str, dict[str, list[str]]]:
    """Return the operators that are kept in float or refused, by what becomes of them and by the reason."""
    kinds = {
        "kept in float": target.placement.kept_in_float,
        "kept in float without data": target.placement.dynamic_kept_in_float,
        "refused": target.accepts.refused,
    }
    found: dict[str, dict[str, list[str]]] = {kind: {} for kind in kinds}
    for kind, reasons in kinds.items():
        for op, reason in sorted(reasons.items()):
            found[kind].setdefault(reason, []).append(op)
    return found


def documented(target: Target) -> dict[str, tuple[str, ...]]:
    """Return what the sheet says in sentences."""
    words = {
        "limits": target.documentation.limits,
        "placement": target.documentation.placement,
        "preparation": target.documentation.preparation,
        "sources": target.documentation.sources,
    }
    return {head: lines for head, lines in words.items() if lines}


def datasheet(target: Target) -> dict[str, str]:
    """Return what a target accepts and where it gains, as text by heading."""

    def listed(names: Iterable[str]) -> str:
        return ", ".join(sorted(names)) or "none"

    return {
        "formats": ", ".join(style.value for style in target.accepts.styles),
        "activation types": ", ".join(target.accepts.activation_types),
        "weight types": ", ".join(target.accepts.weight_types),
        "default with data": _recipe(target.static_recipe.activations, target.static_recipe.weights),
        "default without": _recipe(target.dynamic_recipe.activations, target.dynamic_recipe.weights),
        "quantized": listed(target.placement.linear),
        "quantized without data": listed(target.placement.dynamic_linear),
        "between quantized ones": listed(target.placement.elementwise),
        "moved as integers": listed(target.placement.data_movement),
        "recurrent": listed(target.placement.recurrent),
        "16-bit floats": f"computed in {', '.join(target.kernels.half_types)}"
        if target.kernels.half_types
        else "weights are stored in them, and restored to float32 at load",
        **_accepted(target),
    }


def _accepted(target: Target) -> dict[str, str]:
    """Return what the target accepts of scales, zero points, biases and types by operator."""
    only = target.accepts.channel_ops
    blocks = target.accepts.block_ops
    zero = [what for what, must in (("activations", target.accepts.symmetric_activations),
                                    ("weights", target.accepts.symmetric_weights)) if must]  # fmt: skip
    found = {
        "scales of weights": ", ".join(target.accepts.granularities)
        + (f"; per channel in {', '.join(sorted(only))} alone" if only is not None else "")
        + (f"; in blocks in {', '.join(sorted(blocks))} alone" if blocks is not None else ""),
        "zero points": f"0 for {' and '.join(zero)}" if zero else "any",
        "biases": "int32, or float" if target.accepts.int32_biases else "float",
    }
    for types in sorted(set(target.accepts.op_types.values())):
        ops = sorted(op for op, legal in target.accepts.op_types.items() if legal == types)
        found[f"activations of {', '.join(ops)}"] = ", ".join(types)
    for types in sorted(set(target.kernels.integer_types.values())):
        ops = sorted(op for op, legal in target.kernels.integer_types.items() if legal == types)
        found[f"integer kernels for {', '.join(types)}"] = ", ".join(ops)
    if target.accepts.min_range is not None:
        found["narrowest range"] = f"{target.accepts.min_range:g}"
    if target.accepts.newest_opset is not None:
        found["newest opset"] = str(target.accepts.newest_opset)
    if target.kernels.saturates:
        found["sums"] = "pairs of products are added in 16 bits, so weights use 7 bits"
    return found


def _recipe(activations: Any, weights: Any) -> str:
    reduced = " in reduced range" if weights.reduce_range else ""
    return f"activations {scheme_text(activations)}, weights {scheme_text(weights)}{reduced}"


def target_data(target: Target) -> dict[str, Any]:
    """Return one target as plain data."""
    return {
        "name": target.name,
        "summary": target.summary,
        "formats": [style.value for style in target.accepts.styles],
        "activation_types": list(target.accepts.activation_types),
        "weight_types": list(target.accepts.weight_types),
        "static_recipe": target.static_recipe.to_dict(),
        "dynamic_recipe": target.dynamic_recipe.to_dict(),
        "products": sorted(target.placement.linear),
        "dynamic_products": sorted(target.placement.dynamic_linear),
        "followers": sorted(target.placement.elementwise),
        "moves": sorted(target.placement.data_movement),
        "recurrent": sorted(target.placement.recurrent),
        "stays_float": dict(target.placement.kept_in_float),
        "dynamic_stays_float": dict(target.placement.dynamic_kept_in_float),
        "refuses": dict(target.accepts.refused),
        "granularities": list(target.accepts.granularities),
        "channel_ops": sorted(target.accepts.channel_ops) if target.accepts.channel_ops is not None else None,
        "block_ops": sorted(target.accepts.block_ops) if target.accepts.block_ops is not None else None,
        "symmetric_activations": target.accepts.symmetric_activations,
        "symmetric_weights": target.accepts.symmetric_weights,
        "int32_biases": target.accepts.int32_biases,
        "least_range": target.accepts.min_range,
        "op_types": {op: list(types) for op, types in target.accepts.op_types.items()},
        "kernels": {op: list(types) for op, types in sorted(target.kernels.integer_types.items())},
        "newest_opset": target.accepts.newest_opset,
        "saturates": target.kernels.saturates,
        **{head: list(lines) for head, lines in documented(target).items()},
    }
