"""Side by side with ``onnxruntime.quantization``: the same operators, names, types and numbers.

What differs on purpose is in :data:`EXCEPTIONS` and :data:`OPTION_EXCEPTIONS`, with the reason.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo.quantization as ours
from octavo.errors import OctavoError
from octavo.quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from quantization.graphs import CASES
from quantization.peer import DYNAMIC, QDQ, QOP, differences, error, quantized, quiet

peer = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime.quantization does not import here")

pytestmark = pytest.mark.peer
quiet()

_RELU = "defect 3: stock drops a Relu though something else reads what it reads"
_ALPHA = "stock scales the bias by alpha as well: QGemm's bias is in units that alpha belongs to"
_BIAS = "stock gives both layers the integers of the first one's bias, though their scales differ"
_RANK = "the runtime fails, or computes something else, with a scale for each channel of a stack of matrices"

EXCEPTIONS: dict[tuple[str, str], str] = {
    ("Gemm with alpha", QOP): _ALPHA,
    ("Where of activations", QOP): "defect 12: stock raises",
    ("Where of constant", QOP): "defect 12: stock raises",
    ("Concat", QOP): _RELU,
    ("two readers", QOP): _RELU,
    ("shared bias", QOP): _BIAS,
    ("Gemm of computed weight", DYNAMIC): "stock rewrites Gemm to MatMul though it quantizes neither",
}

CHANNEL_EXCEPTIONS: dict[tuple[str, str], str] = {
    **EXCEPTIONS,
    ("MatMul of rank 3 weight", QDQ): _RANK,
    ("MatMul of rank 3 weight", QOP): _RANK,
    ("MatMul of rank 3 weight", DYNAMIC): _RANK,
}


def both(model: Any, style: str, folder: Path, options: Any = None, **more: Any) -> tuple[Any, Any]:
    """What the peer and the drop-in make of a model; the peer's error where it raises."""
    (folder / "peer").mkdir()
    (folder / "own").mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            left: Any = quantized(peer, model, style, folder / "peer", options, **more)
        except Exception as raised:
            left = raised
        return left, quantized(ours, model, style, folder / "own", options, **more)


def check(model: Any, left: Any, right: Any, reason: str | None, tolerance: float = 1e-5) -> None:
    """Equal; or, where an exception is listed, different and no further from float."""
    if reason is None:
        assert not isinstance(left, Exception), left
        assert differences(left, right, tolerance=tolerance) == []
    elif isinstance(left, Exception):
        error(model, right)  # it runs
    else:
        assert differences(left, right, tolerance=tolerance) != [], f"no longer an exception: {reason}"
        assert error(model, right) <= 1.2 * peer_error(model, left) + 1e-3


def peer_error(model: Any, left: Any) -> float:
    """How far the peer's model is from float; one that does not run is infinitely far."""
    try:
        return error(model, left)
    except OctavoError:
        return float("inf")


@pytest.mark.parametrize("style", [QDQ, QOP, DYNAMIC])
@pytest.mark.parametrize("case", CASES)
def test_case(case: str, style: str, tmp_path: Path) -> None:
    model = CASES[case]()
    check(model, *both(model, style, tmp_path), EXCEPTIONS.get((case, style)))


@pytest.mark.parametrize("style", [QDQ, QOP, DYNAMIC])
@pytest.mark.parametrize(
    "case", [
        "Conv", "ConvTranspose", "Gemm transposed", "MatMul", "MatMul of rank 3 weight", "LSTM", "Attention",
        "LayerNormalization", "network",
    ]
)  # fmt: skip
def test_per_channel(case: str, style: str, tmp_path: Path) -> None:
    model = CASES[case]()
    made = both(model, style, tmp_path, per_channel=True)
    check(model, *made, CHANNEL_EXCEPTIONS.get((case, style)))


def test_the_cases_hold_every_operator_of_the_registries() -> None:
    held = {node.op_type for make in CASES.values() for node in make().graph.node}
    assert {*IntegerOpsRegistry, *QLinearOpsRegistry, *QDQRegistry} - held == set()
    assert len(CASES) >= 40


def test_the_registries_name_the_operators_of_the_peer() -> None:
    from onnxruntime.quantization import registry

    assert set(QDQRegistry) == set(registry.QDQRegistry)
    assert set(QLinearOpsRegistry) == set(registry.QLinearOpsRegistry)
    assert set(IntegerOpsRegistry) == set(registry.IntegerOpsRegistry)


_WHOLE_RANGE = "a range made symmetric lets negative values through, so that dropping the Relu is wrong"
_FORCED = "stock leaves data movement float in QOperator when it is told to quantize it in any case"
_FLOAT8 = (
    "stock drops a Relu in front of float8, which holds negative values; a Max keeps the runtime from it too"
)

TYPES = [
    ("QInt8", "QInt8"),
    ("QUInt8", "QUInt8"),
    ("QUInt16", "QInt8"),
    ("QInt16", "QInt16"),
    ("QUInt8", "QInt4"),
]
OPTIONS: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    *(("network", QDQ, {}, {"activation_type": a, "weight_type": w}) for a, w in TYPES),
    *(("network", QOP, {}, {"activation_type": a, "weight_type": w}) for a, w in TYPES[:2]),
    *(
        ("network", QOP, {}, {"activation_type": a, "weight_type": w, "per_channel": True})
        for a, w in TYPES[:2]
    ),
    ("LayerNormalization", QDQ, {}, {"weight_type": "QUInt8", "per_channel": True}),
    ("EmbedLayerNormalization", QOP, {}, {"activation_type": "QInt8"}),
    ("Gather table", QDQ, {}, {"reduce_range": True}),
    ("Conv", QOP, {}, {"reduce_range": True}),
    ("LSTM", DYNAMIC, {}, {"weight_type": "QUInt8", "per_channel": True}),
    ("network", DYNAMIC, {}, {"weight_type": "QUInt8", "reduce_range": True}),
    ("network", QDQ, {"ActivationSymmetric": True}, {}),
    ("network", QOP, {"ActivationSymmetric": True}, {}),
    ("Add", QDQ, {"ActivationRestrictedAsymmetric": True}, {}),
    ("Conv", QDQ, {"WeightSymmetric": False}, {}),
    ("Sigmoid", QDQ, {"MinimumRealRange": 2.5}, {}),
    ("Where of constant", QDQ, {"ForceQuantizeNoInputCheck": True}, {}),
    ("Reshape alone", QDQ, {"ForceQuantizeNoInputCheck": True}, {}),
    ("Reshape", QOP, {"ForceQuantizeNoInputCheck": True}, {}),
    ("MatMul of two activations", QOP, {"MatMulConstBOnly": True}, {}),
    ("MatMul of two activations", QDQ, {"MatMulConstBOnly": True}, {}),
    ("MatMul of two activations", DYNAMIC, {"MatMulConstBOnly": False}, {}),
    ("Sigmoid", QOP, {"extra.Sigmoid.nnapi": True}, {}),
    ("network", QDQ, {"AddQDQPairToWeight": True}, {}),
    ("network", QDQ, {"QuantizeBias": False}, {}),
    ("network", QDQ, {"OpTypesToExcludeOutputQuantization": ["Conv", "Gemm"]}, {}),
    ("Mul", QDQ, {"DedicatedQDQPair": True}, {}),
    ("two readers", QDQ, {"DedicatedQDQPair": True}, {}),
    ("MatMul", QDQ, {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 1}}, {"per_channel": True}),
    ("network", QDQ, {"UseQDQContribOps": True}, {}),
    ("network", QDQ, {"QDQKeepRemovableActivations": True}, {}),
    ("network", QDQ, {"QDQDisableWeightAdjustForInt32Bias": True}, {}),
    ("MatMul", QDQ, {"BlockSize": 4}, {"weight_type": "QInt4"}),
    ("Softmax", QDQ, {"CalibTensorRangeSymmetric": True}, {}),
    ("Conv", QDQ, {"CalibTensorRangeSymmetric": True}, {}),
    ("network", QDQ, {"CalibMovingAverage": True, "CalibMovingAverageConstant": 0.3}, {}),
    ("network", QDQ, {"CalibStridedMinMax": 1}, {}),
    ("network", QDQ, {}, {"calibrate_method": "Entropy"}),
    ("network", QDQ, {"CalibPercentile": 99.0}, {"calibrate_method": "Percentile"}),
    (
        "MatMul",
        QDQ,
        {},
        {
            "activation_type": "QFLOAT8E4M3FN",
            "weight_type": "QFLOAT8E4M3FN",
            "calibrate_method": "Distribution",
        },
    ),
    ("network", QDQ, {}, {"nodes_to_exclude": ["two", "gemm"]}),
    ("network", QDQ, {}, {"nodes_to_quantize": ["one", "relu"]}),
    ("Sub", QDQ, {}, {"op_types_to_quantize": ["Conv", "Sub"]}),
    ("network", QOP, {}, {"op_types_to_quantize": ["Conv", "Add"]}),
    ("network", QOP, {}, {"nodes_to_exclude": ["one"]}),
    ("network", DYNAMIC, {}, {"nodes_to_exclude": ["one"]}),
]

OPTION_EXCEPTIONS: dict[tuple[str, str, str], str] = {
    ("Reshape", QOP, "ForceQuantizeNoInputCheck"): _FORCED,
    ("Conv", QDQ, "CalibTensorRangeSymmetric"): _WHOLE_RANGE,
    ("MatMul", QDQ, "QFLOAT8E4M3FN"): _FLOAT8,
}
_LOOSE = {"Percentile": 1e-2, "Entropy": 1e-3}  # values are counted in other bins


@pytest.mark.parametrize("case, style, options, more", OPTIONS)
def test_option(case: str, style: str, options: dict[str, Any], more: dict[str, Any], tmp_path: Path) -> None:
    model = CASES[case]()
    made = both(model, style, tmp_path, options, **more)
    marks = {*options, *(v for v in more.values() if isinstance(v, str))}
    reason = next(
        (OPTION_EXCEPTIONS[case, style, m] for m in marks if (case, style, m) in OPTION_EXCEPTIONS), None
    )
    check(model, *made, reason, _LOOSE.get(more.get("calibrate_method", ""), 1e-5))


_F = np.float32
OVERRIDES: dict[str, dict[str, list[dict[str, Any]]]] = {
    "type": {"t": [{"quant_type": "QUInt16"}]},
    "type of a weight": {"w": [{"quant_type": "QUInt8"}]},
    "symmetric": {"t": [{"symmetric": True}]},
    "reduced weight": {"w": [{"reduce_range": True}]},
    "convert for all": {"t": [{"quant_type": "QUInt16", "convert": {"quant_type": "QUInt8"}}]},
    "convert for one": {
        "x": [{"quant_type": "QUInt16", "convert": {"quant_type": "QUInt8", "recv_nodes": {"conv"}}}]
    },
    "parameters": {"t": [{"scale": np.array(0.05, _F), "zero_point": np.array(3, np.uint8)}]},
    "parameters of a weight": {"w": [{"scale": _F(0.05), "zero_point": np.int8(3)}]},
    "range": {"t": [{"rmin": np.array(-3, _F), "rmax": np.array(3, _F)}]},
    "one end": {"t": [{"rmax": np.array(3, _F)}]},
    "range of a weight": {"w": [{"rmin": -1.0, "rmax": 1.0}]},
    "channels": {"w": [{"axis": 0, "quant_type": "QInt8"}]},
    "ranges of channels": {
        "w": [{"rmin": -1.0, "rmax": 1.0 + i, **({} if i else {"axis": 0})} for i in range(4)]
    },
    "parameters of channels": {
        "w": [
            {"scale": _F(0.01 + 0.01 * i), "zero_point": np.int8(0), **({} if i else {"axis": 0})}
            for i in range(4)
        ]
    },
}  # fmt: skip


@pytest.mark.parametrize("name", OVERRIDES)
def test_override(name: str, tmp_path: Path) -> None:
    model = CASES["Mul"]()
    left, right = both(model, QDQ, tmp_path, {"TensorQuantOverrides": OVERRIDES[name]})
    check(model, left, right, None)


def test_every_exception_has_a_reason() -> None:
    listed = {**EXCEPTIONS, **CHANNEL_EXCEPTIONS, **OPTION_EXCEPTIONS}
    assert all(listed.values())
