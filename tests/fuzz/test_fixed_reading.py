"""Faults that fuzzing brought up where things are read and prepared, each as the fact that holds now."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import helper

import octavo
from octavo.calibration.statistics import HistogramState
from octavo.calibration.statistics.extremes import ExtremesState
from octavo.calibration.statistics.state_parts import SampleSet
from octavo.core.files import read_bytes
from octavo.data.images import geometry
from octavo.data.images.preprocessing import PREPROCESSING, Preset
from octavo.data.readers import source_of
from octavo.errors import DataError, ModelError, TableError
from octavo.model.files import io
from octavo.model.prepare import PrepareOptions, batch_norm, prepare
from octavo.model.runtime import samples
from octavo.model.runtime.session import InputSpec, Session

WEIGHT = np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8)
X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)


def computed(made: onnx.ModelProto, *, opset: int | None = None) -> np.ndarray:
    """What a model says to ``X`` after preparation."""
    loaded = io.load(made)
    prepare(loaded, PrepareOptions(opset=opset))
    return Session.open(loaded).run({"x": X})["y"]


def test_a_small_file_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"{}" * 10)
    tracemalloc.start()
    try:
        assert read_bytes(path, 1 << 28) == b"{}" * 10
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("most", [19, 20])
def test_a_file_is_read_up_to_its_bound(tmp_path: Path, most: int) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b"{}" * 10)
    if most == 20:
        assert len(read_bytes(path, most)) == most
    else:
        with pytest.raises(OSError, match="larger than"):
            read_bytes(path, most)


def test_an_array_of_arrays_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_2_0(
            file, {"descr": ("<f4", (2,)), "fortran_order": False, "shape": (0,)}
        )
    with pytest.raises(DataError, match="not numbers"):
        source_of(path, [InputSpec("x", np.dtype(np.float32), ("n",))])


def test_extremes_of_nothing_are_no_numbers() -> None:
    empty = ExtremesState()
    assert ExtremesState.from_bytes(empty.to_bytes()).count == 0
    with pytest.raises(TableError, match="damaged"):
        ExtremesState.from_bytes(ExtremesState(-2.0, -3.0).to_bytes())


@pytest.mark.parametrize("value", [5e-324, 1.0, 1.7e308])
def test_a_histogram_of_any_number_is_read_again(value: float) -> None:
    state = HistogramState()
    state.update(np.array([value, -value]))
    assert HistogramState.from_bytes(state.to_bytes()).to_bytes() == state.to_bytes()


@pytest.mark.parametrize(
    ("exponent", "counts"), [(1013, (1, 1)), (-1086, (1, 1)), (-11, (0, 0)), (-11, (2**62, 2**62))]
)
def test_a_histogram_of_what_nothing_counts_is_refused(exponent: int, counts: tuple[int, int]) -> None:
    header = struct.pack("<BBIIiiI", 2, 0, 1, 1, exponent, 2047, 2)
    extremes = ExtremesState(0.9, 1.0, SampleSet([(0, 1)])).to_bytes()
    with pytest.raises(TableError, match="damaged"):
        HistogramState.from_bytes(header + np.array(counts, "<i8").tobytes() + extremes)


def test_made_up_numbers_do_not_depend_on_the_pieces_they_are_drawn_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    specs = [InputSpec("x", np.dtype(np.float32), (3, 7)), InputSpec("ids", np.dtype(np.int64), (5, 3)),
             InputSpec("z", np.dtype(np.float32), (2, 2))]  # fmt: skip
    rng = np.random.default_rng(4)
    wanted = {"x": (0.5 * rng.standard_normal((3, 7))).astype(np.float32), "ids": rng.integers(0, 2, (5, 3)),
              "z": (0.5 * rng.standard_normal((2, 2))).astype(np.float32)}  # fmt: skip
    for piece in (1, 4, 1 << 20):
        monkeypatch.setattr(samples, "_PIECE", piece)
        found = samples.sample_inputs(specs, seed=4)
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array)


def test_made_up_inputs_that_memory_does_not_hold_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise MemoryError("Unable to allocate 1 TiB")

    monkeypatch.setattr(samples, "_fill", full)
    with pytest.raises(DataError, match="samples of your own"):
        samples.sample_inputs([InputSpec("x", np.dtype(np.float32), (1,))])


def test_an_input_of_an_undefined_type_is_refused() -> None:
    made = model([node("Relu", ["x"], ["y"])], [tensor("x", [2, 8])], [tensor("y", [2, 8])])
    made.graph.input[0].type.tensor_type.elem_type = 0
    with pytest.raises(ModelError, match="of which type"):
        samples.specs_of(io.load(made))


def test_an_attribute_without_a_type_is_refused() -> None:
    made = model([node("LeakyRelu", ["x"], ["y"], alpha=0.5)], [tensor("x", [2, 8])], [tensor("y", [2, 8])])
    made.graph.node[0].attribute[0].type = onnx.AttributeProto.UNDEFINED
    with pytest.raises(ModelError, match=r"alpha.* of which type"):
        io.load(made)


def test_a_type_where_a_number_is_due_is_looked_at_with_care() -> None:
    made = model([node("Relu", ["x"], ["y"], "relu")], [tensor("x", [2, 8])], [tensor("y", [2, 8])])
    kind = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2])
    made.graph.node[0].attribute.append(helper.make_attribute("output_dtype", kind))
    with pytest.raises(ModelError, match=r"onnxruntime|nothing that can be quantized"):
        octavo.quantize(made, [{"x": X}], threads=1, effort="plain")


def test_a_batch_normalization_by_a_matrix_is_not_folded() -> None:
    ends = [tensor("x", [2, 8])], [tensor("y", [2, 8])]
    ones = np.ones(8, np.float32)
    nodes = [node("MatMul", ["x", "w"], ["m"]), node("BatchNormalization", ["m", "w", "b", "b", "b"], ["y"])]
    loaded = io.load(model(nodes, *ends, {"w": WEIGHT, "b": ones}))
    prepare(loaded, PrepareOptions())
    assert "BatchNormalization" in [one.op_type for one in loaded.graph]


@pytest.mark.parametrize("shape", [(), (8,), (8, 8)])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("behind", ["BatchNormalization", "Add"])
def test_nothing_is_folded_into_a_weight_of_too_few_axes(
    shape: tuple[int, ...], op_type: str, behind: str
) -> None:
    if op_type == "Gemm" and len(shape) == 2:
        pytest.skip("this is a weight")
    content = {"w": np.ones(shape, np.float32), "b": np.ones(8, np.float32)}
    others = ["b"] * (4 if behind == "BatchNormalization" else 1)
    nodes = [node(op_type, ["x", "w"], ["c"], "layer"), node(behind, ["c", *others], ["y"])]
    loaded = io.load(model(nodes, [tensor("x", [2, 8])], [tensor("y", None)], content))
    assert batch_norm.fold(loaded) == (0, 0)


@pytest.mark.parametrize("groups", [-1, 0, 3])
def test_nothing_is_folded_into_groups_that_do_not_divide_the_weight(groups: int) -> None:
    channels = max(2 * groups, 0)
    content = {"w": np.ones((4, 2, 1), np.float32), "b": np.ones(channels, np.float32)}
    nodes = [node("ConvTranspose", ["x", "w"], ["c"], group=groups),
             node("BatchNormalization", ["c", "b", "b", "b", "b"], ["y"])]  # fmt: skip
    loaded = io.load(model(nodes, [tensor("x", [1, 4, 5])], [tensor("y", None)], content))
    assert batch_norm.fold(loaded) == (0, 0)


def test_a_weight_turned_by_other_axes_than_it_has_is_none() -> None:
    turn = node("Transpose", ["w"], ["t"], perm=[0, 2, 1])
    made = model([turn, node("MatMul", ["x", "t"], ["y"])], [tensor("x", [2, 8])], [tensor("y", None)],
                 {"w": WEIGHT})  # fmt: skip
    with pytest.raises(ModelError):
        octavo.quantize(made, [{"x": X}], threads=1, effort="plain")


def test_a_softmax_beyond_its_axes_is_refused() -> None:
    made = model([node("Softmax", ["x"], ["y"], axis=-3)], [tensor("x", [2, 8])], [tensor("y", [2, 8])],
                 opset=11)  # fmt: skip
    with pytest.raises(ModelError, match="axis is -3"):
        prepare(io.load(made), PrepareOptions(opset=17))


@pytest.mark.parametrize("axis", [-2, -1, 0, 1])
def test_a_softmax_keeps_its_meaning(axis: int) -> None:
    made = model([node("Softmax", ["x"], ["y"], axis=axis)], [tensor("x", [2, 8])], [tensor("y", [2, 8])],
                 opset=11)  # fmt: skip
    rows = X.astype(np.float64).reshape((1, 16) if axis in (0, -2) else (2, 8))
    powers = np.exp(rows - rows.max(axis=1, keepdims=True))
    wanted = (powers / powers.sum(axis=1, keepdims=True)).reshape(2, 8)
    np.testing.assert_allclose(computed(made, opset=17), wanted, rtol=1e-5)


def test_no_frame_makes_an_image_larger_than_it_says() -> None:
    assert geometry.max_pixels((640, 480), (224, 224)) < 200_000
    assert geometry.max_pixels((6000, 12_000), (640, 640)) < 10_000_000
    assert geometry.max_pixels((1, 1_000_000), (224, 224)) > 1_000_000_000


def test_an_image_that_is_too_narrow_is_refused(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "line.png"
    image.new("L", (2, 200_000)).save(path)
    preset = PREPROCESSING["imagenet"]
    assert isinstance(preset, Preset)
    with pytest.raises(DataError, match="too narrow"):
        preset.pixels(str(path), (224, 224))
    assert preset.pixels(str(path), (4, 4)).shape == (4, 4, 3)


def test_the_memory_for_an_image_may_be_missing(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "plain.png"
    image.new("L", (8, 8)).save(path)

    def full(*_: object) -> None:
        raise MemoryError

    with pytest.raises(DataError, match="memory"):
        Preset("", full, lambda pixels: pixels).pixels(str(path), (4, 4))  # type: ignore[arg-type]


def test_the_check_of_a_result_keeps_to_the_threads_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    plain = Session.open

    def noted(given: object, **options: object) -> Session:
        asked.append(options.get("threads"))
        return plain(given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Session, "open", noted)
    made = model([node("MatMul", ["x", "w"], ["y"], "product")], [tensor("x", [2, 8])], [tensor("y", [2, 8])],
                 {"w": WEIGHT})  # fmt: skip
    octavo.quantize(made, [{"x": X}], threads=1, effort="plain")
    assert asked
    assert set(asked) == {1}
