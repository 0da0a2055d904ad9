"""What weight algorithms want to know of the inputs of layers: requests, and what calibration answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.algorithms.layers.input_moments import probe_sum
from octavo.algorithms.layers.layer import Layer
from octavo.algorithms.layers.statistics_requests import StatisticsRequests, moment_names
from octavo.algorithms.weights import Inputs, algorithm
from octavo.core.granularity import PerBlock
from octavo.core.plan import Constant, Key, Plan
from octavo.core.recipe import Recipe
from octavo.core.stats import State
from octavo.model.graph import query


def request_inputs(model: ir.Model, plan: Plan, requests: StatisticsRequests) -> None:
    """Add what the weight algorithms of a plan want to know."""
    for _, layer, wants in _layers(model, plan):
        products = wants is Inputs.PRODUCTS
        requests.add_moments([layer], gram=products)
        requests.every_gram |= products


def needs_inputs(plan: Plan) -> bool:
    """Whether a weight algorithm of the plan needs calibration data."""
    return any(_wanted(entry) is not Inputs.NONE for entry in plan.entries.values())


def reads_inputs(recipe: Recipe) -> bool:
    """Whether a weight algorithm of a recipe reads calibration data."""
    if not recipe.is_weight_only:
        return False
    texts = {recipe.weight_only.algorithm, *(one.algorithm for one in recipe.weight_only.layers)}
    return any(algorithm(text).wants is not Inputs.NONE for text in texts - {None, "auto"} if text)


def inputs_of(model: ir.Model, plan: Plan, probes: Mapping[str, State]) -> dict[Key, npt.NDArray[Any]]:
    """Return the statistics that calibration found for each weight whose algorithm wants some."""
    found: dict[Key, npt.NDArray[Any]] = {}
    for key, layer, wants in _layers(model, plan):
        names = moment_names(layer)
        gram, square = (probe_sum(probes, names[part]) for part in ("gram", "square"))
        if wants is Inputs.SQUARES and square is None and gram is not None:
            square = np.diagonal(gram, axis1=1, axis2=2)
        answer = gram if wants is Inputs.PRODUCTS else square
        if answer is not None:
            width = layer.inputs
            found[key] = answer.reshape(width, width) if wants is Inputs.PRODUCTS else answer.reshape(width)
    return found


def _wanted(entry: object) -> Inputs:
    if not isinstance(entry, Constant) or entry.algorithm is None:
        return Inputs.NONE
    return algorithm(entry.algorithm).wants


def _layers(model: ir.Model, plan: Plan) -> Iterator[tuple[Key, Layer, Inputs]]:
    """Yield the weights whose algorithms want statistics, with the layers that read them."""
    nodes = {node.name: node for node in query.nodes(model)} if needs_inputs(plan) else {}
    for key, entry in plan.entries.items():
        wants, node = _wanted(entry), nodes.get(key.consumer)
        weight = node.inputs[1] if node is not None and len(node.inputs) > 1 else None
        if wants is Inputs.NONE or node is None or weight is None or query.static_shape(weight) is None:
            continue
        grain = entry.scheme.granularity if isinstance(entry, Constant) else None
        along_rows = isinstance(grain, PerBlock) and grain.axis == 0
        yield key, Layer(node, weight, None, node, 1, transposed=along_rows), wants
