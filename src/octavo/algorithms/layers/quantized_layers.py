"""The layers whose weights a plan stores as integers, their scales, and edits that keep biases in range."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from octavo.algorithms.layers.error_feedback import Grid
from octavo.algorithms.layers.layer import F64, Layer, layers
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.core import affine
from octavo.core.granularity import PerBlock, PerChannel, PerTensor
from octavo.core.plan import Constant, Derived, Dynamic, Fixed, Key
from octavo.core.qparams import QParams
from octavo.core.recipe import DynamicScheme
from octavo.core.scheme import Scheme

_ORIGINAL = "octavo.float_rows"


@dataclass(frozen=True)
class QuantizedLayer:
    """A layer, the key and the parameters of its weight, and the scale of its input."""

    layer: Layer
    key: Key
    scheme: Scheme
    params: QParams
    input_scale: float  # 0 where the input is not rounded, or by several scales
    has_given_range: bool

    def grid(self, rows: F64) -> Grid:
        """Return the values that weights can be stored as."""
        shape = (rows.shape[0], rows.shape[1], 1)
        scale, zero = self.params.scale.astype(np.float64), self.params.zero_point.astype(np.float64)
        if not isinstance(self.params.granularity, PerTensor):
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        limits = self.scheme.qtype.limits(symmetric=self.scheme.symmetric, reduced=self.scheme.reduce_range)
        return Grid(scale, zero, *limits)


def quantized_layers(subject: Subject) -> tuple[list[QuantizedLayer], list[Refusal]]:
    """Return the layers of the main graph that the plan stores as integers, and those refused."""
    found: list[QuantizedLayer] = []
    refused: list[Refusal] = []
    for layer in layers(subject.model, subject.plan.nodes):
        if not isinstance(layer, Layer):
            refused.append(Refusal(*layer))
            continue
        one = _quantized(layer, subject)
        if isinstance(one, str):
            refused.append(Refusal(layer.name, one))
        else:
            found.append(one)
    return found, refused


def _quantized(layer: Layer, subject: Subject) -> QuantizedLayer | str:
    key = subject.plan.lookup(layer.weight.name or "", layer.name)
    entry = subject.plan.entries.get(key) if key is not None else None
    if key is None or not isinstance(entry, Constant | Fixed) or entry.scheme.qtype.is_float:
        return "its weight does not become integers"
    match entry.scheme.granularity:
        case PerBlock():
            return "its weight has a scale for each block"
        case PerChannel(axis) if (axis or 0) % (2 + len(layer.kernel)) != (1 if layer.transposed else 0):
            return "its scales are not along its outputs"
        case _:
            pass
    params = subject.params[key] if subject.params is not None else None
    if params is None:  # statistics are requested before ranges are known
        blank = np.ones(()), np.zeros((), entry.scheme.qtype.dtype)
        params = QParams(*blank, entry.scheme.qtype, PerTensor())
    if params.scale.size not in (1, layer.outputs):
        return "its scales are not along its outputs"
    given = isinstance(entry, Fixed) or entry.range is not None or entry.channel_ranges is not None
    return QuantizedLayer(layer, key, entry.scheme, params, _input_scale(layer, subject), given)


def _input_scale(layer: Layer, subject: Subject) -> float:
    key = subject.plan.lookup(layer.x.name or "", layer.name)
    if key is None or subject.params is None:
        return 0.0
    if isinstance(subject.plan.entries[key], Dynamic) or isinstance(
        subject.recipe.activations, DynamicScheme
    ):
        return 0.0
    params = subject.params.get(key)
    return float(params.scale) if params is not None and params.scale.ndim == 0 else 0.0


def set_weight_params(subject: Subject, one: QuantizedLayer, params: QParams) -> None:
    """Give a weight other parameters, and the int32 bias of its layer the scale that follows from them."""
    known = subject.params if subject.params is not None else {}
    known[one.key] = params
    for key, entry in subject.plan.entries.items():
        if isinstance(entry, Derived) and Key(*entry.w) == one.key:
            old = known[key]
            bias = affine.bias_params(known[subject.plan.root(Key(*entry.x))], params)
            known[key] = QParams(bias.scale, bias.zero_point, bias.qtype, old.granularity)


def least_scale(subject: Subject, one: QuantizedLayer) -> F64:
    """Return the smallest weight scale at which the int32 bias fits, ``[group, output, 1]``; 0: any."""
    shape = (one.layer.groups, one.layer.outputs // one.layer.groups, 1)
    for entry in subject.plan.entries.values():
        if isinstance(entry, Derived) and Key(*entry.w) == one.key and subject.params is not None:
            x = subject.params[subject.plan.root(Key(*entry.x))]
            return affine.least_weight_scale(one.layer.bias_values() * 1.1, x.scale).reshape(shape)
    return np.zeros(shape)


def remember(layer: Layer) -> None:
    """Keep the weights as they are now for later steps, which compare with what the float model computes."""
    layer.weight.meta.setdefault(_ORIGINAL, layer.rows())


def original_rows(layer: Layer) -> F64:
    """Return the weights as they were before any step rounded them."""
    found: F64 | None = layer.weight.meta.get(_ORIGINAL)
    return layer.rows() if found is None else found
