"""From a float model to a quantized one: what goes in stays as it is, what comes out is whole."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import builders
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from builders import model, node, tensor
from onnx import TensorProto
from quantizing import EVERYWHERE, Feeds, convolutions, error, feeds_for, layers, listed, ops, run, weights

import octavo
from octavo.core.plan import Measured
from octavo.core.qtypes import INT4, UINT16
from octavo.errors import DataError, ModelError, OutputError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.runtime.session import Session, runtime_ir_limit

INT64 = TensorProto.INT64


def state(folder: Path) -> dict[str, str]:
    """The files of a folder and what they hold."""
    return {
        str(p): hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def stored(path: Path, proto: onnx.ModelProto, *, external: bool = False) -> Path:
    if external:
        onnx.save(proto, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
    else:
        onnx.save(proto, str(path))
    return path


# ---- what goes in


@pytest.mark.parametrize("kind", ["path", "bytes", "proto", "ir"])
def test_every_kind_of_input_gives_the_same_result_and_stays_untouched(kind: str, place: Path) -> None:
    proto = convolutions(2)
    path = stored(place / "m.onnx", proto)
    source = {
        "path": path,
        "bytes": proto.SerializeToString(),
        "proto": proto,
        "ir": ir.serde.deserialize_model(proto),
    }[kind]
    before = state(place), proto.SerializeToString()
    copy = ir.serde.serialize_model(source).SerializeToString() if kind == "ir" else b""
    result = octavo.quantize(source, feeds_for(proto), effort="plain")
    assert (state(place), proto.SerializeToString()) == before
    if kind == "ir":
        assert ir.serde.serialize_model(source).SerializeToString() == copy
    assert io.fingerprint(result.model) == io.fingerprint(
        octavo.quantize(proto, feeds_for(proto), effort="plain").model
    )


def test_external_weights_of_the_input_stay_untouched_and_out_of_the_way(place: Path) -> None:
    source = place / "in"
    source.mkdir()
    path = stored(source / "m.onnx", convolutions(2), external=True)
    before = state(source)
    out = place / "out"
    out.mkdir()
    octavo.quantize(path, feeds_for(convolutions(2)), output=out / "q.onnx", effort="plain")
    assert state(source) == before
    assert listed(out) == ["q.onnx"]
    assert listed(place) == ["in", "out"]


def test_the_output_may_not_be_the_input(place: Path) -> None:
    path = stored(place / "m.onnx", convolutions(1))
    before = state(place)
    with pytest.raises(OutputError, match="is read by this run"):
        octavo.quantize(path, iter(()), output=path, effort="plain")
    assert state(place) == before


@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])
def test_an_old_opset_is_raised_to_13(opset: int) -> None:
    proto = builders.conv_net(opset=opset)
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, effort="plain")
    assert dict(result.model.opset_imports)[""] == 13
    assert error(result, proto, data) < 0.05


@pytest.mark.parametrize(
    "recipe",
    [
        octavo.W8A16,
        octavo.W8A8.but(weights=octavo.Scheme(INT4, octavo.PerChannel(), symmetric=True)),
        octavo.W8A16.but(weights=octavo.Scheme(INT4, octavo.PerBlock(16), symmetric=True)),
        octavo.W8A8.but(overrides=(octavo.Override("r0", qtype=UINT16),)),
    ],
    ids=["16 bits", "4 bits", "blocks", "one tensor"],
)
@pytest.mark.parametrize("opset", [11, 17])
def test_newer_types_raise_the_opset_to_21(recipe: octavo.Recipe, opset: int) -> None:
    proto = convolutions(2)
    proto.opset_import[0].version = opset
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, recipe=recipe)
    written = io.to_proto(result.model)
    assert [o.version for o in written.opset_import if o.domain == ""] == [21]
    assert error(result, proto, data) < (0.05 if recipe.weights.qtype.bits == 8 else 0.35)


def test_a_newer_opset_stays() -> None:
    proto = convolutions(1)
    proto.opset_import[0].version = 22
    assert query.opset(octavo.quantize(proto, feeds_for(proto), effort="plain").model) == 22


def test_an_opset_before_7_is_an_error_that_names_it() -> None:
    proto = convolutions(1)
    proto.opset_import[0].version = 6
    with pytest.raises(ModelError, match=r"opset 6.*export the model again"):
        octavo.quantize(proto, [{"x": np.zeros((1, 8, 8, 8), np.float32)}], effort="plain")


def test_the_written_ir_version_is_one_that_the_runtime_loads() -> None:
    proto = convolutions(1)
    proto.ir_version = onnx.IR_VERSION + 1
    result = octavo.quantize(proto, [{"x": weights(1, 8, 8, 8)}], effort="plain")
    assert io.to_proto(result.model).ir_version <= runtime_ir_limit()


def many() -> onnx.ModelProto:
    return model(
        [
            node("Gemm", ["a", "w"], ["z"], "Gemm_0"),
            node("Relu", ["z"], ["y"], "Relu_0"),
            node("Identity", ["ids"], ["same"], "Id_0"),
        ],
        [tensor("b", [1]), tensor("ids", [3], INT64), tensor("a", ["n", 16])],
        [tensor("y", ["n", 8]), tensor("same", [3], INT64), tensor("z", ["n", 8])],
        {"w": weights(16, 8)},
    )


@pytest.mark.parametrize("style", ["qdq", "qoperator", "integer"])
def test_inputs_and_outputs_keep_names_types_shapes_and_order(style: str) -> None:
    proto = many()
    data = feeds_for(proto)
    recipe = octavo.W8 if style == "integer" else EVERYWHERE
    result = octavo.quantize(proto, data, recipe=recipe, style=style)
    written = io.to_proto(result.model)
    for was, now in ((proto.graph.input, written.graph.input), (proto.graph.output, written.graph.output)):
        assert [v.SerializeToString() for v in now] == [v.SerializeToString() for v in was]
    assert error(result, proto, data) < 0.05


def test_a_model_of_integers_has_nothing_to_quantize() -> None:
    proto = model(
        [node("Add", ["x", "k"], ["y"], "Add_0")],
        [tensor("x", [3], INT64)],
        [tensor("y", [3], INT64)],
        {"k": np.int64([1, 2, 3])},
    )
    for data in (None, [{"x": np.int64([1, 2, 3])}]):
        with pytest.raises(
            ModelError, match="has nothing that can be quantized: no operator computes on floats"
        ):
            octavo.quantize(proto, data, effort="plain")


def test_a_model_whose_operators_all_stay_float_is_an_error_that_counts_the_reasons() -> None:
    with pytest.raises(ModelError, match=r"nothing that can be quantized: excluded by 'op:Conv' \(3 Conv\)"):
        octavo.quantize(convolutions(3), feeds_for(convolutions(3)), exclude=["op:Conv"], effort="plain")


def test_integer_tensors_are_never_quantized() -> None:
    proto = model(
        [
            node("Gather", ["table", "ids"], ["e"], "Gather_0"),
            node("Add", ["ids", "k"], ["more"], "Add_0"),
            node("Reshape", ["e", "shape"], ["r"], "Reshape_0"),
            node("MatMul", ["r", "w"], ["y"], "MatMul_0"),
        ],
        [tensor("ids", [4], INT64)],
        [tensor("y", [4, 16]), tensor("more", [4], INT64)],
        {"table": weights(64, 16), "w": weights(16, 16), "k": np.int64([1]), "shape": np.int64([4, 16])},
    )
    data = [{"ids": np.int64([1, 2, 3, i])} for i in range(4)]
    result = octavo.quantize(proto, data, recipe=EVERYWHERE)
    assert "Add_0" not in result.plan.nodes
    assert run(result, data[0])["more"].tolist() == [2, 3, 4, 1]
    assert error(result, proto, data) < 0.05


# ---- calibration data


def test_static_quantization_without_data_says_what_is_needed() -> None:
    with pytest.raises(DataError, match="needs calibration data"):
        octavo.quantize(convolutions(1), recipe=octavo.W8A8)


def test_a_generator_is_enough() -> None:
    proto = convolutions(2)
    result = octavo.quantize(proto, (f for f in feeds_for(proto)), effort="plain")
    assert result.stats is not None
    assert result.stats.samples == 4


def test_a_reader_with_get_next_is_enough() -> None:
    class Reader:
        def __init__(self) -> None:
            self.samples = iter(feeds_for(convolutions(1)))

        def get_next(self) -> Feeds | None:
            return next(self.samples, None)

    assert octavo.quantize(convolutions(1), Reader(), effort="plain").stats.samples == 4  # type: ignore[union-attr]


def test_samples_limits_how_many_are_read() -> None:
    def endless() -> Iterator[Feeds]:
        while True:
            yield from feeds_for(convolutions(1), 2)

    result = octavo.quantize(convolutions(1), endless(), samples=3, effort="plain")
    assert result.stats is not None
    assert result.stats.samples == 3


def test_the_result_is_tried_with_a_sample_of_the_caller() -> None:
    """A made-up sample would fail here: the sum of the two lengths has to be 7."""
    proto = model(
        [
            node("Concat", ["a", "b"], ["ab"], "Concat_0", axis=0),
            node("Reshape", ["ab", "shape"], ["r"], "Reshape_0"),
            node("MatMul", ["r", "w"], ["y"], "MatMul_0"),
        ],
        [tensor("a", ["m", 16]), tensor("b", ["n", 16])],
        [tensor("y", [7, 16])],
        {"shape": np.int64([7, 16]), "w": weights(16, 16)},
    )
    data = [{"a": weights(5, 16), "b": weights(2, 16)}]
    result = octavo.quantize(proto, data, effort="plain")
    assert error(result, proto, data) < 0.05


# ---- what comes out


def test_no_stray_files_are_left_anywhere(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    source = tmp_path_factory.mktemp("source")
    path = stored(source / "m.onnx", layers(2))
    octavo.quantize(
        path,
        feeds_for(layers(2)),
        output=place / "q.onnx",
        prepare=octavo.PrepareOptions(symbolic_shapes=True),
        effort="plain",
    )
    assert listed(source) == ["m.onnx"]
    assert listed(place) == ["q.onnx"]


def test_running_again_gives_the_same_bytes_and_never_appends(place: Path) -> None:
    proto = layers(2)
    sizes = []
    for _ in range(3):
        octavo.quantize(proto, feeds_for(proto), output=place / "q.onnx", external_data=True, effort="plain")
        sizes.append(state(place))
    assert listed(place) == ["q.onnx", "q.onnx.data"]
    assert sizes[0] == sizes[1] == sizes[2]


class Bomb:
    """A progress callback that goes off in one phase."""

    def __init__(self, phase: str) -> None:
        self.phase = phase

    def __call__(self, phase: str, done: int, total: int | None) -> None:
        if phase == self.phase:
            raise KeyboardInterrupt


@pytest.mark.parametrize("phase", ["load", "prepare", "plan", "calibrate", "quantize", "verify"])
def test_an_interrupted_run_leaves_the_old_output_and_nothing_else(phase: str, place: Path) -> None:
    (place / "q.onnx").write_bytes(b"old")
    before = state(place)
    with pytest.raises(KeyboardInterrupt):
        octavo.quantize(
            layers(2), feeds_for(layers(2)), output=place / "q.onnx", progress=Bomb(phase), effort="plain"
        )
    assert state(place) == before


@pytest.mark.parametrize("external", [True, False])
def test_a_result_that_fails_its_check_leaves_the_old_output(place: Path, external: bool) -> None:
    """A plan edited by hand asks for 16-bit activations, which QLinearConv does not take."""
    proto = convolutions(2)
    (place / "q.onnx").write_bytes(b"old")
    (place / "q.onnx.data").write_bytes(b"old too")
    before = state(place)
    plan = octavo.plan(proto, style="qoperator")
    wide = {
        k: Measured(octavo.Scheme(UINT16)) if isinstance(e, Measured) else e for k, e in plan.entries.items()
    }
    with pytest.raises(OutputError, match=r"check of .*q\.onnx failed"):
        octavo.quantize(
            proto,
            feeds_for(proto),
            plan=replace(plan, entries=wide),
            output=place / "q.onnx",
            external_data=external,
        )
    assert state(place) == before


def test_a_folder_that_is_not_there_is_an_error_before_anything_is_done(place: Path) -> None:
    with pytest.raises(OutputError, match="none does not exist; create it"):
        octavo.quantize(layers(1), Bomb, output=place / "none" / "q.onnx", effort="plain")


def test_a_read_only_folder_of_the_input_does_not_matter(place: Path) -> None:
    source = place / "source"
    source.mkdir()
    path = stored(source / "m.onnx", layers(1), external=True)
    source.chmod(0o555)
    try:
        octavo.quantize(path, feeds_for(layers(1)), output=place / "q.onnx", effort="plain")
    finally:
        source.chmod(0o755)
    assert listed(place) == ["q.onnx", "source"]


def test_the_written_file_is_what_was_verified(place: Path) -> None:
    proto = layers(2)
    data = feeds_for(proto)
    result = octavo.quantize(proto, data, output=place / "q.onnx", effort="plain")
    got = Session.open(str(place / "q.onnx")).run(data[0])
    assert all(np.array_equal(got[k], v) for k, v in run(result, data[0]).items())
    assert (place / "q.onnx").stat().st_mode & 0o777 == 0o666 & ~_umask()


def _umask() -> int:
    old = os.umask(0)
    os.umask(old)
    return old


def test_without_verification_nothing_is_run(place: Path) -> None:
    phases: list[str] = []
    octavo.quantize(
        layers(1), feeds_for(layers(1)), output=place / "q.onnx", verify=False,
        progress=lambda phase, done, total: phases.append(phase),
        effort="plain",
    )  # fmt: skip
    assert "verify" not in phases
    assert list(dict.fromkeys(phases)) == ["load", "prepare", "plan", "calibrate", "quantize"]


def test_the_int8_model_holds_integers() -> None:
    result = octavo.quantize(convolutions(3), feeds_for(convolutions(3)), effort="plain")
    assert ops(result)["Conv"] == 3
    assert ops(result)["Relu"] == 0
    assert result.bytes < 0.35 * result.float_bytes


def test_weights_in_constant_nodes_count_as_the_size_of_the_float_model() -> None:
    proto = convolutions(2)
    plain = octavo.quantize(proto, feeds_for(proto), effort="plain").float_bytes
    held = onnx.ModelProto()
    held.CopyFrom(proto)
    constants = [
        onnx.helper.make_node("Constant", [], [t.name], f"{t.name}_constant", value=t)
        for t in held.graph.initializer
    ]
    nodes = [*constants, *held.graph.node]
    del held.graph.initializer[:], held.graph.node[:]
    held.graph.node.extend(nodes)
    assert octavo.quantize(held, feeds_for(proto), effort="plain").float_bytes == plain > 0
