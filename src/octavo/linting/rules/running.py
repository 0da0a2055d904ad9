"""OCT6…: how the installed runtime executes the model."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.linting.findings import Fault, Severity, rule
from octavo.linting.view import LintedModel
from octavo.model.graph.dequantized import Between, between
from octavo.ops.integer_operators import WEIGHTED


@rule("OCT601", Severity.ERROR, "The runtime does not load the model", runs=True)
def does_not_load(view: LintedModel) -> Iterator[Fault]:
    """Nothing else can be said of such a model."""
    found = view.running
    if isinstance(found, str):
        yield Fault(view.model.graph.name or "graph", found, "repair what the runtime names")


@rule("OCT602", Severity.WARNING, "An operator between conversions runs in float", runs=True)
def unfused(view: LintedModel) -> Iterator[Fault]:
    """The graph that runs still has float operators fed by DequantizeLinear."""
    found = view.running
    if isinstance(found, str) or not view.target.kernels.integer_types:
        return
    known = {node.name for node in view.nodes}
    constant = {tensor.name for tensor in found.initializer}
    for part in between(found):
        if not (_slowed(part, constant) or _is_between(part, view, known, constant)):
            continue
        yield Fault(
            _origin(part.node.name or part.node.output[0], known),
            f"{part.node.op_type} runs in float with conversions around it, slower than before quantization",
            "quantize its input, weight, int32 bias and output as the target's sheet says, or none of them",
        )


def _slowed(part: Between, constant: set[str]) -> bool:
    """Whether a layer's quantized weight is dequantized at each run."""
    if part.node.op_type not in WEIGHTED or len(part.node.input) < 2:
        return False
    return any(
        dq.output[0] == part.node.input[1] and dq.input[0] in constant and _is_activation(part, constant)
        for dq in part.before
    )


def _is_activation(part: Between, constant: set[str]) -> bool:
    """Whether a quantized activation is read beside the weight: weights alone are meant to be float here."""
    return any(dq.input[0] not in constant for dq in part.before)


def _is_between(part: Between, view: LintedModel, known: set[str | None], constant: set[str]) -> bool:
    """Whether a float operator with a kernel on the target stands between quantized values alone."""
    op = part.node.op_type
    listed = op in view.target.kernels.integer_types
    given = {dq.output[0] for dq in part.before} | constant | {""}
    return (
        bool(part.after)
        and given.issuperset(part.node.input)
        and part.node.name in known
        and listed
        and op not in view.target.placement.kept_in_float
    )


def _origin(name: str, known: set[str | None]) -> str:
    """Return the node's name in the model that was read, where the runtime has renamed it."""
    while name not in known and "/" in name:
        name = name.rpartition("/")[0]
    return name
