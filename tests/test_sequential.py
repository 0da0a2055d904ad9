"""Weights quantized layer by layer: each by what its layer reads from layers that are quantized already."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from decoders import SHAPES, merged_decoder
from test_language_models import divergence, feeds, logits

import octavo
from octavo.algorithms.weights.gptq import Gptq
from octavo.algorithms.weights.rtn import Rtn
from octavo.core.arrays import Torch
from octavo.core.blocks import BlockScheme
from octavo.core.plan import Key
from octavo.errors import DataError, RecipeError
from octavo.model.files import io

WIDTH = 64
SCHEME = BlockScheme(4, 32, whole_zero=True)


def arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    names = ("left", "right", "last")
    return {name: (rng.standard_normal((WIDTH, WIDTH)) / 8).astype(np.float32) for name in names}


def gated() -> onnx.ModelProto:
    """Two layers that read the same input, and one that reads their product."""
    nodes = [
        node("MatMul", ["x", "left"], ["l"], "left"),
        node("Tanh", ["l"], ["t"]),
        node("MatMul", ["x", "right"], ["r"], "right"),
        node("Mul", ["t", "r"], ["m"]),
        node("MatMul", ["m", "last"], ["y"], "last"),
    ]
    return model(nodes, [tensor("x", ["n", WIDTH])], [tensor("y", ["n", WIDTH])], arrays())


def samples() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(1)
    mix = rng.standard_normal((WIDTH, WIDTH))
    return [{"x": (rng.standard_normal((40, WIDTH)) @ mix).astype(np.float32)} for _ in range(3)]


def integers(result: octavo.Result) -> dict[str, np.ndarray]:
    found = {key.consumer or "": params.matrix for key, params in result.params.items()}
    return {name: matrix.integers for name, matrix in found.items() if matrix is not None}


@pytest.mark.parametrize("more", ["", ":weighted=yes"])
def test_a_layer_is_quantized_by_what_it_reads_from_quantized_layers(more: str) -> None:
    how = Gptq(weighted=bool(more))
    result = octavo.quantize(
        gated(), samples(), weights="int4", head="same", style="qdq", algorithm=f"gptq:sequential=yes{more}"
    )
    made, weights = integers(result), arrays()
    x = np.concatenate([one["x"] for one in samples()])
    real = {}
    for name in ("left", "right"):
        blocks = how.blocks(weights[name].T, SCHEME, (x.T @ x).astype(np.float64))
        assert (made[name] == blocks.integers).mean() > 0.98
        real[name] = blocks.real().T
    read = np.tanh(x @ real["left"]) * (x @ real["right"])
    last = how.blocks(weights["last"].T, SCHEME, read.T @ read)
    in_float = np.tanh(x @ weights["left"]) * (x @ weights["right"])
    apart = how.blocks(weights["last"].T, SCHEME, in_float.T @ in_float)
    assert (made["last"] == last.integers).mean() > 0.98 > (made["last"] == apart.integers).mean()


def test_layers_of_another_algorithm_are_quantized_in_their_turn() -> None:
    result = octavo.quantize(
        gated(),
        samples(),
        weights="int4",
        head=8,
        style="qdq",
        algorithm="gptq:sequential=yes",
        layers={"left": 8},
    )
    rows = arrays()["left"].T
    np.testing.assert_array_equal(integers(result)["left"], Rtn().blocks(rows, BlockScheme(8, 32)).integers)
    assert {Key("left", "left"), Key("right", "right"), Key("last", "last")} <= set(result.params)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_decoder_is_quantized_layer_by_layer(shape: str) -> None:
    proto = SHAPES[shape]()
    data = feeds(proto)
    result = octavo.quantize(proto, data, weights="int4", algorithm="gptq:sequential=yes")
    assert [node.op_type for node in result.model.graph].count("MatMulNBits") == 13
    assert divergence(logits(result.model, data[0]), logits(io.load(proto), data[0])) < 0.1


def test_after_awq_the_scaled_weights_are_quantized() -> None:
    proto = SHAPES["primitives"]()
    data = feeds(proto)
    result = octavo.quantize(proto, data, weights="int4", algorithm="gptq:sequential=yes", steps="awq")
    assert divergence(logits(result.model, data[0]), logits(io.load(proto), data[0])) < 0.1


def test_without_data_it_is_refused() -> None:
    with pytest.raises(DataError, match="data"):
        octavo.quantize(gated(), None, weights="int4", algorithm="gptq:sequential=yes")
    stats = octavo.calibrate(gated(), octavo.plan(gated(), weights="int4", algorithm="gptq"), samples())
    with pytest.raises(DataError, match="give data instead of statistics"):
        octavo.quantize(gated(), stats=stats, weights="int4", algorithm="gptq:sequential=yes")


def test_a_layer_in_a_branch_is_refused() -> None:
    proto = merged_decoder()
    with pytest.raises(RecipeError, match="leave sequential out"):
        octavo.quantize(proto, feeds(proto), weights="int4", algorithm="gptq:sequential=yes")


def test_bits_by_sensitivity_are_refused_beside_it() -> None:
    with pytest.raises(RecipeError, match="leave one of them out"):
        octavo.quantize(gated(), samples(), weights="int4", bits=4, algorithm="gptq:sequential=yes")


def test_data_that_can_be_read_once_is_enough_unless_a_step_reads_it_too() -> None:
    algorithm = "gptq:sequential=yes"
    once = octavo.quantize(gated(), iter(samples()), weights="int4", algorithm=algorithm)
    again = octavo.quantize(gated(), samples(), weights="int4", algorithm=algorithm)
    for name, made in integers(once).items():
        np.testing.assert_array_equal(made, integers(again)[name])
    proto = SHAPES["primitives"]()
    with pytest.raises(DataError, match="read only once"):
        octavo.quantize(proto, iter(feeds(proto)), weights="int4", algorithm=algorithm, steps="awq")


def test_another_library_gives_the_same_integers_up_to_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    algorithm = "gptq:sequential=yes"
    one = integers(octavo.quantize(gated(), samples(), weights="int4", algorithm=algorithm))
    for module in ("algorithms.weights.gptq", "pipeline.sequential"):
        monkeypatch.setattr(f"octavo.{module}.arrays", lambda device: Torch("cpu"))
    other = integers(octavo.quantize(gated(), samples(), weights="int4", algorithm=algorithm))
    for name, made in one.items():
        assert (made == other[name]).mean() > 0.98
