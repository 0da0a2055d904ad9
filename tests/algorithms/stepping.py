"""Run single steps on a model, as the pipeline does, and compare outputs by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
from quantizing import run

import octavo
from octavo import calibration, pipeline, planning
from octavo.algorithms import steps as stepping
from octavo.algorithms.steps import StepReport, Subject
from octavo.core.granularity import PerTensor
from octavo.core.recipe import Recipe
from octavo.model.files import io
from octavo.targets import target

Feeds = dict[str, np.ndarray]

# every operator, whatever its size: the models of tests are small
EVERYWHERE = octavo.W8A8.but(placement=octavo.Placement.EVERYWHERE)
PER_TENSOR = EVERYWHERE.but(weights=EVERYWHERE.weights.but(granularity=PerTensor()))


def float_step(
    proto: onnx.ModelProto, text: str, samples: Sequence[Feeds], recipe: Recipe = EVERYWHERE
) -> tuple[onnx.ModelProto, StepReport]:
    """The float model after a step, and its report."""
    model = io.load(proto)
    pipeline.ready(model, 17, octavo.PrepareOptions(fold_constants=False, fuse=False))
    subject = Subject(model, recipe, planning.build(model, planning.policy_for(recipe, target("ort-cpu"))))
    chosen = stepping.steps([text])
    with stepping.observed(chosen, subject) as needs:
        stats = calibration.collect(model, needs, list(samples)) if needs else {}
    (report,) = stepping.apply(chosen, subject, stats)
    return io.to_proto(model), report


def difference(one: onnx.ModelProto, other: onnx.ModelProto, samples: Sequence[Feeds]) -> float:
    """The largest difference of two models' outputs beside the largest output."""
    worst = 0.0
    for feeds in samples:
        a, b = run(one, feeds), run(other, feeds)
        for name in a:
            worst = max(worst, float(np.abs(a[name] - b[name]).max() / np.abs(a[name]).max()))
    return worst


def error(proto: onnx.ModelProto, samples: Sequence[Feeds], fresh: Sequence[Feeds], recipe: Recipe) -> float:
    """The mean squared error of a quantized model on samples that it was not made with, in float64."""
    result = octavo.quantize(proto, list(samples), recipe=recipe)
    total = []
    for feeds in fresh:
        a, b = run(proto, feeds, optimize=False), run(result, feeds, optimize=False)
        total += [np.mean((a[n].astype(np.float64) - b[n].astype(np.float64)) ** 2) for n in a]
    return float(np.mean(total))


def weights_of(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    """The initializers by name."""
    return {i.name: onnx.numpy_helper.to_array(i) for i in proto.graph.initializer}


def op_types(model: onnx.ModelProto | ir.Model) -> list[str]:
    """The op types in the order of the graph."""
    graph = model.graph
    return [n.op_type for n in (graph.node if isinstance(model, onnx.ModelProto) else graph)]
