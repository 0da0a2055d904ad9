"""Key-value caches in 8 or 4 bits, in models whose attention takes them so: GroupQueryAttention.

The operator rounds what it appends to the cache, and multiplies by the scale what it reads back. Keys have
channels that are large for every token, so that each channel ``c`` of each head has a scale of its own::

    scale_c = max |x_c| / (2^(bits-1) - 1)

The inputs and outputs of the model that hold the cache take the narrow type: ``int8``, or ``uint8`` with two
values in a byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from octavo.algorithms.layers.input_moments import channel_extremes
from octavo.algorithms.layers.statistics_requests import StatisticsRequests
from octavo.algorithms.layers.subject import Refusal, Subject
from octavo.algorithms.steps.step import Change, Phase, Step, StepReport
from octavo.core.stats import State
from octavo.errors import RecipeError
from octavo.model.graph import query
from octavo.model.graph.edit import Editor
from octavo.ops.patterns import CACHED_ATTENTION

_PAST = (3, 4)  # inputs: keys and values of the tokens before
_SCALES = (12, 13)  # inputs: their scales
_CHANNELS = (1, 3)  # axes of [batch, head, token, channel] that have a scale of their own


@dataclass(frozen=True)
class Cache(Step):
    """Store keys and values of attention in few bits."""

    name: ClassVar[str] = "cache"
    phase: ClassVar[Phase] = Phase.WEIGHTS
    summary: ClassVar[str] = "stores key-value caches of GroupQueryAttention in 8 or 4 bits"

    bits: int = 8

    def __post_init__(self) -> None:
        if self.bits not in (4, 8):
            raise RecipeError(f"cache:bits is 8 or 4, not {self.bits}.")

    def request(self, subject: Subject, requests: StatisticsRequests) -> None:
        """Request the extremes of each channel of keys and values."""
        for node in self._attentions(subject):
            if _refusal(node, self.bits) is None:
                for present in node.outputs[1:3]:
                    requests.add_extremes(present, *_CHANNELS)

    def apply(self, subject: Subject, stats: Mapping[str, State]) -> StepReport:
        """Give every cache the narrow type, and its attention the scales."""
        editor = Editor(subject.model)
        done = [self._narrowed(node, stats, editor) for node in self._attentions(subject)]
        return StepReport.of(self.name, done, "quantized", "caches")

    def _attentions(self, subject: Subject) -> Iterator[ir.Node]:
        nodes = [node for node in subject.model.graph if node.op_type == CACHED_ATTENTION]
        if not nodes:
            raise RecipeError(
                f"cache: {CACHED_ATTENTION} alone takes caches of {self.bits} bits, and this model has none;"
                " export it with the model builder of onnxruntime-genai, or leave cache out."
            )
        yield from nodes

    def _narrowed(self, node: ir.Node, stats: Mapping[str, State], editor: Editor) -> Change | Refusal:
        name = node.name or ""
        reason = _refusal(node, self.bits)
        if reason is not None:
            return Refusal(name, reason)
        largest = []
        for present in node.outputs[1:3]:
            found = channel_extremes(present, stats)
            if found is None:
                return Refusal(name, "its cache was not observed")
            largest.append(np.maximum(np.abs(found[0]), np.abs(found[1])))
        node.resize_inputs(max(len(node.inputs), _SCALES[-1] + 1))
        for part, size, slot in zip("kv", largest, _SCALES, strict=True):
            scale = np.maximum(size / (2 ** (self.bits - 1) - 1), np.finfo(np.float32).tiny)
            constant = editor.constant(f"{name}_{part}_scale", scale.astype(np.float32))
            node.replace_input_with(slot, constant)
            node.attributes[f"{part}_quant_type"] = ir.AttrString(f"{part}_quant_type", "PER_CHANNEL")
        node.attributes["kv_cache_bit_width"] = ir.AttrInt64("kv_cache_bit_width", self.bits)
        for value in (*(node.inputs[slot] for slot in _PAST), *node.outputs[1:3]):
            if value is not None:
                _narrow(value, self.bits)
        return Change(name, f"{self.bits} bits, a scale for each channel", 0.0, 0.0)


def _refusal(node: ir.Node, bits: int) -> str | None:
    """Return why the cache of an attention stays float, or None."""
    pasts = [node.inputs[slot] if len(node.inputs) > slot else None for slot in _PAST]
    presents = node.outputs[1:3]
    if query.attribute(node, "k_quant_type", "NONE") != "NONE":
        return "its cache is quantized already"
    if len(presents) < 2 or any(past is None for past in pasts):
        return "it has no cache"
    inner = any(past is None or not past.is_graph_input() or len(past.uses()) != 1 for past in pasts)
    if inner or any(not value.is_graph_output() or value.uses() for value in presents):
        return "its cache is not an input and an output of the model that nothing else reads"
    dims = query.shape(presents[0])
    if dims is None or len(dims) != 4 or dims[1] is None or dims[3] is None or (bits == 4 and dims[3] % 2):
        return "the size of its heads is not known, or odd"
    return None


def _narrow(value: ir.Value, bits: int) -> None:
    """Declare a part of the cache as one in few bits."""
    value.dtype = ir.DataType.INT8 if bits == 8 else ir.DataType.UINT8
    if bits == 4 and value.shape is not None:
        *before, last = value.shape
        value.shape = ir.Shape([*before, int(last) // 2 if isinstance(last, int) else last])
