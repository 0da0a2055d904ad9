"""What weight algorithms want to know of the inputs of layers: requests, and what calibration answered."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.input_moments import probe_sum
from octavo.algorithms.layers.layer import Layer
from octavo.algorithms.layers.statistics_requests import StatisticsRequests, moment_names
from octavo.algorithms.weights.blocks import Inputs
from octavo.algorithms.weights.registry import AWQ_IF_SAMPLED, WITHOUT_DATA, algorithm
from octavo.core.granularity import PerBlock
from octavo.core.plan import Constant, Key, Plan
from octavo.core.recipe import Recipe
from octavo.core.stats import State
from octavo.data.decoder import filled, ids_of
from octavo.data.source import Array
from octavo.errors import ModelError
from octavo.model.graph import query
from octavo.model.runtime.samples import specs_of
from octavo.ops import Kind, Table, rule_of
from octavo.pipeline.options import Run
from octavo.planning.weights import weight_of


def request_inputs(model: ir.Model, plan: Plan, requests: StatisticsRequests) -> None:
    """Add what the weight algorithms of a plan want to know of the float model."""
    if is_sequential(plan):
        return
    for _, layer, wants in _layers(model, plan):
        products = wants is Inputs.PRODUCTS
        requests.add_moments([layer], gram=products)
        requests.every_gram |= products


def needs_inputs(plan: Plan) -> bool:
    """Whether a weight algorithm of the plan needs calibration data."""
    return any(_wanted(entry) is not Inputs.NONE for entry in plan.entries.values())


def is_sequential(plan: Plan) -> bool:
    """Whether a weight algorithm wants the inputs of layers as those before, already quantized, give them."""
    texts = {entry.algorithm for entry in plan.entries.values() if isinstance(entry, Constant)}
    chosen = [algorithm(text) for text in texts if text is not None]
    return any(getattr(one, "sequential", False) for one in chosen)


def reads_inputs(recipe: Recipe) -> bool:
    """Whether a weight algorithm of a recipe reads calibration data."""
    if not recipe.is_weight_only:
        return False
    texts = {recipe.weight_only.algorithm, *(one.algorithm for one in recipe.weight_only.layers)}
    return any(algorithm(text).wants is not Inputs.NONE for text in texts - {None, "auto"} if text)


def inputs_of(model: ir.Model, plan: Plan, probes: Mapping[str, State]) -> dict[Key, npt.NDArray[Any]]:
    """Return the statistics that calibration found for each weight whose algorithm wants some.

    Those of a weight that several layers read alike are added up: it is quantized once.
    """
    totals: dict[object, npt.NDArray[Any]] = {}
    alike: dict[Key, object] = {}
    for key, layer, wants in _layers(model, plan):
        names = moment_names(layer)
        gram, square = (probe_sum(probes, names[part]) for part in ("gram", "square"))
        if wants is Inputs.SQUARES and square is None and gram is not None:
            square = np.diagonal(gram, axis1=1, axis2=2)
        answer = gram if wants is Inputs.PRODUCTS else square
        if answer is not None:
            width = layer.inputs
            answer = answer.reshape(width, width) if wants is Inputs.PRODUCTS else answer.reshape(width)
            slot = alike[key] = (weight_of(layer.weight), plan.entries[key])
            totals[slot] = totals[slot] + answer if slot in totals else answer
    return {key: totals[slot] for key, slot in alike.items()}


def _wanted(entry: object) -> Inputs:
    if not isinstance(entry, Constant) or entry.algorithm is None:
        return Inputs.NONE
    return algorithm(entry.algorithm).wants


def _layers(model: ir.Model, plan: Plan) -> Iterator[tuple[Key, Layer, Inputs]]:
    """Yield the weights whose algorithms want statistics, with the layers that read them."""
    nodes = {node.name: node for node in query.nodes(model)} if needs_inputs(plan) else {}
    for key, entry in plan.entries.items():
        wants, node = _wanted(entry), nodes.get(key.consumer)
        read = node.inputs[1:] if node is not None else ()
        weight = next((value for value in read if value is not None and value.name == key.tensor), None)
        if wants is Inputs.NONE or node is None or weight is None or query.static_shape(weight) is None:
            continue
        grain = entry.scheme.granularity if isinstance(entry, Constant) else None
        along_rows = isinstance(grain, PerBlock) and grain.axis == 0
        yield key, Layer(node, weight, None, node, 1, transposed=along_rows), wants


# ---- Token ids for weight algorithms where no data is given
#
# Which input channels of a layer are large depends far more on the weights before it than on the text. One
# short run over uniformly random token ids shows most of it; statistics of a real text are better still.

TOKENS = 256  # longer runs gain little
_MOST_TOKENS = 1 << 20  # of one sample; the longest windows of language models have as many
# Leaves 5 % more error than the full search, in a quarter of its time.
_ALGORITHM = f"importance:narrowest=0.75:candidates=4:neighbours=0:fits=1:random_tokens={TOKENS}"
_AWQ = "awq:rows=32"  # more rows gain little, and no data is meant to be quick
_SEED = 0  # fixed, so that the same model gives the same bytes
_MAX_SHARE = 0.25  # of the machine's memory that the weights may take: the runtime needs them up to twice


def with_algorithm(model: ir.Model, recipe: Recipe, data: Any, run: Run) -> Recipe:
    """Name the weight algorithm of a recipe that leaves it open: without data it depends on the model."""
    options = recipe.weight_only
    if not recipe.is_weight_only or options.algorithm != "auto":
        return recipe
    if data is not None or run.observation.stats is not None:
        return recipe.but(weight_only=replace(options, algorithm=WITHOUT_DATA))
    few = recipe.weights.qtype.bits < 8 and not options.by_sensitivity
    if not few or isinstance(random_tokens(model, TOKENS), str):
        return without_inputs(recipe)
    steps = tuple(_AWQ if text == AWQ_IF_SAMPLED else text for text in recipe.steps)
    return recipe.but(weight_only=replace(options, algorithm=_ALGORITHM), steps=steps)


def without_inputs(recipe: Recipe) -> Recipe:
    """Return a recipe with the algorithm that needs no inputs, and without the step that does."""
    steps = tuple(text for text in recipe.steps if text not in (AWQ_IF_SAMPLED, _AWQ))
    return recipe.but(weight_only=replace(recipe.weight_only, algorithm=WITHOUT_DATA), steps=steps)


def takes_random_tokens(recipe: Recipe) -> bool:
    """Whether the inputs that random tokens make stand in for missing data."""
    chosen = recipe.weight_only.algorithm
    is_named = recipe.is_weight_only and chosen not in (None, "auto")
    return is_named and getattr(algorithm(chosen), "random_tokens", 0) > 0


def algorithms_with_data(plan: Plan) -> list[str]:
    """Return the weight algorithms of a plan that have to know what layers read."""
    texts = {entry.algorithm for entry in plan.entries.values() if isinstance(entry, Constant)} - {None}
    return sorted(text for text in texts if text and algorithm(text).wants is not Inputs.NONE)


def or_random_tokens(model: ir.Model, plan: Plan, data: Any, run: Run) -> Any:
    """Return the data, or random tokens where there is none and all algorithms of the plan take them."""
    if data is not None or run.observation.stats is not None or plan.needs():
        return data
    texts = {entry.algorithm for entry in plan.entries.values() if isinstance(entry, Constant)}
    chosen = [algorithm(text) for text in texts if text is not None]
    counts = [getattr(one, "random_tokens", 0) for one in chosen if one.wants is not Inputs.NONE]
    found = random_tokens(model, max(counts)) if counts and all(counts) else None
    return [found] if isinstance(found, dict) else None


def random_tokens(model: ir.Model, count: int) -> dict[str, Array] | str:
    """Return one sample of random token ids, or why there is none."""
    specs = specs_of(model)
    ids = ids_of(specs) if specs else None
    if ids is None or len(ids.shape) != 2 or ids.dtype.kind not in "iu":
        return "the model does not read token ids"
    vocabulary = _vocabulary(model, ids.name)
    if not vocabulary:
        return f"no table is looked up with {ids.name!r} itself"
    if _weight_bytes(model) > _MAX_SHARE * memory():
        return "the float model is large beside the memory of this machine"
    batch, length = (
        dim if isinstance(dim, int) and dim > 0 else least
        for dim, least in zip(ids.shape, (1, count), strict=True)
    )
    if batch * length > _MOST_TOKENS:
        return f"the model reads {batch * length} token ids at once"
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


def memory() -> float:
    """Return the bytes of memory of this machine; infinite where it does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return math.inf
