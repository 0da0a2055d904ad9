"""Quantizing products by parameters that are given, without calibration: load, plan, write, verify."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import onnx

from octavo import emission, planning
from octavo.errors import ModelError, RecipeError, closest
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.runtime.verification import verify
from octavo.pipeline.prepare import LEAST_OPSET, UNCHANGED, ready
from octavo.planning.policies.given import Given, GivenPolicy
from octavo.targets import target as find_target


def quantize(
    source: io.ModelSource,
    given: Given,
    *,
    wanted: Collection[str] | None = None,
    excluded: Collection[str] = (),
    op_types: Collection[str] | None = None,
) -> onnx.ModelProto:
    """Return the quantized model; ``wanted`` and ``excluded`` are names of nodes."""
    model = io.load(source)
    ready(model, LEAST_OPSET, UNCHANGED)
    nodes = list(query.nodes(model))
    _check_names(
        given, {v.name or "" for node in nodes for v in (*node.inputs, *node.outputs) if v is not None}
    )
    refused = dict(given.refused)
    for node in nodes:
        name = node.name or ""
        if name in excluded:
            refused[name] = "excluded"
        elif (wanted is not None and name not in wanted) or (
            op_types is not None and node.op_type not in op_types
        ):
            refused[name] = "not among those requested"
    plan = planning.build(model, GivenPolicy(replace(given, refused=refused), find_target("ort-cpu")))
    if not plan.nodes:
        raise ModelError(f"{io.describe(model)} has no Conv or MatMul that can be quantized.")
    emission.emit(model, plan, planning.resolve(model, plan, {}))
    verify(model)
    return io.to_proto(model)


def _check_names(given: Given, known: Collection[str]) -> None:
    for name in (*given.inputs, *given.outputs):
        if name not in known:
            raise RecipeError(
                f"Parameters are given for {name!r}: no such tensor{closest(name, known) or '.'}"
            )
