"""Distillation of the last layers: their weights are fitted to the probabilities of the float model.

Other steps keep each layer close to float on the average of all that it computes. What is read from a text
reader is decided at a few places, where two classes are close, and a shift that only these have changes many
answers. So a layer in front of a Softmax whose result the model returns is fitted to float's probabilities by
what it reads in the quantized model (:mod:`octavo.algorithms.layers.score_fit`). Labels are not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers.error_feedback import nearest
from octavo.algorithms.layers.quantized_layers import remember
from octavo.algorithms.layers.score_fit import Places
from octavo.algorithms.layers.score_layers import ScoreLayer, score_layers
from octavo.algorithms.layers.subject import Refusal, Subject, Trial
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.core.stats import State
from octavo.model.graph.edit import Editor


@dataclass(frozen=True)
class Distill(Step):
    """Fit the last layers to the float model's probabilities."""

    name: ClassVar[str] = "distill"
    phase: ClassVar[Phase] = Phase.INTEGERS
    summary: ClassVar[str] = "fits the layers in front of the last Softmax to float's probabilities"
    reads_float_model: ClassVar[bool] = True

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Fit every layer whose scores the model returns as probabilities."""
        found, trial = list(score_layers(subject)), subject.trial
        if not found:
            return StepReport(self.name)
        if trial is None or trial.float_model is None or not trial.can_repeat:
            reason = "the data can't be read again to run both models"
            return StepReport.of(
                self.name, [Refusal(one.layer.name, reason) for one in found], "fitted", "layers"
            )
        gathered = _places(found, trial, trial.float_model)
        editor = Editor(subject.model)
        done = [_fitted(one, gathered[one.layer.name], editor) for one in subject.each(self.name, found)]
        return StepReport.of(self.name, done, "fitted", "layers")


def _places(found: Sequence[ScoreLayer], trial: Trial, float_model: ir.Model) -> dict[str, Places | str]:
    """Return the undecided places of each layer by its name, or why it can't be fitted."""
    quantized = trial.quantized_model()
    nodes = {node.name or "": node for node in quantized.graph}
    gathered: dict[str, Places | str] = {}
    inputs: dict[str, tuple[str, str]] = {}
    for one in found:
        node, last = nodes.get(one.layer.name), nodes.get(one.layer.bias_node.name or "")
        if node is None or last is None or node.op_type != one.layer.node.op_type or node.inputs[0] is None:
            gathered[one.layer.name] = "it is another operator in the quantized model"
            continue
        inputs[one.layer.name] = (node.inputs[0].name or "", last.outputs[0].name or "")
        gathered[one.layer.name] = Places()
    wanted = [name or "" for one in found for name in (one.layer.y.name, one.softmax.outputs[0].name)]
    read = [name for pair in inputs.values() for name in pair]
    pairs = zip(trial.outputs(float_model, wanted), trial.outputs(quantized, read), strict=True)
    for ours, theirs in pairs:
        for one in found:
            places = gathered[one.layer.name]
            if not isinstance(places, Places):
                continue
            features, scores = (one.rows(theirs[name]) for name in inputs[one.layer.name])
            expected = one.rows(ours[one.layer.y.name or ""])
            if not places.features and not one.is_over_classes(ours):
                gathered[one.layer.name] = "its Softmax is not over its outputs"
            elif expected.shape != scores.shape or not (
                np.isfinite(expected).all() and np.isfinite(scores).all() and np.isfinite(features).all()
            ):
                gathered[one.layer.name] = "its scores can't be compared with float's"
            else:
                places.add(*(np.asarray(part, np.float64) for part in (features, expected, scores)))
    return gathered


def _fitted(one: ScoreLayer, places: Places | str, editor: Editor) -> Change | Refusal:
    layer = one.layer
    if isinstance(places, str):
        return Refusal(layer.name, places)
    problem = places.problem()
    if problem is None:
        return Refusal(layer.name, "no class is undecided at enough places")
    change = problem.change()
    if change is None:
        return Refusal(layer.name, "samples that are left out would not come closer to float")
    rows, bias = layer.rows(), layer.bias_values()
    if one.quantized is None:
        rows[0][change.classes] += change.weights
        bias[change.classes] += change.bias
    else:
        grid = one.quantized.grid(rows)
        rows = nearest(rows, grid)
        found = problem.rounded(change, rows[0], grid)
        if found is None:
            return Refusal(layer.name, "rounding leaves nothing of the gain")
        remember(layer)
        rows[0][change.classes] = found[0]
        bias[change.classes] += found[1]
    layer.store(rows)
    layer.store_bias(bias, editor)
    return Change(layer.name, "fitted", change.before, change.after)
