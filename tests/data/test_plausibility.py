"""What is said about data that looks wrong, and that nothing is said about data that does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from builders import model, node, tensor

import octavo
from octavo.data.fingerprints import FingerprintedSamples, digest, fingerprint
from octavo.data.plausibility import inputs_near_one
from octavo.model.files import io
from octavo.model.runtime.session import InputSpec

F32 = np.dtype(np.float32)
IMAGE = [InputSpec("x", F32, ("batch", 3, 8, 8))]
RNG = np.random.default_rng(0)


def images(count: int = 5, scale: float = 1.0) -> list[dict[str, Any]]:
    return [{"x": (RNG.random((1, 3, 8, 8)) * scale).astype(np.float32)} for _ in range(count)]


def raw(count: int = 5) -> list[dict[str, Any]]:
    return [{"x": RNG.integers(0, 256, (1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def findings(data: Any, specs: Any = IMAGE, **more: Any) -> str:
    found = FingerprintedSamples(data, specs, **more)
    assert list(found)
    return "; ".join(found.notes)


def network(gain: float = 1.0, between: str | None = None) -> onnx.ModelProto:
    """A convolution of an image, after or before another operator."""
    weights = (RNG.standard_normal((4, 3, 3, 3)) * gain / np.sqrt(27)).astype(np.float32)
    first = [node("Conv", ["x", "w"], ["y"])]
    if between == "Mul":
        first = [node("Mul", ["x", "s"], ["m"]), node("Conv", ["m", "w"], ["y"])]
    last = (
        node("InstanceNormalization", ["y", "one", "one"], ["z"])
        if between == "Norm"
        else node("Relu", ["y"], ["z"])
    )
    more = {"Mul": {"s": np.float32(1 / 255)}, "Norm": {"one": np.ones(4, np.float32)}}.get(between or "", {})
    shape = ["batch", 3, 8, 8]
    return model(
        [*first, last], [tensor("x", shape)], [tensor("z", ["batch", 4, 6, 6])], {"w": weights, **more}
    )


def test_good_data_is_not_spoken_of() -> None:
    assert findings(images(), near_one={"x"}) == ""
    assert findings([{"x": p["x"] * 2 - 1} for p in images()], near_one={"x"}) == ""


def test_samples_that_are_all_the_same() -> None:
    assert "4 samples are all the same" in findings(images(1) * 4)
    assert "first 64 samples" in findings(images(1) * 70)
    assert findings(images(1)) == ""


def test_images_that_lack_their_scaling() -> None:
    assert "whole numbers from 0 to 255" in findings(raw(), near_one={"x"})
    assert "divided by 255 twice" in findings(images(scale=1 / 255), near_one={"x"})
    assert findings(raw()) == ""
    assert findings([{"x": p["x"] - 128} for p in raw()], near_one={"x"}) == ""


def test_whole_number_inputs_are_left_alone() -> None:
    specs = [InputSpec("x", np.dtype(np.uint8), ("batch", 3, 8, 8))]
    assert findings([{"x": p["x"].astype(np.uint8)} for p in raw()], specs, near_one={"x"}) == ""
    ids = [InputSpec("ids", np.dtype(np.int64), ("batch", "length"))]
    assert findings([{"ids": np.array([[i, 200]])} for i in range(5)], ids, near_one={"ids"}) == ""


def test_a_channel_that_never_changes() -> None:
    data = images()
    for sample in data:
        sample["x"][:, 1] = 0.5
    assert "channel 1 (0.5) of all 5 samples" in findings(data)
    assert findings(data[:3]) == ""


@pytest.mark.parametrize(
    ("gain", "between", "small"),
    [(1.0, None, True), (0.005, None, False), (1.0, "Mul", False), (1.0, "Norm", False)],
)
def test_whether_an_input_expects_small_values_is_read_off_the_model(
    gain: float, between: str | None, small: bool
) -> None:
    assert inputs_near_one(io.load(network(gain, between))) == ({"x"} if small else set())


def test_fewer_samples_than_requested() -> None:
    assert "the calibration data has 5" in findings(images(), limit=8)
    assert "the calibration data has 5" in findings(iter(images()), limit=8)
    assert findings(images(), limit=5) == ""


def test_findings_and_the_word_on_random_data_are_notes_of_the_result() -> None:
    result = octavo.quantize(network(), raw(), samples=9, effort="plain")
    notes = "; ".join(result.notes)
    assert "whole numbers from 0 to 255" in notes
    assert "9 samples" in notes
    assert "note: 9 samples" in str(result)
    assert "random data" in " ".join(octavo.quantize(network(), octavo.random_data(3), effort="plain").notes)


def test_a_look_ahead_finds_the_same_as_a_pass() -> None:
    data = raw()
    found = FingerprintedSamples(data, IMAGE, near_one={"x"})
    found.peek()
    assert found.first is not None
    assert "; ".join(found.notes) == findings(data, near_one={"x"})
    assert found.fingerprint is None
    list(found)
    assert found.fingerprint == fingerprint(digest(sample) for sample in data)
