"""Numbers at the edge: for each a right result, by the float model's own values, or a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from quantizing import run

import octavo
from hostile.models import WIDTH, feeds, layer, quantized
from hostile.sandbox import Sandbox
from octavo.errors import DataError, OctavoError

RNG = np.random.default_rng(7)
NORMAL = RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32)


def _with(change: Callable[[np.ndarray], object]) -> np.ndarray:
    weight = NORMAL.copy()
    change(weight)
    return weight


WEIGHTS: dict[str, np.ndarray] = {
    "zero-channel": _with(lambda w: w[:, 3].fill(0)),
    "all-zero": np.zeros_like(NORMAL),
    "single-value": np.full_like(NORMAL, 0.7),
    "single-value-channel": _with(lambda w: w[:, 3].fill(-2)),
    "denormal": (NORMAL * np.float32(1e-40)).astype(np.float32),
    "denormal-channel": _with(lambda w: w[:, 3].fill(1e-42)),
    "smallest-normal": np.full_like(NORMAL, np.finfo(np.float32).tiny),
    "huge": NORMAL * np.float32(1e30),
    "huge-range-of-channels": NORMAL * np.logspace(-20, 15, WIDTH, dtype=np.float32),
    "huge-range-in-a-channel": _with(lambda w: w.__setitem__((0, 0), 1e20)),
    "nearly-the-largest": np.sign(NORMAL) * np.float32(3e38),
    "nan": _with(lambda w: w.__setitem__((1, 1), np.nan)),
    "infinity": _with(lambda w: w.__setitem__((1, 1), np.inf)),
    "minus-infinity": _with(lambda w: w.__setitem__((1, 1), -np.inf)),
    "all-nan": np.full_like(NORMAL, np.nan),
    "negative-zero": np.full_like(NORMAL, -0.0),
}


def _outputs(made: onnx.ModelProto, data: object, samples: list[dict[str, np.ndarray]], **more: object):  # type: ignore[no-untyped-def]
    result = octavo.quantize(made, data, threads=1, **{"effort": "plain", **more})
    return [(run(made, one)["y"], run(result, one)["y"]) for one in samples]


EVERY_STYLE = ("zero-channel", "huge-range-of-channels", "nan")
EDGES = [
    (name, style)
    for name in WEIGHTS
    for style in ("qdq", "qoperator", "dynamic")
    if style == "qdq" or name in EVERY_STYLE
]


@pytest.mark.parametrize(("name", "style"), EDGES)
def test_weights_at_the_edge(sandbox: Sandbox, name: str, style: str) -> None:
    made = layer(WEIGHTS[name])
    given = None if style == "dynamic" else feeds()
    more = {} if style == "dynamic" else {"style": style}
    outcome = sandbox.settles(lambda: _outputs(made, given, feeds(), **more))
    if outcome.error is not None:
        return
    for right, got in outcome.value:
        assert np.isfinite(right).all() == np.isfinite(got).all()
        if np.isfinite(right).all():
            largest = float(np.abs(right).max())
            assert np.abs(right.astype(np.float64) - got).max() <= 0.12 * largest + 1e-6


ACTIVATIONS: dict[str, np.ndarray] = {
    "zero": np.zeros((2, WIDTH), np.float32),
    "constant": np.full((2, WIDTH), 3.25, np.float32),
    "negative-constant": np.full((2, WIDTH), -3.25, np.float32),
    "denormal": np.full((2, WIDTH), 1e-41, np.float32),
    "huge": np.full((2, WIDTH), 1e20, np.float32),
    "overflows": np.full((2, WIDTH), 3e38, np.float32),
    "huge-range": np.array([[1e-30] * (WIDTH - 1) + [1e10]], np.float32),
    "one-sample-of-one": np.ones((1, WIDTH), np.float32),
}


@pytest.mark.parametrize("values", ACTIVATIONS.values(), ids=ACTIVATIONS.keys())
def test_activations_at_the_edge(sandbox: Sandbox, values: np.ndarray) -> None:
    samples = [{"x": values}]
    outcome = sandbox.settles(lambda: _outputs(layer(), samples, samples))
    if outcome.error is None:
        right, got = outcome.value[0]
        assert np.abs(right - got).max() <= 0.06 * float(np.abs(right).max()) + 1e-6


def _endless() -> Iterator[dict[str, np.ndarray]]:
    while True:
        yield {"x": np.ones((1, WIDTH), np.float32)}


def _x(shape: tuple[int, ...] = (2, WIDTH), dtype: type = np.float32, fill: float = 1.0) -> np.ndarray:
    return np.full(shape, fill, dtype)


DATA: dict[str, Callable[[], object]] = {
    "nothing": list,
    "nan": lambda: [{"x": _x(fill=np.nan)}],
    "infinity": lambda: [{"x": _x(fill=np.inf)}],
    "nan-in-the-last-sample": lambda: [*feeds(3), {"x": _x(fill=np.nan)}],
    "double": lambda: [{"x": _x(dtype=np.float64)}],
    "integers": lambda: [{"x": _x(dtype=np.int64)}],
    "other-name": lambda: [{"y": _x()}],
    "another-name-too": lambda: [{"x": _x(), "z": _x()}],
    "no-name": lambda: [{}],
    "other-rank": lambda: [{"x": _x((WIDTH,))}],
    "other-width": lambda: [{"x": _x((2, WIDTH + 1))}],
    "width-changes": lambda: [{"x": _x()}, {"x": _x((2, WIDTH - 1))}],
    "objects": lambda: [{"x": np.array([[object()]])}],
    "text": lambda: [{"x": "one"}],
    "none": lambda: [{"x": None}],
    "a-number": lambda: [3],
    "ragged": lambda: [{"x": [[1.0], [1.0, 2.0]]}],
    "whole-numbers-too-large": lambda: [{"x": [[10**400] * WIDTH]}],
}


@pytest.mark.parametrize("make", DATA.values(), ids=DATA.keys())
def test_samples_that_do_not_fit(sandbox: Sandbox, make: Callable[[], object]) -> None:
    sandbox.refuses(lambda: quantized(layer(), sandbox.out, make()), DataError)


def test_data_that_never_ends_is_cut(sandbox: Sandbox) -> None:
    result = sandbox.gives(
        lambda: octavo.quantize(layer(), _endless(), samples=5, threads=1, effort="plain").stats.samples
    )
    assert result == 5


def test_an_empty_batch_alone_tells_nothing(sandbox: Sandbox) -> None:
    """Where no value was seen the layer stays float, or is written without a range; its results are right."""
    outcome = sandbox.settles(lambda: _outputs(layer(), [{"x": _x((0, WIDTH))}], feeds()))
    for right, got in outcome.value or ():
        assert np.abs(right - got).max() <= 0.06 * float(np.abs(right).max())


def test_batches_of_changing_size_and_an_empty_one(sandbox: Sandbox) -> None:
    samples = [{"x": _x((n, WIDTH), fill=n)} for n in (1, 0, 5)]
    assert (
        sandbox.gives(lambda: octavo.quantize(layer(), samples, threads=1, effort="plain").stats.samples) == 3
    )


def _shaped(op: str, shape: list[int], weight: np.ndarray) -> onnx.ModelProto:
    nodes = [node(op, ["x", "w"], ["y"], "odd")]
    return model(nodes, [tensor("x", shape)], [tensor("y", None)], {"w": weight})


SHAPES: dict[str, onnx.ModelProto] = {
    "no-rows": _shaped("MatMul", [0, WIDTH], NORMAL),
    "no-columns": _shaped("MatMul", [2, WIDTH], np.zeros((WIDTH, 0), np.float32)),
    "no-depth": _shaped("MatMul", [2, 0], np.zeros((0, WIDTH), np.float32)),
    "scalars": _shaped("Mul", [], np.float32(2)),
    "scalar-weight": _shaped("Add", [2, WIDTH], np.float32(2)),
    "rank-1": _shaped("MatMul", [WIDTH], NORMAL[:, 0].copy()),
    "rank-7": _shaped("MatMul", [1, 1, 1, 1, 1, 2, WIDTH], NORMAL),
    "one-value": _shaped("MatMul", [1, 1], np.ones((1, 1), np.float32)),
    "no-channels": _shaped("Conv", [1, 0, 4, 4], np.zeros((2, 0, 1, 1), np.float32)),
}


@pytest.mark.parametrize("made", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("static", [True, False])
def test_shapes_at_the_edge(sandbox: Sandbox, made: onnx.ModelProto, static: bool) -> None:
    shape = [dim.dim_value for dim in made.graph.input[0].type.tensor_type.shape.dim]
    sample = [{"x": RNG.standard_normal(shape).astype(np.float32)}]
    outcome = sandbox.settles(lambda: _outputs(made, sample if static else None, sample))
    if outcome.error is None:
        right, got = outcome.value[0]
        assert right.shape == got.shape
        assert np.abs(right - got).max(initial=0) <= 0.06 * float(np.abs(right).max(initial=0)) + 1e-6


@pytest.mark.parametrize("value", [60000.0, -65504.0, 6e-8])
def test_float16_at_its_edge(sandbox: Sandbox, value: float) -> None:
    weight = np.full((WIDTH, WIDTH), value, np.float16)
    made = model(
        [node("MatMul", ["x", "w"], ["y"], "product")],
        [tensor("x", [2, WIDTH], onnx.TensorProto.FLOAT16)],
        [tensor("y", [2, WIDTH], onnx.TensorProto.FLOAT16)],
        {"w": weight},
    )
    sample = [{"x": np.full((2, WIDTH), 1.0 / WIDTH, np.float16)}]
    outcome = sandbox.settles(lambda: octavo.quantize(made, sample, threads=1, effort="plain") and True)
    assert outcome.error is None or issubclass(outcome.error, OctavoError)
