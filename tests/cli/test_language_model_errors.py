"""What the command line says of mistakes with language models: what is wrong, and what to do."""

import numpy as np
import onnx
import pytest
from decoders import VOCABULARY, primitive_decoder
from onnx import TensorProto, numpy_helper

from octavo.cli.main import main

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A decoder, its tokenizer, one of a larger vocabulary, and texts."""
    made = tmp_path_factory.mktemp("decoder")
    onnx.save(primitive_decoder(), made / "model.onnx")
    for name, count in (("own.json", VOCABULARY), ("other.json", 4 * VOCABULARY)):
        words = {f"w{(number * 91) % count}": number for number in range(count)}
        tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        tokenizer.save(str(made / name))
    random = np.random.default_rng(0)
    lines = (" ".join(f"w{n}" for n in random.integers(0, 4 * VOCABULARY, 40)) for _ in range(8))
    (made / "texts.txt").write_text("\n".join(lines), encoding="utf-8")
    return made


def said(folder, capsys, *flags: str, verb: str = "quantize") -> str:
    """What the command line says when it fails."""
    model = str(folder / "model.onnx")
    ends = [model, "--task", "perplexity"] if verb == "evaluate" else ["-o", str(folder / "out.onnx")]
    assert main([verb, model, *ends, *flags]) != 0
    return capsys.readouterr().err


def texts(folder, tokenizer: str = "own.json") -> list[str]:
    return ["--data", str(folder / "texts.txt"), "--tokenizer", str(folder / tokenizer)]


@pytest.mark.parametrize("verb", ["quantize", "evaluate"])
def test_a_tokenizer_of_another_vocabulary_is_named_as_the_cause(folder, capsys, verb):
    flags = ["--weights", "int4"] if verb == "quantize" else ["--window", "16"]
    message = said(folder, capsys, *flags, *texts(folder, "other.json"), verb=verb)
    assert "give its own tokenizer" in message


@pytest.mark.parametrize("flag", ["--head", "--embeddings"])
def test_bits_that_no_kernel_has_are_refused_with_those_it_has(folder, capsys, flag):
    assert "have 2, 4 or 8 bits, not 3" in said(folder, capsys, "--weights", "int4", flag, "3")
    assert "have 2, 4 or 8 bits, not 7" in said(folder, capsys, "--weights", "int4", "--layer", "head=7")


def test_an_algorithm_that_needs_data_says_so_without(folder, capsys):
    message = said(folder, capsys, "--weights", "int4", "--algorithm", "gptq")
    assert "gptq needs calibration data, and none was given; give --data" in message
    assert "--algorithm k-quant" in message


def test_4_bits_per_channel_point_to_blocks(folder, capsys):
    message = said(folder, capsys, "--weights", "int4", "--activations", "none", "--per", "channel")
    assert "--per block:32" in message


def test_the_automatic_choice_takes_a_decoder_in_bfloat16(folder, capsys):
    proto = onnx.load(folder / "model.onnx")
    for tensor in proto.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            bits = numpy_helper.to_array(tensor).view(np.uint32) >> 16
            dims, name = tuple(tensor.dims), tensor.name
            content = bits.astype(np.uint16).tobytes()
            tensor.CopyFrom(onnx.helper.make_tensor(name, TensorProto.BFLOAT16, dims, content, raw=True))
    for value in (*proto.graph.input, *proto.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.BFLOAT16
    onnx.save(proto, folder / "half.onnx")
    out = folder / "half.out.onnx"
    assert main(["quantize", str(folder / "half.onnx"), "-o", str(out), *texts(folder, "own.json")]) == 0
    assert "float is computed in float32" in capsys.readouterr().out
