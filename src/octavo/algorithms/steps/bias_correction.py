"""Bias correction: subtracts from the bias the mean shift that rounding gives an output.

Rounded weights ``ŵ`` shift an output by ``E[(ŵ - w) · x] = (ŵ - w) · μ``, with ``μ`` the mean of what the
layer reads. The bias takes the negative of it, at no cost: a Conv or Gemm without a bias gets one, and so
does a MatMul that becomes an operator with an input for it.

*Analytic*: ``μ`` is that of the float model. *Sequential*: the quantized model, corrected so far, is run
again for some layers, one after the other, which gives the mean ``μ̂`` that each reads there::

    bias = b + w · μ - ŵ · μ̂

so that the shifts of earlier layers and of rounded activations are corrected as well. By default that is done
where float functions follow most convolutions: a nonlinear function turns noise before it into a shift, which
no sum over weights tells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers import quantization_noise
from octavo.algorithms.layers.error_feedback import nearest
from octavo.algorithms.layers.input_moments import InputMoments, input_moments
from octavo.algorithms.layers.layer import F64, Layer
from octavo.algorithms.layers.layer import layers as all_layers
from octavo.algorithms.layers.quantized_layers import QuantizedLayer, original_rows, quantized_layers
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model.graph.edit import Editor
from octavo.ops import MATMUL_TO_FLOAT

_LEAST_SHIFT = 1e-9  # squared, relative to the output's variance; a smaller one is rounding of float32


@dataclass(frozen=True)
class BiasCorrection(Step):
    """Correct the mean shifts of layers' outputs."""

    name: ClassVar[str] = "bias-correction"
    phase: ClassVar[Phase] = Phase.INTEGERS
    summary: ClassVar[str] = "subtracts from the bias the mean shift that rounding gives an output"

    sequential: bool | None = None  # run the quantized model again, for the shifts of earlier layers
    layers: int = 4  # corrected sequentially, evenly spread up to the last

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise RecipeError(f"bias-correction:layers must be 1 or more, not {self.layers}.")

    def prepare(self, subject: Subject) -> None:
        """Give layers without a bias one of zeros, where that adds no operator."""
        if not subject.recipe.is_static:
            return
        editor = Editor(subject.model)
        for layer in list(all_layers(subject.model, subject.plan.nodes)):
            if not isinstance(layer, Layer) or layer.bias is not None:
                continue
            if layer.takes_bias:
                layer.store_bias(np.zeros(layer.outputs), editor)
            elif subject.plan.nodes[layer.name].lowering == MATMUL_TO_FLOAT.op_type:
                _add_zero_bias(layer, editor)

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request the mean of what each layer reads."""
        layers = [one.layer for one in quantized_layers(subject)[0]]
        requests.add_moments(layers, gram=False)
        if self._is_sequential(subject):
            biased = [layer for layer in layers if layer.bias is not None]
            requests.add_sampled_moments([biased[index] for index in _spread(len(biased), self.layers)])

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Correct every layer that has a bias."""
        found, refused = quantized_layers(subject)
        done: list[Change | Refusal] = list(refused)
        corrected: list[Corrected] = []
        editor = Editor(subject.model)
        for one in subject.each(self.name, found):
            inputs = input_moments(one.layer, stats)
            if one.layer.bias is None:
                done.append(Refusal(one.layer.name, "it has no bias, and one would add an operator"))
            elif inputs is None:
                done.append(Refusal(one.layer.name, "its input was not observed"))
            else:
                numbers = Corrected.of(one)
                done.append(numbers.change(inputs))
                if isinstance(done[-1], Change):
                    numbers.store(inputs.mean, inputs.mean, editor)
                corrected.append(numbers)
        if self._is_sequential(subject):
            done += _correct_sequentially(corrected, subject, stats, editor)
        return StepReport.of(self.name, done, "corrected", "biases")

    def _is_sequential(self, subject: Subject) -> bool:
        """Return whether the quantized model is run again."""
        if self.sequential is not None:
            return self.sequential
        if subject.trial is not None and not subject.trial.can_repeat:
            return False
        convs = [one.layer for one in quantized_layers(subject)[0] if one.layer.is_conv]
        return sum(_has_float_consumers(layer, subject) for layer in convs) > len(convs) / 2


def _has_float_consumers(layer: Layer, subject: Subject) -> bool:
    """Return whether float operators, and no others, read the result of a layer."""
    consumers = layer.y.consumers()
    if len(consumers) == 1 and consumers[0].name in subject.plan.fused:
        consumers = consumers[0].outputs[0].consumers()
    return bool(consumers) and not any(subject.is_quantized(consumer) for consumer in consumers)


@dataclass(frozen=True)
class Corrected:
    """A layer with its original and its stored weights."""

    layer: Layer
    rows: F64
    stored: F64
    bias: F64

    @classmethod
    def of(cls, one: QuantizedLayer) -> Corrected:
        """Return the weights of a layer; those that an earlier step rounded stay as they are."""
        now = one.layer.rows()
        return cls(one.layer, original_rows(one.layer), nearest(now, one.grid(now)), one.layer.bias_values())

    def change(self, inputs: InputMoments) -> Change | Refusal:
        """Return what correcting the mean shift gains."""
        delta = self.stored - self.rows
        error, shift = inputs.error(delta), _shift(delta, inputs.mean)
        variance = quantization_noise.output_variance(self.rows, inputs)
        if not (shift**2).sum() > _LEAST_SHIFT * max(variance.sum(), 1e-30):
            return Refusal(self.layer.name, "rounding does not shift its output")
        before = quantization_noise.relative(error, variance)
        gain = quantization_noise.relative(shift**2, variance)
        return Change(self.layer.name, "shift", before, max(before - gain, 0.0))

    def store(self, float_mean: F64, quantized_mean: F64, editor: Editor) -> None:
        """Write the bias, given the mean input of the layer in the float and in the quantized model."""
        target = _shift(self.rows, float_mean) - _shift(self.stored, quantized_mean)
        self.layer.store_bias(self.bias + target.reshape(-1), editor)


def _add_zero_bias(layer: Layer, editor: Editor) -> None:
    """Add a bias of zeros after a MatMul, which becomes one integer operator with it."""
    y = layer.node.outputs[0]
    zeros = editor.constant(f"{layer.name}_bias", np.zeros(layer.outputs, np.float32))
    name = f"{layer.name}_bias_add"
    add = editor.node("Add", [None, zeros], name=name, output=name, dtype=y.dtype)
    add.outputs[0].shape = y.shape
    editor.take_over(add.outputs[0], y)
    y.name = editor.values.claim(f"{layer.name}_product")
    add.replace_input_with(0, y)
    layer.node.append(add)


def _shift(rows: F64, mean: F64) -> F64:
    return np.asarray(np.einsum("gok,gk->go", rows, mean))


def _correct_sequentially(
    corrected: Sequence[Corrected],
    subject: Subject,
    float_stats: Mapping[str, State],
    editor: Editor,
) -> list[Refusal]:
    """Correct some layers one after the other by what they read in the quantized model."""
    trial = subject.trial
    if trial is None:
        return [Refusal("sequential correction", "there is no data to run the quantized model on")]
    for one in corrected:
        in_float = input_moments(one.layer, float_stats, sampled=True)
        if in_float is None:
            continue
        model = trial.quantized_model()
        nodes = {node.name or "": node for node in model.graph}
        layer = _in(nodes, one.layer)
        if layer is None:
            continue
        requests = StatisticsRequests()
        requests.add_sampled_moments([layer])
        read = input_moments(layer, trial.statistics(model, requests), sampled=True)
        if read is not None:
            one.store(in_float.mean, read.mean, editor)
    return []


def _spread(count: int, most: int) -> list[int]:
    """Return evenly spread indices of the layers to correct; neighbours would correct one shift twice."""
    return sorted({round(count * (i + 1) / most) - 1 for i in range(most) if count * (i + 1) >= most})


def _in(nodes: Mapping[str, ir.Node], layer: Layer) -> Layer | None:
    """Return the layer of the quantized model, with the shapes that probes need."""
    node = nodes.get(layer.name)
    if node is None or node.op_type != layer.node.op_type:
        return None
    node.outputs[0].shape = layer.node.outputs[0].shape
    if node.inputs[0] is not None:
        node.inputs[0].shape = layer.x.shape
    return replace(layer, node=node)
