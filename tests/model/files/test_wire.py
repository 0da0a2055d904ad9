"""Protobuf's wire format, read and written in pieces."""

from __future__ import annotations

import contextlib
import io as std_io
import random

import builders
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from octavo.errors import ModelError
from octavo.model.files import io, wire
from octavo.model.graph.normalize import normalize


@given(st.integers(0, 2**64 - 1))
def test_varints_are_what_protobuf_writes(number: int) -> None:
    proto = onnx.TensorProto(uint64_data=[number])
    encoded = wire.varint(number)
    assert proto.SerializeToString().endswith(encoded)
    assert wire._read_varint(memoryview(encoded), 0, len(encoded)) == (number, len(encoded))


@given(st.lists(st.integers(0, 300), max_size=6), st.integers(1, 200), st.booleans())
def test_split_and_join_give_the_model_back(sizes: list[int], least: int, twice: bool) -> None:
    arrays = {f"w{i}": np.arange(size, dtype=np.uint8) for i, size in enumerate(sizes)}
    proto = builders.model(
        [builders.node("Relu", ["x"], ["y"])],
        [builders.tensor("x", [1])],
        [builders.tensor("y", [1])],
        arrays,
    )
    content = proto.SerializeToString()
    if twice:  # a message may come in two parts, which are one
        half = onnx.ModelProto()
        half.graph.initializer.append(numpy_helper.from_array(np.arange(250, dtype=np.uint8), "late"))
        content += half.SerializeToString()
        proto = onnx.ModelProto.FromString(content)
    found = wire.split(memoryview(content), least)
    assert set(found.weights) == {t.name for t in proto.graph.initializer if len(t.raw_data) >= least}
    rest = onnx.ModelProto.FromString(found.rest)
    for tensor in rest.graph.initializer:
        if tensor.name in found.weights:
            assert not tensor.raw_data
            where = found.weights[tensor.name]
            tensor.raw_data = content[where.offset : where.offset + where.length]
    assert rest == proto


def test_join_writes_what_protobuf_reads() -> None:
    header = onnx.TensorProto(name="w", data_type=onnx.TensorProto.UINT8, dims=[300]).SerializeToString()
    body = bytes(range(250)) + b"0" * 50
    weight = wire.WireWeight(header, 300, lambda file: file.write(body))
    model, graph = onnx.ModelProto(ir_version=8), onnx.GraphProto(name="g")
    file = std_io.BytesIO()
    wire.join(file, model.SerializeToString(), graph.SerializeToString(), [weight, weight])
    read = onnx.ModelProto.FromString(file.getvalue())
    assert [t.raw_data for t in read.graph.initializer] == [body, body]


@given(st.binary(max_size=200))
def test_any_bytes_are_split_or_refused(content: bytes) -> None:
    with contextlib.suppress(wire.WireError):
        wire.split(memoryview(content), 1)


@pytest.mark.parametrize("seed", range(4))
def test_damaged_files_end_in_model_errors(seed: int) -> None:
    chance = random.Random(seed)
    sources = [builders.conv_net().SerializeToString(), builders.two_branches().SerializeToString()]
    for _ in range(300):
        content = bytearray(chance.choice(sources))
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(content))
            if chance.random() < 0.8:
                content[at] = chance.randrange(256)
            else:
                del content[at : at + chance.randint(1, 6)]
        try:
            model = io.load(bytes(content))
            normalize(model)
            io.fingerprint(model)
        except ModelError:
            pass
