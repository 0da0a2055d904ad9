"""Whatever a model holds, in float16 it loads, is finite and close to float32.

ONNX Runtime's CPU computes most float16 operators in float32. Where the reference implementation of ONNX has
the operators, models are therefore run with it too: it rounds after each operator, as hardware does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

import octavo
from emission.half_models import CASES, Case, of_opset, runtime_operators
from emission.models import Array
from octavo.core.plan import HalfCompute
from octavo.model.files.io import to_proto
from octavo.model.runtime.session import Session

CALIBRATION = 3  # feeds; the others are compared
MIN_DB = 40.0


def decibels(due: list[Array], found: list[Array]) -> float:
    """The signal-to-noise ratio of an output over all feeds."""
    x, y = (np.concatenate([np.ravel(one).astype(np.float64) for one in rows]) for rows in (due, found))
    assert np.all(np.isfinite(y))
    noise = float(np.sum((x - y) ** 2))
    return float("inf") if not noise else 10 * np.log10(float(np.sum(x**2)) / noise)


def compared(case: Case, *, data: bool, way: str = "fp16:compute", reference: bool = True) -> octavo.Result:
    """Convert, and hold the result to float32 in the runtime and in the reference implementation."""
    calibration, held_back = case.feeds[:CALIBRATION], case.feeds[CALIBRATION:]
    result = octavo.quantize(case.proto, calibration if data else None, float_type=way)
    first = Session.open(case.proto.SerializeToString())
    due = [first.run(feed)["y"] for feed in held_back]
    session = Session.open(result.model)
    assert decibels(due, [session.run(feed)["y"] for feed in held_back]) > MIN_DB
    if reference:
        evaluator = ReferenceEvaluator(to_proto(result.model))
        names = [one.name for one in to_proto(result.model).graph.output]
        found = [evaluator.run(None, feed)[names.index("y")] for feed in held_back]
        assert decibels(due, found) > MIN_DB
    return result


# QuantizeLinear of float16 truncates in onnxruntime 1.29, where it should round.
TRUNCATED = ("quantized_part",) if onnxruntime.__version__.startswith("1.29.") else ()
# The reference implementation can't be given a value of an optional type.
NO_REFERENCE = ("optional_value",)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("data", [False, True], ids=["no data", "data"])
def test_what_converters_break_loads_and_is_close(make: Callable[[], Case], data: bool) -> None:
    if make.__name__ in TRUNCATED:
        pytest.skip("QuantizeLinear of float16 truncates in onnxruntime 1.29")
    case = make()
    reference = make.__name__ not in NO_REFERENCE and (data or not case.needs_data)
    compared(case, data=data, reference=reference)


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_weights_are_stored_whatever_the_model_holds(make: Callable[[], Case]) -> None:
    compared(make(), data=False, way="fp16:storage", reference=False)


@pytest.mark.parametrize("opset", range(7, 24))
def test_every_opset_is_converted(opset: int) -> None:
    compared(of_opset(opset), data=False)


def test_operators_without_a_known_type_and_their_readers_stay_float32() -> None:
    result = compared(runtime_operators(), data=True, reference=False)
    assert isinstance(result.plan.half, HalfCompute)
    assert result.plan.half.nodes == ()
    assert {"gelu", "layer"} <= set(result.plan.half.kept)
