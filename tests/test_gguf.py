"""GGUF files: what is read, and weights placed into a graph, against an independent decoding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from decoders import HEADS, LAYERS, VOCABULARY, WIDTH, ids, primitive_decoder, weights
from gguf_files import write_gguf

from octavo.cli.main import main
from octavo.data.decoder import Decoder
from octavo.errors import ModelError
from octavo.model.files import gguf_format, io
from octavo.model.runtime.session import Session
from octavo.pipeline.gguf import import_gguf

FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "F16")
LLAMA = {
    "general.architecture": "llama",
    "llama.attention.head_count": HEADS,
    "tokenizer.ggml.tokens": ["a", "b"],
}


def turned(rows: np.ndarray) -> np.ndarray:
    """Rows of queries and keys as llama.cpp's converter puts them: the halves of each head interleaved."""
    return rows.reshape(HEADS, 2, WIDTH // HEADS // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def made(path: Path, tied: bool = False) -> dict[str, np.ndarray]:
    """A file with the weights of the tiny decoder in one format after the other; what it holds, as [K, N]."""
    tensors: dict[str, tuple[str, np.ndarray]] = {}
    own = weights(tied=tied)
    names = [name for name in own if own[name].ndim == 2 and name != "embed"]
    for index, name in enumerate(names):
        rows = np.ascontiguousarray(own[name].T)
        if name[-2:] in (".q", ".k"):
            rows = turned(rows)
        tensors[f"blk.{name}.weight"] = FORMATS[index % len(FORMATS)], rows
    tensors["blk.0.norm.weight"] = "F32", own["l0.norm1"]
    if tied:
        tensors["token_embd.weight"] = "Q8_0", own["embed"]
    real = write_gguf(path, tensors, LLAMA)
    back = np.argsort(turned(np.arange(WIDTH)[:, None])[:, 0])
    return {name: (rows[back] if name[:-7].endswith((".q", ".k")) else rows).T for name, rows in real.items()}


def test_every_product_gets_the_numbers_of_the_file(tmp_path: Path) -> None:
    real = made(tmp_path / "m.gguf")
    proto = primitive_decoder()
    found = import_gguf(tmp_path / "m.gguf", proto, tmp_path / "out.onnx", accuracy_level=0)
    assert len(found.placed) == 6 * LAYERS + 1
    assert found.unmatched == ()
    assert {one.tensor: one.exact for one in found.placed} == {
        one.tensor: one.format != "F16" for one in found.placed
    }
    assert found.left == {"blk.0.norm.weight": "only matrices are placed; the graph has the others"}
    for tensor in proto.graph.initializer:
        if f"blk.{tensor.name}.weight" in real:
            want = real[f"blk.{tensor.name}.weight"].astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(want), tensor.name))
    sessions = [Session.open(io.load(proto)), Session.open(tmp_path / "out.onnx")]
    decoder = Decoder.of(sessions[0].inputs, sessions[0].output_names)
    assert decoder is not None
    want, got = (session.run(decoder.feed(ids()))["logits"] for session in sessions)
    rounded = [one for one in found.placed if not one.exact]
    assert {one.bits for one in rounded} == {8}
    assert np.linalg.norm(got - want) < 0.01 * np.linalg.norm(want)


@pytest.mark.parametrize("name", FORMATS)
def test_a_weight_is_within_a_millionth_of_its_format(name: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((48, 64)).astype(np.float32)
    rows[0, :32], rows[1] = 0.25, 0.0  # a block of one value, and a row of zeros
    real = write_gguf(tmp_path / "m.gguf", {"w": (name, rows)}, LLAMA)["w"]
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[n, 64] x) => (float[n, 48] y) { y = MatMul(x, w) }'
    )
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ascontiguousarray(rows.T), "w"))
    found = import_gguf(tmp_path / "m.gguf", proto, tmp_path / "out.onnx", accuracy_level=0)
    got = Session.open(tmp_path / "out.onnx").run({"x": np.eye(64, dtype=np.float32)})["y"].T
    limit = 1e-6 if found.placed[0].exact else np.abs(rows).max() / 127
    assert np.abs(got - real).max() <= limit


def test_a_tied_table_is_the_weight_of_the_head(tmp_path: Path) -> None:
    made(tmp_path / "m.gguf", tied=True)
    found = import_gguf(tmp_path / "m.gguf", primitive_decoder(tied=True), tmp_path / "out.onnx")
    assert ("token_embd.weight", "logits") in {(one.tensor, one.node) for one in found.placed}


def test_files_that_lie_and_graphs_of_other_models_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    made(path)
    content = path.read_bytes()
    for wrong, words in (
        (b"GGML" + content[4:], "does not begin"),
        (content[:4] + b"\x09" + content[5:], "version 9"),
        (content[: len(content) // 2], "ends before"),
        (content[:10], "not a complete GGUF"),
        (content[:8] + b"\xff" * 8 + content[16:], "more than its bytes hold"),
        (b"", "can't be read"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(ModelError, match=words):
            gguf_format.read(path)
    rng = np.random.default_rng(9)
    write_gguf(path, {"w": ("Q8_0", rng.standard_normal((VOCABULARY, WIDTH)))}, LLAMA)
    with pytest.raises(ModelError, match="None of the matrices"):
        import_gguf(path, primitive_decoder(), tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_the_verb_lists_what_became_of_each_tensor(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "m.gguf")
    onnx.save(primitive_decoder(), tmp_path / "m.onnx")
    given = ["import-gguf", str(tmp_path / "m.gguf"), "--graph", str(tmp_path / "m.onnx")]
    assert main([*given, "-o", str(tmp_path / "o.onnx")]) == 0
    told = capsys.readouterr().out
    assert "3 Q4_0 as 4 bits, exactly" in told
    assert "F16 as 8 bits, rounded anew" in told
    assert "blk.0.norm.weight" in told
    assert (tmp_path / "o.onnx").exists()
