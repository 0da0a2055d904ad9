"""Two decoders in one model."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from builders import model, node, tensor

from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph.merging import merge_decoders


def pair(shape: list[int] | None) -> tuple[ir.Model, ir.Model]:
    """Two models, of which the first one returns a tensor of this shape that the other one does not."""
    ends = [tensor("x", [1, 4])], [tensor("y", [1, 4])]
    more = [*ends[1], tensor("states", shape)]
    first = model([node("Relu", ["x"], ["y"]), node("Identity", ["x"], ["states"])], ends[0], more)
    return io.load(first), io.load(model([node("Relu", ["x"], ["y"])], *ends))


def test_what_one_of_two_decoders_returns_is_empty_in_the_branch_of_the_other() -> None:
    merged = merge_decoders(*pair([1, 2, 4, 8]))
    branch = merged.graph.node(0).attributes["then_branch"].as_graph()
    (empty,) = [one.attributes["value"].as_tensor() for one in branch if one.op_type == "Constant"]
    assert empty.shape.numpy() == (1, 2, 0, 8)


@pytest.mark.parametrize(
    ("shape", "words"), [([1] * 70, "impossible shape"), ([], "how large"), (None, "how large")]
)
def test_an_output_of_no_possible_shape_can_not_be_left_empty(shape: list[int] | None, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        merge_decoders(*pair(shape))
