"""Every row of the op table × every style and type that it claims, run in ONNX Runtime with and without its
optimizations and compared with the float model; and what can't run is left float with a reason."""

from __future__ import annotations

from fnmatch import fnmatch

import pytest

import octavo
from octavo import calibration, emission, planning
from octavo.core.plan import Measured
from octavo.core.requests import Request
from octavo.model.files import io
from octavo.model.prepare import shapes
from octavo.ops import RULES, Weight
from octavo.targets import target
from ops.cases import (
    DYNAMIC,
    INTEGER,
    QDQ,
    QOPERATOR,
    Case,
    assert_close,
    assert_types,
    concerns,
    has,
    least,
    quantize,
    run,
    truth,
)
from ops.samples import SAMPLES

MAIN = (
    Case(QDQ, "uint8", "int8"),
    Case(QDQ, "int8", "int8"),
    Case(QDQ, "uint8", "uint8", "tensor"),
    Case(QDQ, "uint16", "int8"),
    Case(QDQ, "int16", "int16"),
    Case(QDQ, "float8e4m3fn", "float8e4m3fn", "tensor"),
    Case(QDQ, None, "int8"),
    Case(QOPERATOR, "uint8", "int8"),
    Case(QOPERATOR, "int8", "int8"),
    Case(QOPERATOR, "uint8", "uint8", "tensor"),
    Case(INTEGER, "uint8", "int8"),
    Case(INTEGER, "int8", "uint8", "tensor"),
    Case(INTEGER, DYNAMIC, "int8"),
    Case(INTEGER, DYNAMIC, "uint8"),
)
TYPED = (
    "Conv",
    "ConvTranspose",
    "Gemm:trans_b",
    "MatMul:3d",
    "Add:constant",
    "MaxPool",
    "microsoft.Attention",
)
ALL = tuple(
    Case(QDQ, act, weight, grain)
    for act in ("uint8", "int8", "uint16", "int16", None)
    for weight in ("int8", "uint8", "int16", "uint16", "int4", "uint4")
    for grain in ("tensor", "channel")
) + tuple(
    Case(QDQ, act, weight, "block:16")
    for act, weight in (
        ("uint8", "int4"), ("int8", "uint4"), ("uint16", "int8"), ("uint16", "int4"), ("uint8", "int16"),
        (None, "int8"), (None, "uint8"), (None, "int4"), (None, "uint4"),
    )
)  # fmt: skip
INTEGERS = tuple(
    Case(style, act, weight, grain)
    for style in (QOPERATOR, INTEGER)
    for act in ("uint8", "int8", DYNAMIC)
    for weight in ("int8", "uint8")
    for grain in ("tensor", "channel")
    if not (style is QOPERATOR and act == DYNAMIC)
)


def _pairs() -> list[tuple[str, Case]]:
    found = {(name, str(case)): (name, case) for case in MAIN for name in SAMPLES}
    found |= {
        (name, str(case)): (name, case)
        for case in (*ALL, *INTEGERS)
        for name in TYPED
        if _differs(name, case)
    }
    return [(n, c) for n, c in found.values() if n != "Identity" and concerns(SAMPLES[n], c)]


def _differs(name: str, case: Case) -> bool:
    """Where there is no weight, its type and granularity make no difference."""
    return has(SAMPLES[name], Weight) or (case.weights, case.granularity) == ("int8", "channel")


def refusal(name: str, case: Case) -> str | None:
    """Why a sample stays float in a case, in the words of the plan; None where it has to be quantized."""
    integers = case.weights in ("int8", "uint8")
    for patterns, holds, reason in (
        ("Relu Clip", True, "producer of its input"),
        ("microsoft.MoE", True, "activations in float"),
        ("LSTM* GRU* RNN*", not integers, "8-bit integers"),
        ("Gather:table microsoft.Embed*", not integers, "8-bit integers"),
        ("microsoft.Embed*", case.style is QDQ, "in the qdq style"),
        ("Gemm:alpha_bias", case.style is QOPERATOR, "alpha is not 1"),
        ("Gemm:bias_scalar", case.style is QOPERATOR, "one value per channel"),
        ("Gemm:computed_weight", case.style is QOPERATOR, "its weight is not constant"),
        ("Resize:linear", case.style is QOPERATOR, "interpolates"),
        ("*:computed_weight MatMul:both_* MatMul:constant_first",
         case.style is INTEGER or case.activations is None, "its weight is not constant"),
        ("microsoft.Attention:bias", case.style is INTEGER, "no input for a bias"),
        ("microsoft.Attention*", case.style is INTEGER and case.activations == "int8", "no kernel for int8"),
        ("Conv* Gemm* MatMul*",
         case.style is QOPERATOR and (case.activations, case.weights) == ("int8", "uint8"),
         "no kernel for int8 activations with uint8 weights"),
    ):  # fmt: skip
        if holds and any(fnmatch(name, pattern) for pattern in patterns.split()):
            return reason
    return None


@pytest.mark.parametrize(("name", "case"), [pytest.param(n, c, id=f"{n}-{c}") for n, c in _pairs()])
def test_row_runs_and_stays_close_to_float(name: str, case: Case) -> None:
    sample, reason = SAMPLES[name], refusal(name, case)
    if reason is not None:
        _is_left_float(name, case, reason)
        return
    result = quantize(sample, case)
    planned = result.plan.nodes.get("op")
    assert planned is not None or "op" in result.plan.fused
    for optimize in (True, False):
        assert_close(run(result.model, sample, optimize=optimize), truth(name), least(sample, case))
    if planned is not None:
        assert_types(sample, case, result)
        written = {node.op_type for node in result.model.graph.all_nodes()}
        assert planned.lowering in written


def _is_left_float(name: str, case: Case, reason: str) -> None:
    """Nothing else is in these models than the operator and what leads to it."""
    sample = SAMPLES[name]
    try:
        result = quantize(sample, case)
    except octavo.ModelError as error:
        assert "nothing that can be quantized" in str(error)
        assert reason in str(error)
        return
    assert "op" not in result.plan.nodes
    assert reason in next(s.reason for s in result.plan.skipped if s.node == "op")
    assert_close(run(result.model, sample), truth(name), least(sample, case))


def test_every_row_has_a_sample() -> None:
    assert {sample.key for sample in SAMPLES.values()} == set(RULES)


def test_every_form_is_written_by_some_case() -> None:
    """A row that claims a variant is shown to have it: no form is refused in all cases."""
    shown = {(SAMPLES[n].key, c.style) for n, c in _pairs() if refusal(n, c) is None}
    claimed = {(key, style) for key, rule in RULES.items() for style in rule.lowerings}
    assert claimed <= shown | {(("", "Identity"), QOPERATOR)}


@pytest.mark.parametrize("style", [QOPERATOR, INTEGER])
def test_row_without_a_form_stays_float_with_the_reason(style: octavo.Style) -> None:
    case = Case(style, "uint8", "int8")
    for name in ("ConvTranspose", "Tanh", "LayerNormalization", "Einsum"):
        with pytest.raises(octavo.ModelError, match="no integer operator"):
            quantize(SAMPLES[name], case)


def test_identity_moves_parameters() -> None:
    """Preparation takes Identity out, so the steps are made here one by one."""
    sample = SAMPLES["Identity"]
    model = io.load(sample.model)
    shapes.infer(model)
    plan = planning.build(model, planning.policy_for(Case(QDQ, "uint8", "int8").recipe, target("ort-cpu")))
    assert plan.nodes["op"].lowering == "Identity"
    schemes = {key.tensor: entry.scheme for key, entry in plan.entries.items() if isinstance(entry, Measured)}
    stats = calibration.collect(model, dict.fromkeys(schemes, Request()), sample.feeds)
    emission.emit(model, plan, planning.resolve(model, plan, calibration.ranges(stats, schemes)))
    assert_close(run(model, sample), truth("Identity"), 25.0)
