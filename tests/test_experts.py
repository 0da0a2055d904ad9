"""Experts of a mixture: MoE becomes QMoE, run by ONNX Runtime beside the float operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo
from octavo.algorithms.weights.importance import Importance
from octavo.core.blocks import BlockScheme
from octavo.core.plan import Constant, Key
from octavo.model.files import io
from octavo.model.runtime.session import Session

EXPERTS, HIDDEN, INNER, TOKENS = 4, 64, 96, 10
MS = "com.microsoft"


def mixture(activation: str = "silu", *, bias: bool = True, inputs: int = HIDDEN) -> onnx.ModelProto:
    """A router, and experts that it chooses two of."""
    rng = np.random.default_rng(0)
    fused = activation == "swiglu"

    def made(*dims: int) -> np.ndarray:
        return (rng.standard_normal(dims) * dims[-1] ** -0.5).astype(np.float32)

    arrays = {
        "router": made(inputs, EXPERTS) * 8,
        "w1": made(EXPERTS, INNER * (2 if fused else 1), inputs) * np.exp(rng.normal(0, 0.5, inputs)),
        "w2": made(EXPERTS, inputs, INNER),
    }
    if bias:
        arrays |= {"b1": made(EXPERTS, INNER * (2 if fused else 1)), "b2": made(EXPERTS, inputs)}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    reads = ["x", "r", "w1", "b1" if bias else "", "w2", "b2" if bias else ""]
    more: dict[str, Any] = {"swiglu_fusion": 1, "activation_alpha": 1.2} if fused else {}
    nodes = [
        node("MatMul", ["x", "router"], ["r"], "router"),
        node(
            *("MoE", reads, ["y"], "experts"),
            domain=MS,
            k=2,
            activation_type=activation,
            normalize_routing_weights=1,
            **more,
        ),
    ]
    size = ["tokens", inputs]
    return model(nodes, [tensor("x", size)], [tensor("y", size)], arrays, domains={MS: 1})


def sample(seed: int = 0, inputs: int = HIDDEN) -> dict[str, np.ndarray]:
    """Tokens whose channels hang together, and are of unlike size."""
    mix = np.random.default_rng(100).standard_normal((16, inputs)) * np.exp(np.linspace(-2, 2, inputs)) / 8
    rng = np.random.default_rng(seed)
    noise = 0.1 * rng.standard_normal((TOKENS, inputs))
    return {"x": (rng.standard_normal((TOKENS, 16)) @ mix + noise).astype(np.float32)}


def answers(source: Any, feed: dict[str, np.ndarray]) -> np.ndarray:
    return Session.open(source).run(feed)["y"].astype(np.float64)


def apart(result: octavo.Result, proto: onnx.ModelProto) -> float:
    want = answers(io.load(proto), sample(9))
    return float(np.linalg.norm(answers(result.model, sample(9)) - want) / np.linalg.norm(want))


def only(result: octavo.Result, op: str) -> Any:
    (found,) = [one for one in result.model.graph if one.op_type == op]
    return found


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu", "identity", "swiglu"])
@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize(("weights", "error"), [("int8", 0.02), ("int4", 0.2), ("int2", 0.8)])
def test_experts_run_close_to_float(activation: str, symmetric: bool, weights: str, error: float) -> None:
    proto = mixture(activation)
    kept = {"router": "float"}  # another choice of experts would be another answer
    result = octavo.quantize(
        proto, None, weights=weights, per="block:32", symmetric=symmetric, layers=kept, recipe="W4"
    )
    made = only(result, "QMoE")
    assert (made.attributes["expert_weight_bits"].value, made.attributes["block_size"].value) == (
        int(weights[-1]),
        32,
    )
    assert (len(made.inputs) > 11) is not symmetric
    assert 0 < apart(result, proto) < error


def test_a_model_without_biases_and_one_that_is_saved_run_too(tmp_path: Path) -> None:
    proto = mixture(bias=False)
    result = octavo.quantize(proto, None, weights="int4", layers={"router": "float"}, accuracy_level=0)
    assert "accuracy_level" not in only(result, "QMoE").attributes
    result.save(tmp_path / "m.onnx")
    assert np.allclose(answers(tmp_path / "m.onnx", sample()), answers(result.model, sample()))
    assert result.bytes < 0.2 * result.float_bytes


@pytest.mark.parametrize("algorithm", ["importance", "gptq", "gptq:sequential=yes"])
def test_what_experts_read_counts_and_what_they_compute_inside_is_not_known(algorithm: str) -> None:
    data = [sample(seed) for seed in range(20)]
    result = octavo.quantize(mixture(), data, weights="int4", layers={"router": "float"}, algorithm=algorithm)
    entries = result.plan.entries
    first, second = entries[Key("w1", "experts")], entries[Key("w2", "experts")]
    assert isinstance(first, Constant) and isinstance(second, Constant)
    assert first.algorithm == algorithm
    assert second.algorithm is not None and second.algorithm.startswith("k-quant")
    plain = octavo.quantize(mixture(), None, weights="int4", layers={"router": "float"}, algorithm="rtn")
    assert apart(result, mixture()) < 0.95 * apart(plain, mixture())
    if algorithm == "importance":
        arrays = {one.name: onnx.numpy_helper.to_array(one) for one in mixture().graph.initializer}
        squares = (np.concatenate([one["x"] for one in data]).astype(np.float64) ** 2).sum(axis=0)
        rows = arrays["w1"].reshape(-1, HIDDEN)
        made = Importance().blocks(rows, BlockScheme(4, 32), squares)
        matrix = result.params[Key("w1", "experts")].matrix
        assert matrix is not None
        assert (matrix.integers == made.integers).mean() > 0.99


def test_experts_may_have_bits_of_their_own() -> None:
    result = octavo.quantize(mixture(), None, weights="int4", layers={"router": "float", "experts": 8})
    assert only(result, "QMoE").attributes["expert_weight_bits"].value == 8


def reason(proto: onnx.ModelProto, **more: Any) -> str:
    plan = octavo.plan(proto, **({"weights": "int4"} | more))
    return next(one.reason for one in plan.skipped if one.node == "experts")


def test_what_the_runtime_can_not_run_is_refused_with_the_reason() -> None:
    assert "72 inputs are not blocks of 32" in reason(mixture(inputs=72))
    apart_halves = mixture("swiglu")
    next(a for a in apart_halves.graph.node[1].attribute if a.name == "swiglu_fusion").i = 2
    assert "interleaved" in reason(apart_halves)
    third = mixture()
    third.graph.node[1].input.extend(["w1"])
    assert "no third projection" in reason(third)
    assert "does not take QMoE" in reason(mixture(), target="openvino")
    assert "recipe that leaves activations in float" in reason(mixture(), weights="int8", recipe="W8A8")
