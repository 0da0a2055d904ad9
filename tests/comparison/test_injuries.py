"""An injured tensor is named first, in every style."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from quantizing import convolutions, error, feeds_for, layers

import octavo
from octavo.comparison.comparing import compare
from octavo.comparison.comparison_result import Comparison
from octavo.model.files import io

from .injuries import attention, clip_at_half, coarsen, quantize_mask, rename_all

STATIC_INTEGER = octavo.W8A8.but(style=octavo.Style.INTEGER)


def _made(proto: onnx.ModelProto, data: list[dict[str, np.ndarray]], style: str) -> onnx.ModelProto:
    if style == "dynamic":
        return io.to_proto(octavo.quantize(proto).model)
    if style == "integer":
        return io.to_proto(octavo.quantize(proto, data, recipe=STATIC_INTEGER).model)
    return io.to_proto(octavo.quantize(proto, data, style=style).model)


def _compared(proto: onnx.ModelProto, injured: onnx.ModelProto) -> Comparison:
    return compare(proto, injured, feeds_for(proto, 4))


@pytest.mark.parametrize("style", ["qdq", "qoperator", "dynamic"])
def test_a_weight_with_a_coarse_scale_is_named_first(style: str) -> None:
    proto = layers(4)
    injured = _made(proto, feeds_for(proto), style)
    coarsen(injured, "w1", 32)
    found = _compared(proto, injured)
    first = found.culprits[0]
    assert (first.tensor, first.kind, first.cause) == ("w1", "weight", "coarse scale")
    assert first.change.overrides[0].tensor == "w1"
    assert min(found.weights, key=lambda w: w.errors.sqnr).name == "w1"


@pytest.mark.parametrize("style", ["qdq", "qoperator"])
def test_a_coarse_convolution_is_named_and_not_its_victims(style: str) -> None:
    proto = convolutions(4)
    injured = _made(proto, feeds_for(proto), style)
    coarsen(injured, "w0", 32)
    found = _compared(proto, injured)
    assert found.culprits[0].tensor == "w0"
    worst = {t.name: t for t in found.tensors}
    assert worst["r0"].local.sqnr < 20 and worst["r2"].local.sqnr > 35  # by itself the victim is fine
    assert worst["r2"].accumulated.sqnr < 30


@pytest.mark.parametrize("style", ["qdq", "qoperator", "integer"])
def test_an_activation_clipped_at_half_is_named_first(style: str) -> None:
    proto = layers(4)
    injured = _made(proto, feeds_for(proto), style)
    clip_at_half(injured, "r1")
    found = _compared(proto, injured)
    first = found.culprits[0]
    assert (first.tensor, first.kind, first.cause) == ("r1", "activation", "clipped")


@pytest.mark.parametrize("style", ["qdq", "qoperator", "dynamic"])
def test_a_quantized_mask_is_named_first(style: str) -> None:
    proto = attention()
    injured = _made(proto, feeds_for(proto), style)
    quantize_mask(injured, "mask", integer_operator=style == "qoperator")
    found = _compared(proto, injured)
    first = found.culprits[0]
    assert (first.tensor, first.cause) == ("mask", "mask")
    assert "masking" in first.change.exclude


@pytest.mark.parametrize("style", ["qdq", "qoperator", "dynamic"])
def test_names_do_not_matter(style: str) -> None:
    proto = layers(4)
    injured = _made(proto, feeds_for(proto), style)
    coarsen(injured, "w1", 32)
    renamed = rename_all(injured)
    found = _compared(proto, renamed)
    assert not found.unmatched
    assert found.culprits[0].tensor == "w1"


@pytest.mark.parametrize("kind", ["weight", "activation", "mask"])
def test_the_proposal_repairs_an_injured_model(kind: str, tmp_path: Path) -> None:
    proto = attention() if kind == "mask" else layers(4)
    data = feeds_for(proto, 8)  # a quarter is held back, and one sample alone may not show the injury
    injured = _made(proto, data, "qdq")
    if kind == "weight":
        coarsen(injured, "w1", 32)
    elif kind == "activation":
        clip_at_half(injured, "r1")
    else:
        quantize_mask(injured, "mask")
    found = _compared(proto, injured)
    proposal = octavo.propose(proto, injured, data, comparison=found)
    assert proposal.is_better
    proposal.save(tmp_path / "recipe.yaml")
    repaired = octavo.quantize(proto, data, recipe=tmp_path / "recipe.yaml")
    assert error(repaired, proto, data) < 0.1
    again = compare(proto, repaired.model, data)
    assert again.outputs[0].errors.sqnr > found.outputs[0].errors.sqnr + 10
