"""Loading and saving: nothing is mutated, nothing is half-written, nothing escapes the model's folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import builders
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from octavo.errors import ModelError, OutputError
from octavo.model.files import io
from octavo.model.files.external import MappedTensor
from octavo.model.graph.normalize import normalize
from octavo.model.runtime import session


def big(rows: int = 64, cols: int = 256) -> onnx.ModelProto:
    """A model whose weight is large enough to be left in its file."""
    weight = np.random.default_rng(0).standard_normal((rows, cols)).astype(np.float32)
    return builders.model(
        [builders.node("MatMul", ["x", "w"], ["y"], "MatMul_0")],
        [builders.tensor("x", ["batch", rows])],
        [builders.tensor("y", ["batch", cols])],
        {"w": weight},
    )


def external(folder: Path, name: str = "m.onnx") -> Path:
    path = folder / name
    onnx.save(big(), path, save_as_external_data=True, location=f"{name}.bin", size_threshold=0)
    return path


def reference(path: Path, **entries: str) -> Path:
    """Rewrite where the only weight of a model says it lies."""
    proto = onnx.load(path, load_external_data=False)
    found = {entry.key: entry.value for entry in proto.graph.initializer[0].external_data}
    del proto.graph.initializer[0].external_data[:]
    for key, value in (found | entries).items():
        proto.graph.initializer[0].external_data.add(key=key, value=value)
    path.write_bytes(proto.SerializeToString())
    return path


def test_every_kind_of_source_gives_the_same_model(tmp_path: Path) -> None:
    proto = big()
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    sources: list[io.ModelSource] = [
        path,
        str(path),
        path.read_bytes(),
        proto,
        ir.from_proto(proto),
        external(tmp_path, "e.onnx"),
    ]
    prints = {io.fingerprint(io.load(source)) for source in sources}
    assert len(prints) == 1


def test_fingerprint_sees_weights_names_and_attributes() -> None:
    proto = builders.conv_net()
    prints = {io.fingerprint(io.load(proto))}
    changed = onnx.ModelProto.FromString(proto.SerializeToString())
    changed.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.zeros((6, 3, 3, 3), np.float32), "w"))
    prints.add(io.fingerprint(io.load(changed)))
    renamed = onnx.ModelProto.FromString(proto.SerializeToString())
    renamed.graph.node[0].name = "other"
    prints.add(io.fingerprint(io.load(renamed)))
    padded = onnx.ModelProto.FromString(proto.SerializeToString())
    padded.graph.node[0].attribute[0].ints[0] = 0
    prints.add(io.fingerprint(io.load(padded)))
    assert len(prints) == 4


def test_large_weights_stay_in_their_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(big().SerializeToString())
    weight = io.load(path).graph.initializers["w"].const_value
    assert isinstance(weight, MappedTensor)
    assert weight.path == path
    np.testing.assert_array_equal(weight.numpy(), numpy_helper.to_array(big().graph.initializer[0]))
    with pytest.raises(ValueError, match="read-only"):
        weight.numpy()[0, 0] = 1


def test_the_callers_proto_is_not_touched_by_edits() -> None:
    proto = builders.conv_net()
    before = proto.SerializeToString()
    model = io.load(proto)
    for value in list(model.graph.initializers.values()):
        value.name = f"renamed_{value.name}"
    model.graph[0].attributes["pads"] = ir.AttrInt64s("pads", [0, 0, 0, 0])
    io.to_proto(model)
    assert proto.SerializeToString() == before


def test_the_callers_ir_model_is_not_touched_by_edits() -> None:
    source = ir.from_proto(builders.conv_net())
    before = ir.to_proto(source).SerializeToString()
    model = io.load(source)
    for value in [*model.graph.initializers.values(), *(v for n in model.graph for v in n.outputs)]:
        value.name = f"renamed_{value.name}"
        value.dtype = ir.DataType.FLOAT16
    io.to_proto(model)
    assert ir.to_proto(source).SerializeToString() == before


def test_unsorted_ir_model_can_be_loaded() -> None:
    source = ir.from_proto(builders.conv_net())
    nodes = list(source.graph)
    source.graph.remove(nodes)
    source.graph.extend(reversed(nodes))
    model = io.load(source)
    normalize(model)
    assert model.graph[0].op_type == "Conv"


@pytest.mark.parametrize("external_data", [False, True])
def test_saved_model_computes_the_same(tmp_path: Path, external_data: bool) -> None:
    proto = big()
    written = io.save(io.load(proto), tmp_path / "out.onnx", external_data=external_data)
    assert [path.name for path in written] == ["out.onnx", "out.onnx.data"][: 1 + external_data]
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 64)).astype(np.float32)}
    want = session.Session.open(proto.SerializeToString()).run(feeds)
    got = session.Session.open(written[0]).run(feeds)
    np.testing.assert_array_equal(got["y"], want["y"])
    onnx.checker.check_model(str(written[0]))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in written)


def test_saved_twice_the_side_car_is_replaced_not_appended_to(tmp_path: Path) -> None:
    model = io.load(big())
    _, data = io.save(model, tmp_path / "out.onnx", external_data=True)
    size = data.stat().st_size
    io.save(model, tmp_path / "out.onnx", external_data=True)
    assert data.stat().st_size == size


def test_lazy_weights_are_computed_one_at_a_time(tmp_path: Path) -> None:
    model = io.load(big())
    events: list[str] = []

    def make(name: str) -> ir.LazyTensor:
        def compute() -> ir.TensorProtocol:
            events.append(name)
            return ir.tensor(np.ones((64, 256), np.int8))

        return ir.LazyTensor(compute, dtype=ir.DataType.INT8, shape=ir.Shape([64, 256]), name=name)

    for name in ("a", "b"):
        value = ir.Value(
            name=name, const_value=make(name), type=ir.TensorType(ir.DataType.INT8), shape=ir.Shape([64, 256])
        )
        model.graph.initializers.add(value)
    io.save(model, tmp_path / "out.onnx", external_data=True)
    assert events == ["a", "b"]


def test_a_failure_while_writing_leaves_the_old_output_and_nothing_else(tmp_path: Path) -> None:
    model = io.load(big())
    out = tmp_path / "out.onnx"
    io.save(model, out, external_data=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def interrupted() -> ir.TensorProtocol:
        raise KeyboardInterrupt

    weight = model.graph.initializers["w"]
    weight.const_value = ir.LazyTensor(
        interrupted, dtype=ir.DataType.FLOAT, shape=ir.Shape([64, 256]), name="w"
    )
    for external_data in (True, False):
        with pytest.raises(KeyboardInterrupt):
            io.save(model, out, external_data=external_data)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_tensor_that_lies_about_its_size_is_an_output_error(tmp_path: Path) -> None:
    model = io.load(big())
    weight = model.graph.initializers["w"]
    weight.const_value = ir.LazyTensor(
        lambda: ir.tensor(np.ones(3, np.float32)),
        dtype=ir.DataType.FLOAT,
        shape=ir.Shape([64, 256]),
        name="w",
    )
    for external_data in (True, False):
        with pytest.raises(OutputError, match="announced"):
            io.save(model, tmp_path / "out.onnx", external_data=external_data)
    assert not list(tmp_path.iterdir())


def test_failed_second_rename_restores_the_old_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = io.load(big())
    out = tmp_path / "out.onnx"
    io.save(model, out, external_data=True)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model.graph.initializers["w"].const_value = ir.tensor(np.zeros((64, 256), np.float32), name="w")
    replace = Path.replace

    def failing(self: Path, target: Path) -> Path:
        if Path(target).name == "out.onnx":
            raise OSError(5, "Input/output error")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", failing)
    with pytest.raises(OutputError, match="Input/output error"):
        io.save(model, out, external_data=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_source_and_its_weights_are_never_overwritten(tmp_path: Path) -> None:
    path = external(tmp_path)
    model = io.load(path)
    with pytest.raises(OutputError, match="being read"):
        io.save(model, path)
    (tmp_path / "m.onnx.bin").rename(tmp_path / "other.onnx.data")
    model = io.load(reference(path, location="other.onnx.data"))
    with pytest.raises(OutputError, match="being read"):
        io.save(model, tmp_path / "other.onnx", external_data=True)
    link = tmp_path / "link.onnx"
    link.symlink_to(path)
    with pytest.raises(OutputError, match="being read"):
        io.save(model, link)


def test_output_replaces_a_link_instead_of_writing_through_it(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("keep me")
    out = tmp_path / "out.onnx"
    out.symlink_to(precious)
    io.save(io.load(big()), out)
    assert precious.read_text() == "keep me"
    assert not out.is_symlink()


def test_permissions_of_an_old_output_are_kept(tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    io.save(io.load(big()), out)
    out.chmod(0o640)
    io.save(io.load(big()), out)
    assert out.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("missing", ["no/such/folder/out.onnx", "."])
def test_unwritable_targets_are_output_errors(tmp_path: Path, missing: str) -> None:
    with pytest.raises(OutputError):
        io.save(io.load(big()), tmp_path / missing)


def test_a_file_that_changes_under_a_loaded_model_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(big(512, 1024).SerializeToString())
    model = io.load(path)
    path.write_bytes(big(32, 512).SerializeToString() + b"")
    os.utime(path, ns=(1, 1))
    with pytest.raises(ModelError, match="changed after"):
        model.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]


def test_a_small_model_stays_as_it_was_loaded_when_its_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(big().SerializeToString())
    model = io.load(path)
    path.write_bytes(big(32, 512).SerializeToString())
    stored = model.graph.initializers["w"].const_value.numpy()  # type: ignore[union-attr]
    assert np.array_equal(stored, onnx.numpy_helper.to_array(big().graph.initializer[0]))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\n", "ONNX model"),
        (b"\x00" * 100, "ONNX model"),
        (b"<html>" * 10, "ONNX model"),
        (big().SerializeToString()[:-100], "ONNX model"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no graph"),
    ],
)
def test_what_is_no_model_is_a_model_error(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=says):
        io.load(path)
    with pytest.raises(ModelError, match=says):
        io.load(content)


def test_paths_that_lead_nowhere_are_model_errors(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="There is no model at"):
        io.load(tmp_path / "absent.onnx")
    with pytest.raises(ModelError, match="folder"):
        io.load(tmp_path)
    with pytest.raises(ModelError, match=r"\.ort"):
        io.load(tmp_path / "m.ort")
    with pytest.raises(ModelError, match="not int"):
        io.load(3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="empty graph"):
        io.load(builders.model([], [builders.tensor("x", [1])], []))


@pytest.mark.parametrize(
    "location",
    [
        "/etc/passwd",
        "../m.onnx.bin",
        "a/../../m.onnx.bin",
        "C:\\x",
        "\\\\host\\share",
        "",
        "a\0b",
        "absent.bin",
        ".",
    ],
)
def test_hostile_locations_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = reference(external(folder), location=location)
    (tmp_path / "m.onnx.bin").write_bytes(b"\0" * 100_000)
    with pytest.raises(ModelError):
        io.load(path)


@pytest.mark.parametrize(
    "entries",
    [
        {"offset": "100000"},
        {"offset": "-4"},
        {"length": "4"},
        {"length": "99999999999999"},
        {"offset": "x"},
        {"offset": "9223372036854775807"},
    ],
)
def test_stretches_outside_of_the_file_are_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    with pytest.raises(ModelError):
        io.load(reference(external(tmp_path), **entries))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_links_out_pipes_and_hard_links_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    path = external(folder)
    data = folder / "m.onnx.bin"
    outside = tmp_path / "outside.bin"
    data.rename(outside)
    data.symlink_to(outside)
    with pytest.raises(ModelError, match="leads out"):
        io.load(path)
    data.unlink()
    os.mkfifo(data)
    with pytest.raises(ModelError, match="regular"):
        io.load(path)
    data.unlink()
    os.link(outside, data)
    with pytest.raises(ModelError, match="hard links"):
        io.load(path)


def test_a_link_that_stays_inside_is_followed(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "m.onnx.bin").rename(tmp_path / "real.bin")
    (tmp_path / "m.onnx.bin").symlink_to(tmp_path / "real.bin")
    assert io.weight_bytes(io.load(path)) == 64 * 256 * 4


def test_external_weights_of_a_proto_need_a_folder(tmp_path: Path) -> None:
    proto = onnx.load(external(tmp_path), load_external_data=False)
    with pytest.raises(ModelError, match="base_dir"):
        io.load(proto)
    assert io.fingerprint(io.load(proto, base_dir=tmp_path)) == io.fingerprint(io.load(big()))


def test_external_constant_nodes_are_read(tmp_path: Path) -> None:
    array = np.arange(8, dtype=np.float32)
    (tmp_path / "k.bin").write_bytes(array.tobytes())
    content = TensorProto(name="k", data_type=TensorProto.FLOAT, dims=[8], data_location=TensorProto.EXTERNAL)
    content.external_data.add(key="location", value="k.bin")
    nodes = [builders.node("Constant", [], ["k"], value=content), builders.node("Add", ["x", "k"], ["y"])]
    proto = builders.model(nodes, [builders.tensor("x", [8])], [builders.tensor("y", [8])])
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    model = io.load(path)
    normalize(model)
    np.testing.assert_array_equal(model.graph.initializers["k"].const_value.numpy(), array)  # type: ignore[union-attr]
    assert session.Session.open(model).run({"x": array})["y"].tolist() == (2 * array).tolist()


def damaged(**changes: object) -> onnx.ModelProto:
    proto = builders.conv_net()
    weight = proto.graph.initializer[0]
    for key, value in changes.items():
        if key == "dims":
            weight.dims[:] = value  # type: ignore[call-overload]
        else:
            setattr(weight, key, value)
    return proto


@pytest.mark.parametrize(
    "changes",
    [
        {"dims": [-6, 3, 3, 3]},
        {"dims": [6, 3, 3, 4]},
        {"dims": [2**40, 2**40]},
        {"dims": [0, 2**62, 2**62]},
        {"dims": [1] * 70},
        {"data_type": 0},
        {"data_type": 99},
        {"data_type": TensorProto.INT4},
        {"raw_data": b""},
        {"name": ""},
        {"name": "b"},
        {"name": "conv"},
    ],
)
def test_damaged_tensors_are_model_errors(changes: dict[str, object]) -> None:
    proto = damaged(**changes)
    with pytest.raises(ModelError):
        model = io.load(proto)
        normalize(model)
    with pytest.raises(ModelError):
        model = io.load(proto.SerializeToString())
        normalize(model)


def test_typed_fields_are_counted() -> None:
    proto = damaged()
    weight = proto.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.float_data.extend([1.0] * 5)
    with pytest.raises(ModelError, match="5 elements"):
        io.load(proto)


def test_sparse_initializers_are_refused_not_dropped() -> None:
    proto = builders.conv_net()
    sparse = proto.graph.sparse_initializer.add()
    sparse.values.name = "s"
    with pytest.raises(ModelError, match="sparse"):
        io.load(proto)


@pytest.mark.parametrize(
    ("opset", "dtype", "version"),
    [
        (13, None, 7),
        (17, None, 8),
        (21, None, 10),
        (17, ir.DataType.INT4, 10),
        (17, ir.DataType.FLOAT8E4M3FN, 9),
        (17, ir.DataType.BFLOAT16, 8),
        (17, ir.DataType.FLOAT4E2M1, 11),
        (17, ir.DataType.INT2, 13),
    ],
)
def test_the_lowest_ir_version_is_written(opset: int, dtype: ir.DataType | None, version: int) -> None:
    model = io.load(builders.conv_net(opset=opset))
    model.ir_version = 99
    if dtype is not None:
        tensor = ir.Tensor(np.zeros(8, dtype.numpy()), dtype=dtype, name="extra")
        value = ir.Value(name="extra", const_value=tensor, type=ir.TensorType(dtype), shape=ir.Shape([8]))
        model.graph.initializers.add(value)
    assert io.to_proto(model).ir_version == version
    assert onnx.ModelProto.FromString(io.to_bytes(model)).ir_version == version


def test_an_ir_version_that_the_runtime_lacks_is_a_model_error() -> None:
    model = io.load(builders.conv_net())
    model.graph.opset_imports[""] = 28
    with pytest.raises(ModelError, match="IR version"):
        io.to_bytes(model)


def test_more_than_two_gigabytes_need_a_file(tmp_path: Path) -> None:
    model = io.load(builders.conv_net())
    shape = ir.Shape([3, 2**30])
    huge = ir.LazyTensor(lambda: ir.tensor(0), dtype=ir.DataType.INT8, shape=shape, name="huge")
    model.graph.initializers.add(
        ir.Value(name="huge", const_value=huge, type=ir.TensorType(ir.DataType.INT8))
    )
    with pytest.raises(ModelError, match="save it to a path"):
        io.to_bytes(model)
    with pytest.raises(ModelError, match="save it to a path"):
        io.to_proto(model)
    with pytest.raises(OutputError, match="external_data"):
        io.save(model, tmp_path / "out.onnx", external_data=False)


def test_string_and_packed_initializers_survive(tmp_path: Path) -> None:
    model = io.load(builders.conv_net(opset=21))
    for name, tensor in {
        "text": ir.StringTensor([b"a", b"bc"], shape=ir.Shape([2]), name="text"),
        "nibbles": ir.tensor((np.arange(5) - 2).astype(np.int8), dtype=ir.DataType.INT4, name="nibbles"),
    }.items():
        model.graph.initializers.add(
            ir.Value(name=name, const_value=tensor, type=ir.TensorType(tensor.dtype))
        )
    for external_data in (False, True):
        path = io.save(model, tmp_path / f"{external_data}.onnx", external_data=external_data)[0]
        again = io.load(path).graph.initializers
        assert list(again["text"].const_value.numpy()) == [b"a", b"bc"]  # type: ignore[union-attr]
        assert again["nibbles"].const_value.numpy().astype(int).tolist() == [-2, -1, 0, 1, 2]  # type: ignore[union-attr]


def test_model_metadata_survives(tmp_path: Path) -> None:
    proto = builders.conv_net()
    proto.producer_name, proto.doc_string = "maker", "text"
    proto.metadata_props.add(key="k", value="v")
    proto.graph.node[0].doc_string = "first"
    again = onnx.load(io.save(io.load(proto), tmp_path / "out.onnx")[0])
    assert (again.producer_name, again.doc_string, again.graph.node[0].doc_string) == (
        "maker",
        "text",
        "first",
    )
    assert [(entry.key, entry.value) for entry in again.metadata_props] == [("k", "v")]


@pytest.mark.skipif(os.name != "posix", reason="file size limits are a POSIX thing")
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(big(256, 512).SerializeToString())
    code = (
        "import resource, signal, sys\n"
        "from octavo.errors import OutputError; from octavo.model.files import io\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"model = io.load({str(path)!r}); resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "for beside in (False, True):\n"
        "    try:\n"
        f"        io.save(model, {str(tmp_path / 'out.onnx')!r}, external_data=beside)\n"
        "    except OutputError as error: assert 'too large' in str(error).lower(), error\n"
        "    else: sys.exit('it was written')\n"
    )
    source = str(Path(io.__file__).parents[3])
    # Python would leave compiled modules cut off at the limit, and fail to read them later.
    environment = {"PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]


def test_a_copy_of_a_mapped_model_is_mapped_too(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(big().SerializeToString())
    first = io.load(path)
    second = io.load(first)
    second.graph.initializers["w"].name = "other"
    weight = second.graph.initializers["other"].const_value
    assert isinstance(weight, MappedTensor)
    assert first.graph.initializers["w"].const_value.name == "w"  # type: ignore[union-attr]
    with pytest.raises(OutputError, match="being read"):
        io.save(second, path)


def test_a_model_that_gives_a_map_is_refused_with_a_way_out() -> None:
    proto = onnx.helper.make_model(
        onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "g", [], [])
    )
    answer = proto.graph.output.add(name="y")
    answer.type.map_type.key_type = onnx.TensorProto.INT64
    answer.type.map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    proto.graph.input.add(name="x").CopyFrom(answer)
    proto.graph.input[0].name = "x"
    with pytest.raises(ModelError, match=r"can't be read: Map types.*ZipMap"):
        io.load(proto)
