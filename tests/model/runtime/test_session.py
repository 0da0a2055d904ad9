"""The runtime behind one door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import builders
import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import model, node, tensor
from onnx import TensorProto

from octavo.errors import DataError, ModelError, OutputError
from octavo.model.files import io
from octavo.model.graph.normalize import normalize
from octavo.model.runtime import session, session_inputs, verification
from octavo.model.runtime.samples import sample_inputs
from octavo.model.runtime.session import InputSpec, Session


def test_importing_the_module_does_not_import_the_runtime() -> None:
    code = "import sys, octavo.model.runtime.session; sys.exit('onnxruntime' in sys.modules)"
    source = str(Path(session.__file__).parents[3])
    assert (
        subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=False).returncode == 0
    )


def test_signature_and_results() -> None:
    found = Session.open(io.load(builders.conv_net()))
    assert found.inputs == [InputSpec("x", np.dtype(np.float32), ("batch", 3, 8, 8))]
    assert found.output_names == ["y"]
    assert found.run(sample_inputs(found.inputs))["y"].shape == (1, 5)


def test_other_outputs_can_be_requested() -> None:
    loaded = io.load(builders.conv_net())
    found = Session.open(loaded, outputs=["relu", "y"], optimize=False)
    got = found.run(sample_inputs(found.inputs))
    assert got["relu"].shape == (1, 6, 8, 8)
    assert [v.name for v in loaded.graph.outputs] == ["y"]
    with pytest.raises(ModelError, match="ghost"):
        Session.open(loaded, outputs=["ghost"])


def test_mapped_weights_are_read_from_their_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    proto = model(
        [node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "b"], ["y"])],
        [tensor("x", [2, 256])],
        [tensor("y", [2, 256])],
        {
            "w": rng.standard_normal((256, 256)).astype(np.float32),
            "b": rng.standard_normal(256).astype(np.float32),
        },
    )
    (tmp_path / "sub").mkdir()
    path = tmp_path / "sub" / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    loaded = io.load(path)
    normalize(loaded)
    feeds = sample_inputs(Session.open(path).inputs)
    want = Session.open(path).run(feeds)["y"]
    np.testing.assert_allclose(Session.open(loaded).run(feeds)["y"], want)
    np.testing.assert_allclose(
        Session.open(loaded, prepack=False).run(feeds)["y"], want, rtol=1e-4, atol=1e-4
    )


def test_weights_too_large_for_memory_go_through_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = io.load(builders.conv_net())
    feeds = sample_inputs(Session.open(loaded).inputs)
    want = Session.open(loaded, outputs=["relu", "y"], optimize=False).run(feeds)
    monkeypatch.setattr(session_inputs, "_INLINE_MOST", 1000)
    monkeypatch.setattr(session_inputs, "_REFER_LEAST", 0)
    got = Session.open(loaded, outputs=["relu", "y"], optimize=False).run(feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def test_wrong_feeds_are_data_errors() -> None:
    found = Session.open(builders.conv_net().SerializeToString())
    good = sample_inputs(found.inputs)["x"]
    for feeds, says in (
        ({}, "missing"),
        ({"x": good, "z": good}, "unknown"),
        ({"x": good.astype(np.float64)}, "astype"),
        ({"x": good[0]}, "dimensions"),
    ):
        with pytest.raises(DataError, match=says):
            found.run(feeds)


def test_runtime_failures_are_model_errors_with_a_reason(tmp_path: Path) -> None:
    proto = model([node("NoSuchOp", ["x"], ["y"])], [tensor("x", [3])], [tensor("y", [3])])
    with pytest.raises(ModelError, match=r"NoSuchOp.*custom_ops"):
        Session.open(proto.SerializeToString())
    with pytest.raises(ModelError, match=r"absent\.onnx"):
        Session.open(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="execution provider"):
        Session.open(builders.conv_net().SerializeToString(), providers=["NoSuchExecutionProvider"])
    with pytest.raises(ModelError, match="library"):
        Session.open(builders.conv_net().SerializeToString(), custom_ops=[tmp_path / "absent.so"])
    found = Session.open(
        model(
            [node("Reshape", ["x", "s"], ["y"])],
            [tensor("x", [3]), tensor("s", [1], TensorProto.INT64)],
            [tensor("y", None)],
        ).SerializeToString()
    )
    with pytest.raises(ModelError, match="failed"):
        found.run({"x": np.zeros(3, np.float32), "s": np.int64([7])})


def test_limits_are_what_the_runtime_loads() -> None:
    assert 10 <= session.runtime_ir_limit() <= onnx.IR_VERSION + 5
    assert 21 <= session.runtime_opset_limit() <= onnx.defs.onnx_opset_version() + 5


def test_kernels_know_quantized_operators() -> None:
    kernels = session.kernels()
    (conv,) = [k for k in kernels["", "QLinearConv"] if k.types["T1"] == ("tensor(uint8)",)][:1]
    assert conv.since == 10
    assert ("com.microsoft", "MatMulNBits") in kernels
    assert kernels is session.kernels()


def spec(name: str, dtype: object, *shape: int | str | None) -> InputSpec:
    return InputSpec(name, np.dtype(dtype), shape)  # type: ignore[call-overload]


def test_samples_fit_their_signature() -> None:
    made = sample_inputs(
        [
            spec("pixels", np.float32, "N", 3, "H", "W"),
            spec("input_ids", np.int64, "batch", "sequence"),
            spec("attention_mask", np.int64, "batch", "sequence"),
            spec("position_ids", np.int64, "batch", "sequence"),
            spec("past_key_values.0.key", np.float32, "batch", 4, "past_sequence_length", 16),
            spec("flag", np.bool_),
            spec("half", np.float16, None, 7),
            spec("brain", ml_dtypes.bfloat16, 2),
            spec("text", np.object_, 2),
        ]
    )
    assert made["pixels"].shape == (1, 3, 64, 64)
    assert made["input_ids"].shape == made["attention_mask"].shape == (1, 8)
    assert set(made["input_ids"].ravel()) <= {0, 1}
    assert made["attention_mask"].all()
    assert made["position_ids"][0].tolist() == list(range(8))
    assert made["past_key_values.0.key"].shape == (1, 4, 0, 16)
    assert made["flag"]
    assert made["half"].dtype == np.float16
    assert made["brain"].dtype == ml_dtypes.bfloat16
    assert np.isfinite(made["half"]).all()
    assert sample_inputs([spec("x", np.float32, "a", "b")], dims={"b": 3})["x"].shape == (1, 3)


def test_a_cache_whose_axes_have_no_names_that_say_anything_is_empty() -> None:
    made = sample_inputs(
        [
            spec("input_ids", np.int64, "s1", "s2"),
            spec("attention_mask", np.int64, "s1", "s3"),
            spec("past_key_values.0.key", np.float32, "s1", 4, "s4", 16),
            spec("past_key_values.0.encoder.key", np.float32, "s1", 4, "s5", 16),
        ]
    )
    assert made["attention_mask"].shape == made["input_ids"].shape
    assert made["past_key_values.0.key"].shape == (1, 4, 0, 16)
    assert made["past_key_values.0.encoder.key"].size


def test_samples_are_repeatable() -> None:
    first = sample_inputs([spec("x", np.float32, 4)], seed=1)["x"]
    assert first.tolist() == sample_inputs([spec("x", np.float32, 4)], seed=1)["x"].tolist()
    assert first.tolist() != sample_inputs([spec("x", np.float32, 4)], seed=2)["x"].tolist()


def test_verify_passes_good_models_and_names_what_is_bad(tmp_path: Path) -> None:
    good = io.load(builders.conv_net())
    verification.verify(good)
    verification.verify(io.save(good, tmp_path / "good.onnx", external_data=True)[0])
    verification.verify(good, feeds={"x": np.zeros((2, 3, 8, 8), np.float32)})
    broken = builders.conv_net()
    broken.graph.node[0].attribute[0].ints.append(1)
    with pytest.raises(OutputError, match="check of"):
        verification.verify(io.load(broken))
    unchecked = model([node("Relu", ["x", "x"], ["y"])], [tensor("x", [3])], [tensor("y", [3])])
    with pytest.raises(OutputError, match="checker"):
        verification.verify(io.load(unchecked))


def test_verify_tries_larger_inputs_before_it_gives_up() -> None:
    proto = model(
        [node("Slice", ["x", "starts", "ends", "axes"], ["s"]), node("Reshape", ["s", "to"], ["y"])],
        [tensor("x", [1, 4, "length"])],
        [tensor("y", None)],
        {"starts": np.int64([0]), "ends": np.int64([60]), "axes": np.int64([2]), "to": np.int64([4, 60])},
    )
    verification.verify(io.load(proto))


def test_the_optimized_graph_can_be_looked_at() -> None:
    loaded = io.load(builders.conv_net())
    ops = [n.op_type for n in session.optimized(loaded, "basic").graph]
    assert "BatchNormalization" not in ops
    assert any(n.domain for n in session.optimized(loaded).graph)
    with pytest.raises(ModelError, match="level"):
        session.optimized(loaded, "some")


def test_weights_that_an_old_model_lists_as_inputs_are_no_inputs() -> None:
    from octavo.model.runtime.samples import specs_of

    proto = model(
        [node("Add", ["x", "w"], ["y"])],
        [tensor("x", [2]), tensor("w", [2])],
        [tensor("y", [2])],
        {"w": np.ones(2, np.float32)},
        opset=8,
        ir_version=3,
    )
    named = [spec.name for spec in specs_of(io.load(proto))]
    assert named == [spec.name for spec in Session.open(proto.SerializeToString()).inputs] == ["x"]
