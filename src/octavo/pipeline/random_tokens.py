"""Token ids for weight algorithms where no data is given.

Which input channels of a layer are large depends far more on the weights before it than on the text. Random
token ids, every one as likely, show most of it in one short run; statistics of a real text are better still.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir

from octavo.algorithms.weights import Importance, Inputs, algorithm
from octavo.core.plan import Constant, Plan
from octavo.core.recipe import Recipe
from octavo.data.decoder import filled, ids_of
from octavo.data.source import Array
from octavo.errors import ModelError
from octavo.model.graph import query
from octavo.model.runtime.samples import specs_of
from octavo.ops import Kind, Table, rule_of
from octavo.pipeline.options import Run
from octavo.planning.policies.weight_only import WITHOUT_DATA

TOKENS = 256  # longer runs gain little
# Leaves 5 % more error than the full search, in a third of its time.
_ALGORITHM = f"importance:narrowest=0.7:candidates=6:neighbours=0:fits=1:random_tokens={TOKENS}"
_SEED = 0
_MAX_SHARE = 0.25  # of the machine's memory that the weights may take: the runtime needs them up to twice


def with_algorithm(model: ir.Model, recipe: Recipe, data: Any, run: Run) -> Recipe:
    """Name the weight algorithm of a recipe that leaves it open: without data it depends on the model."""
    options = recipe.weight_only
    if not recipe.is_weight_only or options.algorithm != "auto":
        return recipe
    has_data = data is not None or run.observation.stats is not None
    few = recipe.weights.qtype.bits < 8 and options.average_bits is None
    if has_data or not few or isinstance(random_tokens(model, TOKENS), str):
        return without_inputs(recipe)
    return recipe.but(weight_only=replace(options, algorithm=_ALGORITHM))


def without_inputs(recipe: Recipe) -> Recipe:
    """Return a recipe with the algorithm that has to know nothing of inputs."""
    return recipe.but(weight_only=replace(recipe.weight_only, algorithm=WITHOUT_DATA))


def or_random_tokens(model: ir.Model, plan: Plan, data: Any, run: Run) -> Any:
    """Return the data, or random tokens where there is none and all algorithms of the plan take them."""
    if data is not None or run.observation.stats is not None or plan.needs():
        return data
    texts = {entry.algorithm for entry in plan.entries.values() if isinstance(entry, Constant)}
    chosen = [algorithm(text) for text in texts if text is not None]
    counts = [
        one.random_tokens if isinstance(one, Importance) else 0
        for one in chosen
        if one.wants is not Inputs.NONE
    ]
    found = random_tokens(model, max(counts)) if counts and all(counts) else None
    return [found] if isinstance(found, dict) else None


def random_tokens(model: ir.Model, count: int) -> dict[str, Array] | str:
    """Return one sample of random token ids, or why there is none."""
    specs = specs_of(model)
    ids = ids_of(specs) if specs else None
    if ids is None or len(ids.shape) != 2 or ids.dtype.kind not in "iu":
        return "the model does not read token ids"
    vocabulary = _vocabulary(model, ids.name)
    if vocabulary is None:
        return f"no table is looked up with {ids.name!r} itself"
    if _weight_bytes(model) > _MAX_SHARE * _memory():
        return "the float model is large beside the memory of this machine"
    batch, length = (
        dim if isinstance(dim, int) and dim > 0 else least
        for dim, least in zip(ids.shape, (1, count), strict=True)
    )
    drawn = np.random.default_rng(_SEED).integers(0, vocabulary, (batch, length))
    try:
        return filled(drawn, specs)
    except ModelError as error:
        return str(error)


def _vocabulary(model: ir.Model, name: str) -> int | None:
    """Return the number of rows of the smallest table that is looked up with an input."""
    value = next(one for one in model.graph.inputs if one.name == name)
    rows: list[int] = []
    for node in value.consumers():
        rule = rule_of(node)
        if rule is None or rule.kind is not Kind.LOOKUP or query.attribute(node, "axis", 0) != 0:
            continue
        shapes = [query.static_shape(table) for table in rule.reads(node, Table)]
        rows += [shape[0] for shape in shapes if shape]
    return min(rows, default=None)


def _weight_bytes(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value)


def _memory() -> float:
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
