"""Bias correction: the mean shift that rounding gives every output goes into the bias.

Rounded weights ``ŵ`` shift an output by ``E[(ŵ - w) · x] = (ŵ - w) · μ``, with ``μ`` the mean of what the
layer reads. The bias takes the negative of it, at no cost: a Conv or Gemm without a bias gets one, and so
does a MatMul that becomes an operator with a place for it.

*Analytic*: ``μ`` is that of the float model. *Sequential*: the quantized model, corrected so far, is run
again for some layers, one after the other, which gives the mean ``μ̂`` that each reads there::

    bias = b + w · μ - ŵ · μ̂

so that the shifts of the layers before and of rounded activations are made up for as well. Where nothing is
said, that is done where float functions stand behind most convolutions: they bend what was only noise before
them, and no sum over weights tells by how much.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from octavo.algorithms import noise
from octavo.algorithms.feedback import nearest
from octavo.algorithms.inputs import Inputs, inputs_of
from octavo.algorithms.layers import F64, Layer
from octavo.algorithms.layers import layers as all_layers
from octavo.algorithms.quantized import QuantizedLayer, original_rows, quantized_layers
from octavo.algorithms.steps import Change, Phase, Refusal, StepReport, Subject
from octavo.algorithms.wishes import Wishes
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model.edit import Editor
from octavo.ops import MATMUL_TO_FLOAT

_LEAST = 1e-9  # of the output's variance; a smaller shift is none


@dataclass(frozen=True)
class BiasCorrection:
    """Take mean shifts out of layers' outputs."""

    name: ClassVar[str] = "bias-correction"
    phase: ClassVar[Phase] = Phase.INTEGERS
    summary: ClassVar[str] = "takes the mean shift that rounding gives an output into the bias"

    sequential: bool | None = None  # run the quantized model again, for the shifts of all layers before
    layers: int = 4  # that are corrected so, evenly spread; the last is one of them

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise RecipeError(f"bias-correction:layers={self.layers} corrects nothing; ask for one or more.")

    def prepare(self, subject: Subject) -> None:
        """Give layers a bias to correct, before the model is planned; where it costs no operator."""
        if not subject.recipe.is_static:
            return
        editor = Editor(subject.model)
        for layer in list(all_layers(subject.model, subject.plan.nodes)):
            if not isinstance(layer, Layer) or layer.bias is not None:
                continue
            if layer.takes_bias:
                layer.store_bias(np.zeros(layer.outputs), editor)
            elif subject.plan.nodes[layer.name].form == MATMUL_TO_FLOAT.op_type:
                _put_add_behind(layer, editor)

    def wishes(self, subject: Subject, wishes: Wishes) -> None:
        """The mean of what each layer reads."""
        layers = [one.layer for one in quantized_layers(subject)[0]]
        wishes.moments_of(layers, gram=False)
        if self._in_stages(subject):
            biased = [layer for layer in layers if layer.bias is not None]
            wishes.moments_apart([biased[index] for index in _spread(len(biased), self.layers)])

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Correct every layer that has a bias."""
        found, refused = quantized_layers(subject)
        changed: list[Change] = []
        corrected: list[Corrected] = []
        editor = Editor(subject.model)
        for one in found:
            inputs = inputs_of(one.layer, stats)
            if one.layer.bias is None:
                refused.append(Refusal(one.layer.name, "it has no bias, and one would cost an operator"))
            elif inputs is None:
                refused.append(Refusal(one.layer.name, "nothing is known of its input"))
            else:
                numbers = Corrected.of(one, inputs)
                change = numbers.change(inputs)
                if change is None:
                    refused.append(Refusal(one.layer.name, "rounding does not shift it"))
                else:
                    numbers.store(inputs.mean, inputs.mean, editor)
                    changed.append(change)
                corrected.append(numbers)
        if self._in_stages(subject):
            refused += _in_stages(corrected, subject, stats, editor)
        return StepReport(self.name, tuple(changed), tuple(refused))

    def _in_stages(self, subject: Subject) -> bool:
        """Whether the quantized model is run again."""
        if self.sequential is not None:
            return self.sequential
        if subject.lab is not None and not subject.lab.can_repeat:
            return False
        convs = [one.layer for one in quantized_layers(subject)[0] if one.layer.is_conv]
        return sum(_is_read_by_floats(layer, subject) for layer in convs) > len(convs) / 2


def _is_read_by_floats(layer: Layer, subject: Subject) -> bool:
    """Whether float operators, and no others, read what a layer gives."""
    readers = layer.y.consumers()
    if len(readers) == 1 and readers[0].name in subject.plan.absorbed:
        readers = readers[0].outputs[0].consumers()
    return bool(readers) and not any(subject.is_quantized(reader) for reader in readers)


@dataclass(frozen=True)
class Corrected:
    """A layer with its weights as they were and as they are stored."""

    layer: Layer
    rows: F64
    stored: F64
    bias: F64

    @classmethod
    def of(cls, one: QuantizedLayer, inputs: Inputs) -> Corrected:
        """The numbers of a layer; weights that were rounded before stay where they are."""
        now = one.layer.rows()
        return cls(one.layer, original_rows(one.layer), nearest(now, one.grid(now)), one.layer.bias_values())

    def change(self, inputs: Inputs) -> Change | None:
        """What taking out the mean shift gains."""
        delta = self.stored - self.rows
        error, shift = inputs.error(delta), _shift(delta, inputs.mean)
        whole = noise.power(self.rows, inputs)
        if not (shift**2).sum() > _LEAST * max(whole.sum(), 1e-30):
            return None
        before = noise.share(error, whole)
        return Change(self.layer.name, "shift", before, max(before - noise.share(shift**2, whole), 0.0))

    def store(self, real: F64, read: F64, editor: Editor) -> None:
        """Write the bias for a layer that should read this on average, and reads that."""
        target = _shift(self.rows, real) - _shift(self.stored, read)
        self.layer.store_bias(self.bias + target.reshape(-1), editor)


def _put_add_behind(layer: Layer, editor: Editor) -> None:
    """A bias of zeros behind a MatMul, which goes into the integer operator with it."""
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


def _in_stages(
    corrected: Sequence[Corrected],
    subject: Subject,
    float_stats: Mapping[str, State],
    editor: Editor,
) -> list[Refusal]:
    """Correct the layers that were looked at apart, one after the other, by what they read once quantized."""
    lab = subject.lab
    if lab is None:
        return [Refusal("sequential correction", "there is no data to run the quantized model on")]
    for one in corrected:
        real = inputs_of(one.layer, float_stats, apart=True)
        if real is None:
            continue
        model = lab.emitted()
        nodes = {node.name or "": node for node in model.graph}
        layer = _in(nodes, one.layer)
        if layer is None:
            continue
        read = inputs_of(layer, lab.collect(model, _means([layer])), apart=True)
        if read is not None:
            one.store(real.mean, read.mean, editor)
    return []


def _spread(count: int, most: int) -> list[int]:
    """Layers to correct one after the other, evenly spread; two at once would make up for the same shift."""
    return sorted({round(count * (i + 1) / most) - 1 for i in range(most) if count * (i + 1) >= most})


def _in(nodes: Mapping[str, ir.Node], layer: Layer) -> Layer | None:
    """The layer as it stands in the quantized model, read at the same places of its input."""
    node = nodes.get(layer.name)
    if node is None or node.op_type != layer.node.op_type:
        return None
    node.outputs[0].shape = layer.node.outputs[0].shape
    if node.inputs[0] is not None:
        node.inputs[0].shape = layer.x.shape
    return replace(layer, node=node)


def _means(found: Iterable[Layer]) -> Wishes:
    wishes = Wishes()
    wishes.moments_apart(found)
    return wishes
