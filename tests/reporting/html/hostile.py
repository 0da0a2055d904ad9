"""Results whose names try to get out of the page, and a large one."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor

import octavo
from octavo.reporting.html import details

MARKUP = "<img src=x onerror=window.hacked=1>"
SCRIPT = "</script><script>window.hacked=2</script>"
LINK = "javascript:window.hacked=3"
TURNED = "\u202egnp.exe \u2066x"
TEMPLATE = "{{data}} {{script}} ${window.hacked=4}"
PROTOTYPE = "__proto__"
LONG = "very/" * 1000 + "long"
NAMES = (MARKUP, SCRIPT, LINK, TURNED, TEMPLATE, PROTOTYPE, LONG)


def net() -> onnx.ModelProto:
    """A chain of linear layers, a Relu between, with names that no one should trust."""
    rng = np.random.default_rng(0)
    nodes, arrays, last = [], {}, f"in {MARKUP}"
    for index, name in enumerate(NAMES):
        weight = f"w{index} {name}"
        arrays[weight] = rng.standard_normal((16, 16)).astype(np.float32) / 4
        nodes.append(node("MatMul", [last, weight], [f"t{index} {name}"], f"n{index} {name}"))
        nodes.append(node("Relu", [f"t{index} {name}"], [f"r{index} {name}"], f"r{index} {name}"))
        last = f"r{index} {name}"
    nodes.append(node("Softmax", [last], [SCRIPT], MARKUP))
    return model(nodes, [tensor(f"in {MARKUP}", [4, 16])], [tensor(SCRIPT, [4, 16])], arrays)


def feeds(count: int = 4) -> list[dict[str, np.ndarray]]:
    """Samples for it."""
    rng = np.random.default_rng(1)
    return [{f"in {MARKUP}": rng.standard_normal((4, 16)).astype(np.float32)} for _ in range(count)]


def quantized() -> octavo.Result:
    """The net, quantized, with histograms."""
    return octavo.quantize(net(), feeds(), histograms=True, verify=False, effort="plain")


def evaluation(name: str = "model.onnx") -> dict[str, Any]:
    """An evaluation of two models with a hostile class."""
    score = {"name": "top1", "low": 0.70, "high": 0.74, "higher_is_better": True, "percent": True}
    return {
        "schema": 1,
        "kind": "evaluation",
        "task": f"classification {MARKUP}",
        "model": name,
        "against": "float.onnx",
        "samples": 100,
        "scores": [{**score, "value": 0.72}],
        "against_scores": [{**score, "value": 0.725}],
        "differences": [
            {
                "name": "top1", "value": -0.005, "low": -0.02, "high": 0.01, "half_width": 0.015,
                "method": "bootstrap", "p_value": None, "significant": False,
            }
        ],
        "per_class": {
            "figure": "top1",
            "model": [{"name": n, "value": 0.5, "count": 3} for n in NAMES],
            "against": [{"name": n, "value": 0.6, "count": 3} for n in NAMES],
        },
        "settings": {"labels": SCRIPT},
        "notes": [MARKUP],
        "seconds": 1.0,
    }  # fmt: skip


def bench(nodes: list[str]) -> dict[str, Any]:
    """A measurement of two models, with a time for each of these nodes."""
    latency = {"low": 0.009, "median": 0.01, "high": 0.011, "best": 0.008}

    def measured(name: str, factor: float) -> dict[str, Any]:
        return {
            "name": name,
            "file_bytes": int(40_000 * factor),
            "latency": {key: value * factor for key, value in latency.items()},
            "load_seconds": 0.1,
            "memory_bytes": 1_000_000,
            "ops": [{"op_type": "MatMul", "count": 7, "seconds": 0.005 * factor}],
            "unfused": [
                {"node": n, "op_type": SCRIPT, "seconds": 1e-5, "conversion_seconds": 1e-6} for n in nodes[:2]
            ],
            "nodes": [
                {"name": n, "op_type": "MatMul", "seconds": 1e-4 * (i + 1)} for i, n in enumerate(nodes)
            ],
        }

    return {
        "schema": 1,
        "kind": "bench",
        "models": [measured("float.onnx", 1.0), measured(f"{MARKUP} and more", 0.5)],
        "ratio": {"value": 2.0, "low": 1.9, "high": 2.1},
        "rounds": 9,
        "batch": 1,
        "threads": None,
        "data": MARKUP,
        "clock": "wall",
        "notes": [],
    }


def everything() -> list[Any]:
    """A result of each kind about the hostile net, as a page takes them."""
    result = quantized()
    plain = details.full(result)
    names = [one["name"] for one in plain["details"]["graph"]["nodes"]]
    compared = octavo.compare(net(), result.model, feeds())
    return [plain, compared, evaluation("another name"), bench(names)]


def large(count: int = 1000) -> dict[str, Any]:
    """A quantization of so many operators, with a histogram for every tensor."""
    rng = np.random.default_rng(2)
    nodes, edges, tensors, plan_nodes = [], [], [], {}
    for i in range(count):
        name = f"/encoder/layers.{i // 10}/self_attention/projection_{i}/MatMul"
        nodes.append({"name": name, "op_type": "MatMul", "outputs": [f"{name}_output_0"], "integer": True})
        plan_nodes[name] = {"op_type": "MatMul", "lowering": "MatMul"}
        edges += [[i - back, i] for back in (1, 7) if i - back >= 0 and (back == 1 or i % 10 == 0)]
        for kind in ("activation", "weight"):
            counts = rng.integers(0, 100_000, 128).tolist()
            tensors.append(
                {
                    "tensor": f"{name}_{kind}", "reader": None, "kind": kind, "how": "measured by minmax",
                    "type": "uint8", "granularity": "tensor", "scales": 1, "scale": [0.01, 0.01],
                    "zero_point": [128, 128], "range": [-1.28, 1.27], "seen": [-1.3, 1.3],
                    "histogram": {"low": -1.3, "width": 0.02, "counts": counts},
                }
            )  # fmt: skip
    return {
        "schema": 1,
        "kind": "quantization",
        "quantized": {"MatMul": count},
        "skipped": [],
        "float_bytes": 4_000_000,
        "bytes": 1_000_000,
        "notes": [],
        "recipe": None,
        "plan": {"nodes": plan_nodes, "entries": [], "fused": {}, "skipped": [], "notes": []},
        "params": {},
        "details": {
            "schema": 1, "name": "large.int8.onnx", "source": "large.onnx",
            "graph": {"nodes": nodes, "edges": edges}, "tensors": tensors, "manifest": {},
        },
    }  # fmt: skip
