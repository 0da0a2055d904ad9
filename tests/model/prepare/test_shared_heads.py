"""Products of attention read heads that several queries share, where exporters copy them."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import model, node, tensor

from model.prepare.helpers import before_and_after, ops
from octavo.model.prepare import PrepareReport, prepare

GROUPS, COPIES, SIZE = 2, 3, 4
HEADS = GROUPS * COPIES
_TIMES = (1, 1, COPIES, 1, 1)


def attention(*, times=_TIMES, heads: object = HEADS, scale="Mul", joined=(0, HEADS, -1, SIZE)):
    """softmax(q·kᵀ·scale + mask)·v, where k and v are repeated for the heads of q."""
    past = ["batch", GROUPS, "total", SIZE]
    nodes = [
        *(
            one
            for name in ("k", "v")
            for one in (
                node("Unsqueeze", [name, "second"], [f"{name}5"]),
                node("Expand", [f"{name}5", "times"], [f"{name}6"]),
                node("Reshape", [f"{name}6", "joined"], [f"{name}4"]),
            )
        ),
        node("Transpose", ["k4"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "turned"], ["raw"], "scores"),
        node(scale, ["raw", "scale"], ["scaled"]),
        node("Add", ["scaled", "mask"], ["masked"]),
        node("Softmax", ["masked"], ["soft"], axis=-1),
        node("MatMul", ["soft", "v4"], ["y"], "mixed"),
    ]
    inputs = [
        tensor("q", ["batch", heads, "new", SIZE]),
        tensor("k", past),
        tensor("v", past),
        tensor("mask", ["batch", 1, "new", "total"]),
    ]
    arrays = {
        "second": np.int64([2]),
        "times": np.int64(times),
        "joined": np.int64(joined),
        "scale": np.float32(0.3),
    }
    return model(nodes, inputs, [tensor("y", ["batch", heads, "new", SIZE])], arrays)


def feeds(batch: int, new: int, total: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {
        "q": (batch, HEADS, new, SIZE),
        "k": (batch, GROUPS, total, SIZE),
        "v": (batch, GROUPS, total, SIZE),
    }
    made = {name: random.standard_normal(dims).astype(np.float32) for name, dims in shapes.items()}
    return {**made, "mask": np.triu(np.full((batch, 1, new, total), -1e4, np.float32), total - new + 1)}


def prepared(proto: onnx.ModelProto, **given: object) -> ir.Model:
    return before_and_after(proto, prepare, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(("batch", "new", "total"), [(1, 1, 7), (2, 3, 5), (3, 4, 4)])
@pytest.mark.parametrize("scale", ["Mul", "Div"])
def test_attention_over_shared_heads_copies_nothing_and_computes_the_same(batch, new, total, scale):
    found = prepared(attention(scale=scale), feeds=feeds(batch, new, total))
    assert not {"Expand", "Unsqueeze"} & set(ops(found))
    assert {"scores", "mixed"} <= {one.name for one in found.graph}


def test_what_scales_a_product_stays_behind_it():
    found = prepared(attention(), feeds=feeds(2, 3, 5))
    scores = next(one for one in found.graph if one.name == "scores")
    assert [one.op_type for one in scores.outputs[0].consumers()] == ["Mul"]


def test_copies_stay_where_it_is_not_certain_that_only_heads_are_repeated():
    unclear = attention(joined=(-1, HEADS, 5, SIZE))
    assert ops(prepared(unclear, feeds=feeds(2, 3, 5))).count("Expand") == 2


def test_a_product_whose_queries_may_have_one_head_keeps_the_copies():
    found = prepared(attention(heads="heads"), feeds=feeds(2, 3, 5))
    assert ops(found).count("Expand") == 1  # weights of attention have the heads of the copies


def test_tokens_that_are_repeated_too_stay():
    proto = attention(times=(1, 1, COPIES, 5, 1))
    assert ops(prepared(proto, feeds=feeds(2, 3, 5))).count("Expand") == 2


def test_preparing_again_changes_nothing():
    found = prepared(attention(), feeds=feeds(2, 3, 5))
    report: PrepareReport = prepare(found)
    assert "attention" not in {change.pass_name for change in report.changes}
