"""Calibrators as a user of stock drives them; values are checked against a plain float session."""

from __future__ import annotations

import json
import logging
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import conv_net, model, node, tensor
from onnx import TensorProto, numpy_helper

from octavo.calibration import tables
from octavo.errors import DataError, TableError
from octavo.model.files import io
from octavo.model.runtime.session import Session
from octavo.quantization import calibrate
from octavo.quantization.calibrate import (
    CalibraterBase,
    CalibrationDataReader,
    CalibrationMethod,
    HistogramCollector,
    MinMaxCalibrater,
    TensorData,
    TensorsData,
    create_calibrator,
    load_tensors_data,
    save_tensors_data,
)
from quantization.readers import ListReader, images

F32 = np.float32
METHODS = list(CalibrationMethod)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def path() -> str:
    onnx.save(conv_net(), "m.onnx")
    return "m.onnx"


def fetched(proto: onnx.ModelProto, samples: list[dict[str, Any]], name: str) -> list[np.ndarray]:
    """A tensor's values by a plain session."""
    session = Session.open(io.load(proto), outputs=[name], optimize=False)
    return [session.run(sample)[name] for sample in samples]


def identity() -> onnx.ModelProto:
    """One node over anything, so that ranges can be told by hand."""
    return model([node("Neg", ["x"], ["y"], "n")], [tensor("x", [None])], [tensor("y", [None])])


def rows(*values: float) -> ListReader:
    return ListReader([{"x": np.array([value], F32)} for value in values])


def run(proto: onnx.ModelProto, reader: Any, method: CalibrationMethod, **options: Any) -> TensorsData:
    found = create_calibrator(proto, None, calibrate_method=method, extra_options=options)  # type: ignore[arg-type]
    found.collect_data(reader)
    return found.compute_data()


def test_ranges_are_the_extremes_of_a_plain_session(path: str) -> None:
    samples = images(5)
    calibrator = create_calibrator(path, ["Conv", "Gemm"])
    calibrator.collect_data(ListReader(samples))
    found = calibrator.compute_data()
    assert found.calibration_method is CalibrationMethod.MinMax
    assert set(found.keys()) == {"x", "conv", "flat", "y"}
    for name in ("conv", "flat", "y"):
        values = fetched(conv_net(), samples, name)
        low, high = found[name].range_value
        assert (low.shape, low.dtype) == ((1,), F32)
        assert (low[0], high[0]) == (min(v.min() for v in values), max(v.max() for v in values))
    assert calibrator.compute_range()["x"].range_value == found["x"].range_value


def test_augmented_model_is_written_and_returns_the_extremes(path: str) -> None:
    calibrator = create_calibrator(path, ["Conv"], augmented_model_path="augmented.onnx")
    names = [n.name for n in calibrator.get_augment_model().graph.node]
    assert {"conv_ReduceMin", "conv_ReduceMax"} <= set(names)
    sample = images(1)[0]
    outputs = Session.open("augmented.onnx", optimize=False).run(sample)
    (values,) = fetched(conv_net(), [sample], "conv")
    assert outputs["conv_ReduceMin"] == values.min()
    assert outputs["conv_ReduceMax"] == values.max()
    assert "y" in outputs


def test_augmented_model_of_a_histogram_method_returns_the_tensors(path: str) -> None:
    create_calibrator(path, ["Conv"], calibrate_method=CalibrationMethod.Entropy)
    outputs = Session.open("augmented_model.onnx").run(images(1)[0])
    assert outputs["conv"].shape == (1, 6, 8, 8)


@pytest.mark.parametrize("most", [None, 1, 2, 5])
def test_bound_on_intermediate_outputs_loses_no_data(most: int | None) -> None:
    found = run(identity(), rows(100, -50, 1, 2, 3), CalibrationMethod.MinMax, max_intermediate_outputs=most)
    assert found["x"].range_value == (-50, 100)


def test_collecting_twice_adds_up() -> None:
    calibrator = MinMaxCalibrater(identity())
    for reader in (rows(1, 2), rows(-3)):
        calibrator.collect_data(reader)
    assert calibrator.compute_data()["x"].range_value == (-3, 2)
    calibrator.clear_collected_data()
    calibrator.collect_data(rows(7))
    assert calibrator.compute_data()["x"].range_value == (7, 7)


def test_moving_average_is_the_mean_of_a_collection_smoothed_between_them() -> None:
    options = {"moving_average": True, "averaging_constant": 0.25}
    calibrator = create_calibrator(identity(), extra_options=options)  # type: ignore[arg-type]
    calibrator.collect_data(rows(2, 4))
    assert calibrator.compute_data()["x"].range_value == (3, 3)
    calibrator.collect_data(rows(11))
    assert calibrator.compute_data()["x"].range_value == (5, 5)  # 3 + 0.25 · (11 − 3)


def test_moving_average_steps_after_so_many_samples() -> None:
    found = run(
        identity(),
        rows(2, 4, 11, 11),
        CalibrationMethod.MinMax,
        moving_average=True,
        averaging_constant=0.25,
        max_intermediate_outputs=2,
    )
    assert found["x"].range_value == (5, 5)


def test_symmetric_ranges_end_at_the_larger_magnitude() -> None:
    assert run(identity(), rows(-5, 1), CalibrationMethod.MinMax, symmetric=True)["x"].range_value == (-5, 5)


def test_channels_have_their_own_ranges_over_several_collections(path: str) -> None:
    calibrator = create_calibrator(path, ["Conv"], extra_options={"per_channel": True})
    samples = images(4, batch=2)
    calibrator.collect_data(ListReader(samples[:2]))
    calibrator.collect_data(ListReader(samples[2:]))
    found = calibrator.compute_data()
    values = np.concatenate(fetched(conv_net(), samples, "conv"))
    low, high = found["conv"].range_value
    np.testing.assert_array_equal(low, values.min(axis=(0, 2, 3)))
    np.testing.assert_array_equal(high, values.max(axis=(0, 2, 3)))
    assert found["x"].lowest.shape == (3,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("opset", [17, 18])
def test_channels_are_reduced_in_either_variant_of_axes(opset: int) -> None:
    calibrator = create_calibrator(conv_net(opset=opset), ["Conv"], extra_options={"per_channel": True})  # type: ignore[arg-type]
    calibrator.collect_data(ListReader(images(1)))
    assert calibrator.compute_data()["conv"].lowest.shape == (6,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", METHODS)
def test_samples_of_unequal_shape_are_fine(method: CalibrationMethod) -> None:
    samples = [{"x": np.linspace(-1, 1, n, dtype=F32)} for n in (100, 7, 501)]
    low, high = run(identity(), ListReader(samples), method)["x"].range_value
    assert (np.float32(low), np.float32(high)) == (pytest.approx(-1, abs=1e-2), pytest.approx(1, abs=1e-2))


@pytest.mark.parametrize("method", METHODS[1:])
def test_batches_of_any_size_give_the_same_bits(method: CalibrationMethod) -> None:
    values = np.random.default_rng(0).standard_normal(960).astype(F32)
    found = [
        run(identity(), ListReader([{"x": part} for part in np.split(values, parts)]), method)["x"].to_dict()
        for parts in (1, 8, 32)
    ]
    for other in found[1:]:
        for key, value in found[0].items():
            np.testing.assert_array_equal(value, other[key])


def test_entropy_follows_symmetric_and_percentile_cuts_the_tails() -> None:
    values = np.random.default_rng(0).standard_normal(100_000).astype(F32)
    values[:3] = (-40, 30, 20)
    sample = [{"x": values}]
    options = {"num_bins": 2048, "num_quantized_bins": 128}
    low, high = run(identity(), ListReader(sample), CalibrationMethod.Entropy, symmetric=True, **options)[
        "x"
    ].range_value
    assert low == -high
    assert 2 < high < 12
    cut = run(identity(), ListReader(sample), CalibrationMethod.Percentile, percentile=99.0, symmetric=False)[
        "x"
    ]
    wanted = np.quantile(values, [0.005, 0.995])
    np.testing.assert_allclose(cut.range_value, wanted, atol=0.05)
    both = run(identity(), ListReader(sample), CalibrationMethod.Percentile, percentile=99.0)["x"].range_value
    assert both[1] == -both[0] == pytest.approx(np.quantile(np.abs(values), 0.99), abs=0.05)


@pytest.mark.parametrize("method", [CalibrationMethod.Entropy, CalibrationMethod.Percentile])
def test_histogram_counts_every_value(method: CalibrationMethod) -> None:
    values = np.random.default_rng(0).standard_normal(5000).astype(F32)
    found = run(identity(), ListReader([{"x": values}]), method)["x"]
    assert found.hist.sum() == 5000  # type: ignore[attr-defined]
    edges = found.bins  # type: ignore[attr-defined]
    assert len(edges) == len(found.hist) + 1  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.histogram(values, edges)[0], found.hist)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("scenario", "power"), [("same", 1.0), ("p3", 1 / 3)])
def test_distribution_gives_mean_and_deviation(scenario: str, power: float) -> None:
    values = np.random.default_rng(0).standard_normal(20_000).astype(F32) + F32(0.5)
    found = run(identity(), ListReader([{"x": values}]), CalibrationMethod.Distribution, scenario=scenario)[
        "x"
    ]
    wanted = np.sign(values) * np.abs(values.astype(np.float64)) ** power
    np.testing.assert_allclose(found.avg_std, (wanted.mean(), wanted.std()), rtol=2e-3)


def test_half_precision_keeps_its_type() -> None:
    samples = [{"x": sample["x"].astype(np.float16)} for sample in images(2)]
    found = run(conv_net(dtype=np.float16), ListReader(samples), CalibrationMethod.MinMax)
    assert found["x"].lowest.dtype == np.float16  # type: ignore[attr-defined]
    assert found["x"].lowest == min(sample["x"].min() for sample in samples)  # type: ignore[attr-defined]


def test_constant_nodes_have_a_range_too() -> None:
    value = numpy_helper.from_array(np.array([-2, 3], F32))
    proto = model(
        [node("Constant", [], ["k"], "c", value=value), node("Add", ["x", "k"], ["y"], "a")],
        [tensor("x", [2])],
        [tensor("y", [2])],
    )
    found = run(proto, ListReader([{"x": np.ones(2, F32)}]), CalibrationMethod.MinMax)
    assert found["k"].range_value == (-2, 3)


@pytest.mark.parametrize("method", METHODS)
def test_tensor_of_unknown_shape_is_calibrated(method: CalibrationMethod) -> None:
    proto = model(
        [node("Reshape", ["x", "shape"], ["r"], "re"), node("Neg", ["r"], ["y"], "n")],
        [tensor("x", [4]), tensor("shape", ["k"], TensorProto.INT64)],
        [tensor("y", None)],
    )
    sample = {"x": np.array([-2, -1, 0, 3], F32), "shape": np.array([2, 2])}
    low, high = run(proto, ListReader([sample]), method, percentile=100)["r"].range_value
    assert (low, high) == (-2, 3)


@pytest.mark.parametrize("method", METHODS)
def test_no_data_is_a_value_error(method: CalibrationMethod) -> None:
    calibrator = create_calibrator(identity(), calibrate_method=method)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="No data is collected"):
        calibrator.collect_data(rows())
    with pytest.raises(ValueError, match="No data is collected"):
        calibrator.compute_data()


def test_nan_is_named_with_its_sample() -> None:
    with pytest.raises(DataError, match="NaN"):
        run(identity(), rows(1, float("nan")), CalibrationMethod.MinMax)


@pytest.mark.parametrize("method", METHODS)
def test_tensor_with_an_infinity_is_left_out_with_a_warning(
    method: CalibrationMethod, caplog: pytest.LogCaptureFixture
) -> None:
    proto = model(
        [node("Where", ["c", "x", "minus"], ["w"], "mask"), node("Softmax", ["w"], ["y"], "s")],
        [tensor("x", [3]), tensor("c", [3], TensorProto.BOOL)],
        [tensor("y", [3])],
        {"minus": F32(-np.inf)},
    )
    sample = {"x": np.ones(3, F32), "c": np.array([True, False, True])}
    with caplog.at_level(logging.WARNING, "octavo.quantization"):
        found = run(proto, ListReader([sample]), method)
    assert "w" not in found
    assert {"x", "y"} <= set(found.keys())
    assert "without a range: w" in caplog.text


def test_memory_does_not_grow_with_the_samples() -> None:
    def peak(count: int) -> int:
        calibrator = create_calibrator(identity(), calibrate_method=CalibrationMethod.Percentile)  # type: ignore[arg-type]
        reader = Large(count)
        tracemalloc.start()
        calibrator.collect_data(reader)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(6), peak(24)
    assert many < 1.3 * few


class Large:
    """A megabyte of new values for each sample."""

    def __init__(self, count: int) -> None:
        self._numbers = iter(range(count))

    def get_next(self) -> dict[str, Any] | None:
        number = next(self._numbers, None)
        return None if number is None else {"x": np.full(1 << 18, number, F32)}


def test_unknown_method_and_model_are_refused() -> None:
    with pytest.raises(ValueError, match="is not a CalibrationMethod"):
        create_calibrator(identity(), calibrate_method="minmax")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="path of a model"):
        MinMaxCalibrater(3)  # type: ignore[arg-type]


def test_merged_ranges_of_one_calibrator() -> None:
    calibrator = MinMaxCalibrater(identity(), moving_average=True, averaging_constant=0.5)
    old = TensorsData(CalibrationMethod.MinMax, {"x": (F32(0), F32(2))})
    new = TensorsData(CalibrationMethod.MinMax, {"x": (F32(-2), F32(4)), "z": (F32(0), F32(1))})
    merged = calibrator.merge_range(old, new)
    assert merged["x"].range_value == (-1, 3)
    assert merged["z"].range_value == (0, 1)


class Bare:
    """A reader that inherits from nothing."""

    def get_next(self) -> None:
        return None


def test_any_class_with_get_next_is_a_reader() -> None:
    assert isinstance(Bare(), CalibrationDataReader)
    assert not isinstance(object(), CalibrationDataReader)
    assert [sample["x"].item() for sample in rows(1, 2)] == [1, 2]


def test_tensor_data_checks_its_fields() -> None:
    data = TensorData(lowest=-1.0, highest=np.array([2], F32))
    assert data.range_value == (-1, 2)
    assert TensorData.from_dict(data.to_dict()).range_value == (-1, 2)
    with pytest.raises(AttributeError, match="not avg and std"):
        _ = data.avg_std
    with pytest.raises(ValueError, match="'loudest' is not a field"):
        TensorData(loudest=1)
    with pytest.raises(ValueError, match="is a number or an array"):
        TensorData(lowest="x")


def test_tensors_data_is_a_mapping_of_known_tensors() -> None:
    data = TensorsData(
        CalibrationMethod.MinMax, {"a": (F32(0), F32(1)), "b": TensorData(lowest=0.0, highest=2.0)}
    )
    assert (list(data), "a" in data, len(data.values())) == (["a", "b"], True, 2)
    data["a"] = TensorData(lowest=-1.0, highest=1.0)
    assert dict(data.items())["a"].range_value == (-1, 1)
    with pytest.raises(RuntimeError, match="only these can be changed"):
        data["c"] = TensorData()
    with pytest.raises(TypeError, match="known by names"):
        TensorsData(CalibrationMethod.MinMax, {1: (0, 1)})  # type: ignore[dict-item]
    assert TensorsData.from_dict(data.to_dict())["b"].range_value == (0, 2)


def test_cache_comes_back_whole(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal(500).astype(F32)
    data = run(identity(), ListReader([{"x": values}]), CalibrationMethod.Distribution)
    save_tensors_data(data, tmp_path / "c.json", smooth_quant=True)
    assert json.loads((tmp_path / "c.json").read_text())["smooth_quant"] is True
    found = load_tensors_data(tmp_path / "c.json")
    assert found.calibration_method is CalibrationMethod.Distribution
    assert found.smooth_quant is True  # type: ignore[attr-defined]
    for key, value in data["x"].to_dict().items():
        np.testing.assert_array_equal(found["x"].to_dict()[key], value)
    with pytest.raises(FileNotFoundError, match="calibration cache"):
        load_tensors_data(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match="TensorsData is missing"):
        load_tensors_data(tmp_path / "bad.json")


def test_collector_takes_arrays_in_any_form_and_its_bins_stay_bounded() -> None:
    collector = HistogramCollector("entropy", False, 128, 128, 99.9, "same")
    for exponent in range(-4, 2):
        collector.collect({"a": [np.full(3, 10.0**exponent, F32), np.full((2, 2), -(10.0**exponent), F32)]})
    counts, edges, low, high, top = collector.get_histogram_dict()["a"]
    assert counts.sum() == 6 * 7
    assert len(counts) <= 128
    assert (low, high) == (-10, 10)
    assert edges[-1] == top >= 10
    low, high, hist, bins = collector.compute_collection_result()["a"]
    assert (low, high, hist.sum(), len(bins)) == (-10, 10, 42, len(hist) + 1)
    with pytest.raises(ValueError, match="no histogram method 'mean'"):
        HistogramCollector("mean", False, 8, 8, 99, "same")


def test_merged_histogram_grows_within_bounds() -> None:
    collector = HistogramCollector("entropy", False, 128, 128, 99.9, "same")
    old = (np.array([1, 0, 2, 3]), np.linspace(-2, 2, 5), -2.0, 2.0, 2.0)
    counts, edges, low, high, top = collector.merge_histogram(old, np.array([1.0, 3.5]), 1.0, 3.5, 3.5)
    assert counts.tolist() == [0, 0, 1, 0, 2, 4, 0, 1]
    assert (edges[0], edges[-1], low, high, top) == (-4, 4, -2, 3.5, 4)
    counts, edges, *_, top = collector.merge_histogram(old, np.array([1e9]), 1e9, 1e9, 1e9)
    assert counts.sum() == 7
    assert len(counts) <= 8192
    assert edges[-1] == top >= 1e9


def test_entropy_threshold_leaves_an_outlier_outside() -> None:
    collector = HistogramCollector("entropy", False, 2048, 128, 99.9, "same")
    values = np.random.default_rng(0).standard_normal(100_000)
    counts, edges = np.histogram(np.append(values, 40), 2048, range=(-40, 40))
    low, high = collector.get_entropy_threshold((counts, edges, -4.5, 40.0, 40.0), 128)
    assert -5 < low < -2
    assert 2 < high < 12


def test_divergence_of_distributions() -> None:
    p, q = np.array([1.0, 2, 3]), np.array([2.0, 2, 2])
    wanted = np.sum(p / 6 * np.log((p / 6) / (q / 6)))
    assert calibrate.entropy(p, q) == pytest.approx(wanted)
    assert calibrate.entropy(p, q, base=2) == pytest.approx(wanted / np.log(2))
    assert calibrate.rel_entr(np.array([0.0, 1]), np.array([1.0, 0])).tolist() == [0, np.inf]


# The command line


def test_command_writes_tables_and_parameters_from_a_tensor_file(path: str) -> None:
    data = np.stack([sample["x"][0] for sample in images(5)])
    onnx.save_tensor(numpy_helper.from_array(data), "set.pb")
    calibrate.main(["--model_path", path, "--dataset_path", "set.pb", "--calib_mode", "naive"])
    ranges = tables.load("calibration.json")
    values = np.concatenate(fetched(conv_net(), [{"x": data}], "conv")).reshape(5, -1)
    assert ranges["conv"].low == pytest.approx(values.min(axis=1).mean(), rel=1e-5)
    assert ranges["conv"].high == pytest.approx(values.max(axis=1).mean(), rel=1e-5)
    assert (
        set(tables.load("calibration.cache")) == set(tables.load("calibration.flatbuffers")) == {"x", "conv"}
    )
    zero, scale = calibrate.load_quantization_params("quantization_params.json")["conv"]
    assert (type(zero), type(scale)) == (np.uint8, np.float32)
    assert scale == pytest.approx((ranges["conv"].high - ranges["conv"].low) / 255, rel=1e-6)


def test_command_reads_a_folder_of_images(path: str, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    (tmp_path / "images").mkdir()
    for value in (0, 255):
        image.new("RGB", (10, 12), (value,) * 3).save(tmp_path / "images" / f"{value}.png")
    (tmp_path / "out").mkdir()
    arguments = [
        "--dataset_path",
        "images",
        "--data_preprocess",
        "preprocess_method1",
        "--output_path",
        "out",
    ]
    calibrate.main(["--model_path", path, "--calib_mode=minmax", *arguments])
    assert tables.load("out/calibration.json")["x"] == (-1, 1, None)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dataset_path", "nowhere"], "no calibration data at nowhere"),
        (["--dataset_path", "m.onnx", "--output_path", "none"], "no folder none"),
        (["--dataset_path", "m.onnx", "--op_types", "LSTM"], "no LSTM to calibrate"),
    ],
)
def test_command_says_what_is_wrong_in_a_sentence(
    path: str,
    arguments: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(DataError, match=words):
        calibrate.main(["--model_path", path, *arguments])
    monkeypatch.setattr(sys, "argv", ["calibrate", "--model_path", path, *arguments])
    assert calibrate.run() == 1
    message = capsys.readouterr().err
    assert words in message
    assert "Traceback" not in message


def test_damaged_parameters_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"a": 3}')
    with pytest.raises(TableError, match="zero point, scale"):
        calibrate.load_quantization_params(tmp_path / "p.json")


@pytest.mark.peer
@pytest.mark.parametrize("options", [{}, {"symmetric": True}, {"per_channel": True}])
def test_extremes_agree_with_stock_to_the_bit(path: str, options: dict[str, bool]) -> None:
    stock = pytest.importorskip("onnxruntime.quantization.calibrate", exc_type=ImportError)
    samples = images(4)
    theirs = stock.create_calibrator(path, ["Conv", "Gemm"], extra_options=options)
    ours = create_calibrator(path, ["Conv", "Gemm"], extra_options=options)
    for calibrator in (theirs, ours):
        calibrator.collect_data(ListReader(samples))
    found, wanted = ours.compute_data(), theirs.compute_data()
    assert set(found.keys()) == set(wanted.keys())
    for name, entry in wanted.items():
        for mine, other in zip(found[name].range_value, entry.range_value, strict=True):
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other)


@pytest.mark.peer
def test_caches_are_read_by_either_side(tmp_path: Path) -> None:
    stock = pytest.importorskip("onnxruntime.quantization.calibrate", exc_type=ImportError)
    values = np.random.default_rng(0).standard_normal(500).astype(F32)
    ours = run(identity(), ListReader([{"x": values}]), CalibrationMethod.Percentile)
    save_tensors_data(ours, tmp_path / "ours.json")
    theirs = stock.load_tensors_data(tmp_path / "ours.json")
    np.testing.assert_array_equal(theirs["x"].hist, ours["x"].hist)  # type: ignore[attr-defined]
    stock.save_tensors_data(theirs, tmp_path / "theirs.json")
    back = load_tensors_data(tmp_path / "theirs.json")
    assert back["x"].range_value == ours["x"].range_value


def test_tensor_types_of_selected_tensors(path: str) -> None:
    calibrator = create_calibrator(path, ["Flatten"])
    names, infos = calibrator.select_tensors_to_calibrate(calibrator.model)
    assert names == {"pool", "flat"}
    assert infos["pool"].type.tensor_type.elem_type == TensorProto.FLOAT


def test_a_calibrator_of_ones_own_reads_the_session_of_its_augmented_model(path: str) -> None:
    class Own(CalibraterBase):
        def augment_graph(self) -> None:
            made = onnx.ModelProto()
            made.CopyFrom(self.model)
            self.tensors, known = self.select_tensors_to_calibrate(made)
            outputs = {value.name for value in made.graph.output}
            made.graph.output.extend(known[name] for name in sorted(self.tensors - outputs))
            onnx.save(made, self.augmented_model_path)

        def collect_data(self, data_reader: Any) -> None:
            names = [value.name for value in self.infer_session.get_outputs()]
            self.found = dict(zip(names, self.infer_session.run(None, data_reader.get_next()), strict=True))

        def compute_data(self) -> TensorsData:
            ends = {name: (F32(array.min()), F32(array.max())) for name, array in self.found.items()}
            return TensorsData(CalibrationMethod.MinMax, ends)

    own, stock = Own(path, ["Conv"], "own.onnx"), MinMaxCalibrater(path, ["Conv"], "m.min.onnx")
    for calibrator in (own, stock):
        calibrator.augment_graph()
        calibrator.create_inference_session()
        calibrator.collect_data(ListReader(images(1)))
    found, known = own.compute_data(), stock.compute_data()
    for name in own.found.keys() & set(known):
        assert found[name].range_value == pytest.approx([float(end[0]) for end in known[name].range_value])
