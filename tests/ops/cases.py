"""Styles, types and granularities that the op table is tried with, and what a quantized sample must show."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

import octavo
from octavo.core.granularity import parse
from octavo.core.qtypes import INT32, QTYPES
from octavo.core.recipe import DynamicScheme, Placement, Recipe, Style
from octavo.core.scheme import Distribution, MinMax, Scheme
from octavo.model.runtime.session import Session
from octavo.ops import RULES, Act, Kind, Table, Weight
from octavo.result import Result
from ops.samples import SAMPLES, Sample

Array = np.ndarray[Any, Any]
QDQ, QOPERATOR, INTEGER = Style.QDQ, Style.QOPERATOR, Style.INTEGER
DYNAMIC = "dynamic"

# The least signal-to-noise ratio, in decibels, by the coarsest type that a value passes through.
LEAST = {
    "int4": 14.0,
    "uint4": 14.0,
    "float8e4m3fn": 16.0,
    "int8": 25.0,
    "uint8": 25.0,
    "int16": 60.0,
    "uint16": 60.0,
}
ORDER = tuple(LEAST)


@dataclass(frozen=True)
class Case:
    """One request."""

    style: Style
    activations: str | None
    weights: str
    granularity: str = "channel"

    def __str__(self) -> str:
        return f"{self.style.value}-{self.activations}-{self.weights}-{self.granularity}"

    @property
    def recipe(self) -> Recipe:
        kind = QTYPES[self.weights]
        return Recipe(
            weights=Scheme(kind, parse(self.granularity), symmetric=kind.symmetric_by_default),
            activations=self._activations(),
            style=self.style,
            placement=Placement.EVERYWHERE,
        )

    def _activations(self) -> Scheme | DynamicScheme | None:
        if self.activations is None:
            return None
        if self.activations == DYNAMIC:
            return DynamicScheme()
        kind = QTYPES[self.activations]
        return Scheme(kind, symmetric=kind.is_float, method=Distribution() if kind.is_float else MinMax())

    @property
    def is_static(self) -> bool:
        return self.activations not in (None, DYNAMIC)


def has(sample: Sample, *roles: type) -> bool:
    """Whether a constant input of the node has one of these roles."""
    rule = RULES[sample.key]
    stored = {tensor.name for tensor in sample.model.graph.initializer}
    node = next(n for n in sample.model.graph.node if n.name == "op")
    return any(name in stored and isinstance(rule.role(i), roles) for i, name in enumerate(node.input))


def concerns(sample: Sample, case: Case) -> bool:
    """Whether a row claims anything in this style: a form, or weights where only those are quantized."""
    rule = RULES[sample.key]
    if not case.is_static:
        only_weights = rule.kind in (Kind.LINEAR, Kind.RECURRENT) or (
            rule.kind is Kind.LOOKUP and has(sample, Table)
        )
        return only_weights and (case.style is QDQ or case.style in rule.lowerings)
    return (
        case.style is QDQ
        or case.style in rule.lowerings
        or (rule.kind is Kind.CLAMP and case.style is QOPERATOR)
    )


def least(sample: Sample, case: Case) -> float:
    """The decibels to be reached."""
    kinds = [case.weights] if has(sample, Weight, Table) else []
    if case.activations is not None and RULES[sample.key].kind is not Kind.LOOKUP:
        kinds.append("uint8" if case.activations == DYNAMIC else case.activations)
    if RULES[sample.key].kind is Kind.RECURRENT:
        kinds.append("uint8")
    return LEAST[min(kinds or ["uint8"], key=ORDER.index)] - sample.least


# ---- running


def run(model: Any, sample: Sample, *, optimize: bool = True) -> dict[str, Array]:
    """All outputs on all feeds, joined."""
    source = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    session = Session.open(source, optimize=optimize, threads=1)
    results = [session.run(feed) for feed in sample.feeds]
    return {name: np.concatenate([r[name].reshape(-1) for r in results]) for name in results[0]}


@functools.cache
def truth(name: str) -> Mapping[str, Array]:
    """What the float model answers."""
    return run(SAMPLES[name].model, SAMPLES[name], optimize=False)


def sqnr(signal: Array, other: Array) -> float:
    """Decibels between a signal and its distance to another; computed here, not by the code under test."""
    noise = float(np.sum((signal.astype(np.float64) - other.astype(np.float64)) ** 2))
    return 200.0 if noise == 0.0 else 10.0 * np.log10(float(np.sum(signal.astype(np.float64) ** 2)) / noise)


def assert_close(found: Mapping[str, Array], wanted: Mapping[str, Array], decibels: float) -> None:
    assert list(found) == list(wanted)
    for name, signal in wanted.items():
        assert found[name].dtype == signal.dtype
        if signal.dtype.kind == "f":
            assert sqnr(signal, found[name]) >= decibels, name
        else:
            assert np.mean(signal == found[name]) >= 0.8, name


def quantize(sample: Sample, case: Case, **more: Any) -> Result:
    data = sample.feeds if case.is_static else None
    return octavo.quantize(sample.model, data, recipe=case.recipe, prepare=None, verify=False, **more)


# ---- what the graph holds


def quantized_types(model: ir.Model) -> tuple[set[str], set[str]]:
    """The types that QuantizeLinear makes, and those that quantized weights are stored in."""
    made = {
        v.dtype.name.lower()
        for node in model.graph.all_nodes()
        if node.op_type in ("QuantizeLinear", "DynamicQuantizeLinear")
        for v in node.outputs[:1]
        if v.dtype is not None
    }
    stored = {
        value.dtype.name.lower()
        for name, value in model.graph.initializers.items()
        if value.dtype is not None and (name.endswith("_quantized") or "_DQ_Q" in name)
    }
    return made, stored


def assert_types(sample: Sample, case: Case, result: Result) -> None:
    """The types requested, and no others, are in the graph."""
    made, stored = quantized_types(result.model)
    rule = RULES[sample.key]
    asked = "uint8" if case.activations == DYNAMIC else case.activations
    wanted = {asked} if asked is not None and rule.kind not in (Kind.LOOKUP, Kind.RECURRENT) else set()
    moved = rule.kind is Kind.LOOKUP and not has(sample, Table)
    assert made == (({asked} if moved else wanted) & {*made, asked}), (made, stored)
    legal = {INT32.name}
    legal |= {case.weights} if has(sample, Weight, Table) else set()
    legal |= {str(asked)} if has(sample, Act) else set()
    assert stored <= legal
    if has(sample, Weight, Table):
        assert case.weights in stored
