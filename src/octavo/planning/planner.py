"""The planner: one walk over the graph and one place where plans are made. Policies say what is requested."""

from __future__ import annotations

import onnx_ir as ir

from octavo.core.plan import Plan
from octavo.model.graph import meta, query
from octavo.planning import compressed, overrides
from octavo.planning.policies.policy import Policy
from octavo.planning.selection import Selection
from octavo.planning.state import Avoid, State


def build(model: ir.Model, policy: Policy, avoid: Avoid | None = None) -> Plan:
    """Return the plan of a policy for a prepared model, which is not changed.

    ``avoid`` are nodes and tensors that have to stay float, by what calibration or weights have shown.
    """
    recipe, everything = policy.recipe, list(query.nodes(model))
    selection = Selection(everything, recipe, meta.of(model).op_types)
    kept = Avoid(tensors=overrides.kept_in_float(recipe, model))
    nodes = policy.walked(model, everything)
    state = State(model, nodes, selection, avoid.and_also(kept) if avoid is not None else kept)
    policy.begin(state)
    for node in nodes:
        reason = selection.refusal(node) or state.avoid.nodes.get(node.name or "") or policy.refusal(node)
        if reason is not None:
            state.skip(node, reason)
    policy.survey()
    for node in nodes:
        if state.is_open(node) and (reason := policy.decide(node)) is not None:
            state.skip(node, reason)
    policy.finish()
    entries = overrides.apply(state.entries, recipe, model)
    policy.settle(entries)
    plan = Plan(
        style=recipe.style,
        entries=entries,
        nodes=state.quantized,
        fused=state.fused,
        skipped=state.skipped(),
        barriers=policy.barriers(entries),
        writing=recipe.writing,
        rounded=state.rounded,
    )
    return compressed.with_compressed(plan, everything, state, recipe)
