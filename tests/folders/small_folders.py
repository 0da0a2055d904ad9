"""Small model folders as exporters write them: an encoder, a decoder with a cache, and both in one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import graph, model, node, tensor
from onnx import TensorProto

WORDS = [f"word{i}" for i in range(120)]
VOCABULARY = ["<pad>", "<s>", "</s>", "<unk>", *WORDS]
WIDTH, HEADS, SIZE = 64, 2, 32
INT64, BOOL = TensorProto.INT64, TensorProto.BOOL


def tokenizer(folder: Path) -> None:
    """Write the tokenizer of all these models: a token for each word."""
    special = [
        {"id": i, "content": token, "special": True, "normalized": False, "single_word": False,
         "lstrip": False, "rstrip": False}
        for i, token in enumerate(VOCABULARY[:4])
    ]  # fmt: skip
    plain = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {
            "type": "WordLevel", "unk_token": "<unk>", "vocab": {word: i for i, word in enumerate(VOCABULARY)}
        },
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(plain))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<pad>", "bos_token": "<s>",
        "eos_token": "</s>", "unk_token": "<unk>", "model_max_length": 128,
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def texts(path: Path, count: int = 9) -> Path:
    """Write some texts."""
    rng = np.random.default_rng(7)
    rows = [" ".join(rng.choice(WORDS, 6 + i % 5)) for i in range(count)]
    path.write_text("\n".join(rows) + "\n")
    return path


class Net:
    """A graph on its way; names of tensors begin with those of their layers."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.arrays: dict[str, Any] = {}

    def add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add a node with one output."""
        self.nodes.append(node(op, inputs, [output], output, **attributes))
        return output

    def constant(self, name: str, value: Any) -> str:
        """Add a constant."""
        self.arrays[name] = np.asarray(value)
        return name

    def linear(self, x: str, name: str, outputs: int = WIDTH, inputs: int = WIDTH, gain: float = 1.0) -> str:
        """Add a product with a weight."""
        if f"{name}_w" not in self.arrays:
            weight = gain * self.rng.standard_normal((inputs, outputs)) / np.sqrt(inputs)
            self.constant(f"{name}_w", weight.astype(np.float32))
        return self.add("MatMul", [x, f"{name}_w"], f"{name}_y")

    def embed(self, ids: str, name: str = "embed") -> str:
        """Look tokens up."""
        if f"{name}_table" not in self.arrays:
            table = self.rng.standard_normal((len(VOCABULARY), WIDTH))
            self.constant(f"{name}_table", table.astype(np.float32))
        return self.add("Gather", [f"{name}_table", ids], f"{name}_out")

    def heads(self, x: str, name: str) -> str:
        """[batch, tokens, width] to [batch, heads, tokens, size]."""
        self.constant(f"{name}_split", np.int64([0, 0, HEADS, SIZE]))
        split = self.add("Reshape", [x, f"{name}_split"], f"{name}_parted")
        return self.add("Transpose", [split], f"{name}_heads", perm=[0, 2, 1, 3])

    def attend(self, q: str, k: str, v: str, x: str, name: str, mask: str | None = None) -> str:
        """Attention of heads, its output projection, and the sum with x."""
        turned = self.add("Transpose", [k], f"{name}_kt", perm=[0, 1, 3, 2])
        scores = self.add("MatMul", [q, turned], f"{name}_qk")
        scores = self.add("Mul", [scores, self.constant(f"{name}_c", np.float32(SIZE**-0.5))], f"{name}_s")
        if mask is not None:
            scores = self.add("Add", [scores, mask], f"{name}_masked")
        chance = self.add("Softmax", [scores], f"{name}_p", axis=-1)
        mixed = self.add("MatMul", [chance, v], f"{name}_mixed")
        back = self.add("Transpose", [mixed], f"{name}_back", perm=[0, 2, 1, 3])
        flat = self.add(
            "Reshape", [back, self.constant(f"{name}_flat", np.int64([0, 0, WIDTH]))], f"{name}_f"
        )
        return self.add("Add", [self.linear(flat, f"{name}_o"), x], f"{name}_sum")

    def causal(self, keys: str, queries: str) -> str:
        """A mask of -10000 where a key lies behind its query."""
        one, two = self.constant("axis1", np.int64([1])), self.constant("axis2", np.int64([2]))
        three = self.constant("axis3", np.int64([3]))
        shape = self.add("Shape", [keys], "keys_shape")
        total = self.add("Slice", [shape, two, three], "total")
        count = self.add(
            "Slice", [self.add("Shape", [queries], "ids_shape"), one, two], "count"
        )  # [batch, tokens, …]
        size = self.add("Concat", [count, total], "mask_size", axis=0)
        ones = self.add(
            "ConstantOfShape", [size], "ones", value=onnx.numpy_helper.from_array(np.float32([1.0]))
        )
        past = self.add("Sub", [total, count], "past")
        first = self.add("Add", [past, one], "first_hidden")
        scalar = self.add("Squeeze", [first, self.constant("axis0", np.int64([0]))], "first_scalar")
        upper = self.add("Trilu", [ones, scalar], "upper", upper=1)
        return self.add("Mul", [upper, self.constant("low", np.float32(-1e4))], "causal_mask")

    def mlp(self, x: str, name: str) -> str:
        """Two linear layers, and the sum with x."""
        hidden = self.add("Relu", [self.linear(x, f"{name}_up", 2 * WIDTH)], f"{name}_relu")
        return self.add("Add", [self.linear(hidden, f"{name}_down", WIDTH, 2 * WIDTH), x], f"{name}_mlp")


def write(path: Path, made: onnx.ModelProto) -> Path:
    """Save a model."""
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(made, str(path))
    return path


def text_encoder(folder: Path) -> Path:
    """A sentence encoder, at the top of its folder as Optimum exports it."""
    folder.mkdir(parents=True, exist_ok=True)
    net = Net()
    x = net.embed("input_ids")
    q, k, v = (net.heads(net.linear(x, name), name) for name in "qkv")
    mask = net.add("Cast", ["attention_mask"], "mask_float", to=TensorProto.FLOAT)
    mask = net.add("Sub", [mask, net.constant("one", np.float32(1))], "mask_less")
    mask = net.add("Mul", [mask, net.constant("many", np.float32(1e4))], "mask_low")
    mask = net.add("Unsqueeze", [mask, net.constant("axes", np.int64([1, 2]))], "mask_row")
    out = net.mlp(net.attend(q, k, v, x, "attn", mask), "mlp")
    net.add("Identity", [out], "last_hidden_state")
    ids = [tensor(name, ["batch", "tokens"], INT64) for name in ("input_ids", "attention_mask")]
    made = model(net.nodes, ids, [tensor("last_hidden_state", ["batch", "tokens", WIDTH])], net.arrays)
    write(folder / "model.onnx", made)
    config = {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": WIDTH, "vocab_size": 124}
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer(folder)
    return folder


def _cache(prefix: str, kind: str = "", length: str = "past_length") -> list[onnx.ValueInfoProto]:
    names = [f"{prefix}.0.{kind}{one}" for one in ("key", "value")]
    return [tensor(name, ["batch", HEADS, length, SIZE]) for name in names]


def decoder(folder: Path) -> Path:
    """A language model with a cache in one file, as transformers.js loads it from onnx/."""
    folder.mkdir(parents=True, exist_ok=True)
    net = Net(1)
    places = net.constant("places", (0.5 * net.rng.standard_normal((128, WIDTH))).astype(np.float32))
    x = net.add("Add", [net.embed("input_ids"), net.add("Gather", [places, "position_ids"], "at")], "x")
    q = net.heads(net.linear(x, "q"), "q")
    for name, past in (("k", "key"), ("v", "value")):
        fresh = net.heads(net.linear(x, name), name)
        net.add("Concat", [f"past_key_values.0.{past}", fresh], f"present.0.{past}", axis=2)
    mask = net.causal("present.0.key", "x")
    seen = net.add("Cast", ["attention_mask"], "seen", to=TensorProto.FLOAT)
    hidden = net.add("Sub", [seen, net.constant("one", np.float32(1))], "hidden")
    hidden = net.add("Mul", [hidden, net.constant("many", np.float32(1e4))], "hidden_low")
    hidden = net.add("Unsqueeze", [hidden, net.constant("axes", np.int64([1, 2]))], "hidden_row")
    mask = net.add("Add", [mask, hidden], "whole_mask")
    out = net.mlp(net.attend(q, "present.0.key", "present.0.value", x, "attn", mask), "mlp")
    head = net.linear(out, "head", len(VOCABULARY), gain=1.5)
    net.add("Identity", [head], "logits")
    inputs = [
        tensor("input_ids", ["batch", "tokens"], INT64),
        tensor("attention_mask", ["batch", "total"], INT64),
        tensor("position_ids", ["batch", "tokens"], INT64),
        *_cache("past_key_values"),
    ]
    outputs = [tensor("logits", ["batch", "tokens", len(VOCABULARY)]), *_cache("present", length="total")]
    write(folder / "onnx" / "model.onnx", model(net.nodes, inputs, outputs, net.arrays))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": WIDTH,
        "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "num_hidden_layers": 1,
        "bos_token_id": 1, "eos_token_id": 2, "vocab_size": len(VOCABULARY), "head_dim": SIZE,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer(folder)
    return folder


def _decoder_net(net: Net, *, cached: bool, prefix: str = "") -> list[str]:
    """The nodes of a decoder that attends to an encoder; returns logits and caches."""
    x = net.embed("input_ids", "dec_embed")
    q = net.heads(net.linear(x, "q"), "q")
    names = []
    for name, kind in (("k", "key"), ("v", "value")):
        fresh = net.heads(net.linear(x, name), name)
        before = [f"past_key_values.0.decoder.{kind}"] if cached else []
        names.append(net.add("Concat", [*before, fresh], f"{prefix}present.0.decoder.{kind}", axis=2))
    mask = net.causal(names[0], x)
    x = net.attend(q, names[0], names[1], x, "attn", mask)
    cross = net.heads(net.linear(x, "cq"), "cq")
    for name, kind in (("ck", "key"), ("cv", "value")):
        place = f"{prefix}present.0.encoder.{kind}"
        if cached:
            names.append(net.add("Identity", [f"past_key_values.0.encoder.{kind}"], place))
        else:
            fresh = net.heads(net.linear("encoder_hidden_states", name), name)
            names.append(net.add("Identity", [fresh], place))
    out = net.mlp(net.attend(cross, names[2], names[3], x, "cross"), "mlp")
    head = net.linear(out, "head", len(VOCABULARY), gain=1.5)
    return [net.add("Identity", [head], f"{prefix}logits"), *names]


def encoder_decoder(folder: Path, *, merged: bool = False) -> Path:
    """An encoder, and a decoder in two files or merged in one by an If."""
    text_encoder(folder)
    (folder / "model.onnx").rename(folder / "encoder_model.onnx")
    config = {
        "model_type": "t5", "is_encoder_decoder": True, "decoder_start_token_id": 1, "eos_token_id": 2,
        "vocab_size": len(VOCABULARY), "architectures": ["T5ForConditionalGeneration"],
        "num_layers": 1, "num_decoder_layers": 1, "num_heads": HEADS, "d_kv": SIZE, "d_model": WIDTH,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    ids = tensor("input_ids", ["batch", "tokens"], INT64)
    states = tensor("encoder_hidden_states", ["batch", "encoder_tokens", WIDTH])
    past = [
        *_cache("past_key_values", "decoder."),
        *_cache("past_key_values", "encoder.", "encoder_tokens"),
    ]
    outputs = [
        tensor("logits", ["batch", "tokens", len(VOCABULARY)]),
        *_cache("present", "decoder.", "total"),
        *_cache("present", "encoder.", "encoder_tokens"),
    ]
    first, later = Net(2), Net(2)
    _decoder_net(first, cached=False)
    later.arrays.update(first.arrays)
    _decoder_net(later, cached=True)
    if not merged:
        write(folder / "decoder_model.onnx", model(first.nodes, [ids, states], outputs, first.arrays))
        made = model(later.nodes, [ids, *past], outputs, later.arrays)
        write(folder / "decoder_with_past_model.onnx", made)
        return folder
    branches = []
    for prefix, cached in (("then_", True), ("else_", False)):
        net = Net(2)
        net.arrays.update(first.arrays)
        names = _decoder_net(net, cached=cached, prefix=prefix)
        for one in net.nodes:  # names are unique in the whole model
            one.name = prefix + one.name
            one.input[:] = [_inner(name, prefix, net, first, past) for name in one.input]
            one.output[:] = [_inner(name, prefix, net, first, past) for name in one.output]
        branches.append(graph(net.nodes, [], [tensor(name, None) for name in names], name=f"{prefix}graph"))
    chosen = node(
        "If", ["use_cache_branch"], [one.name for one in outputs], "branch",
        then_branch=branches[0], else_branch=branches[1],
    )  # fmt: skip
    flag = tensor("use_cache_branch", [1], BOOL)
    made = model([chosen], [ids, states, *past, flag], outputs, first.arrays)
    write(folder / "decoder_model_merged.onnx", made)
    return folder


def _inner(name: str, prefix: str, net: Net, outer: Net, past: Sequence[onnx.ValueInfoProto]) -> str:
    """A tensor's name inside a branch: what comes from outside, and what is named already, keeps its own."""
    known = {"input_ids", "encoder_hidden_states", *outer.arrays, *(one.name for one in past)}
    return name if name in known or name.startswith(prefix) else prefix + name
