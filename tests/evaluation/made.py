"""Small models, images and texts for the tests of evaluation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import model, node, tensor
from onnx import TensorProto

SIZE = 8


def save(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


def colour_classifier(batch: int | str = "N", *, swapped: bool = False, rank: int = 2) -> onnx.ModelProto:
    """Scores of images [N, 3, 8, 8]: the mean of each channel, so that the strongest colour wins."""
    nodes = [node("GlobalAveragePool", ["image"], ["pooled"])]
    arrays: dict[str, Any] = {}
    last = "pooled"
    if rank == 2:
        nodes.append(node("Flatten", ["pooled"], ["flat"]))
        last = "flat"
    if swapped:
        arrays["order"] = np.array([1, 0, 2])
        nodes.append(node("Gather", [last, "order"], ["scores"], axis=1))
    else:
        nodes.append(node("Identity", [last], ["scores"]))
    shape: list[Any] = [batch, 3] if rank == 2 else [batch, 3, 1, 1]
    return model(nodes, [tensor("image", [batch, 3, SIZE, SIZE])], [tensor("scores", shape)], arrays)


def colour_images(folder: Path, counts: Sequence[int] = (3, 3, 3)) -> list[tuple[str, int]]:
    """Plain red, green and blue images; returns names and classes."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number, count in enumerate(counts):
        for index in range(count):
            colour = [10 * index, 10 * index, 10 * index]
            colour[number] = 255
            name = f"{'rgb'[number]}{index}.png"
            Image.new("RGB", (12, 10), tuple(colour)).save(folder / name)
            rows.append((name, number))
    return rows


def class_folders(root: Path, counts: Sequence[int] = (3, 3, 3)) -> Path:
    """A folder for each class: a_red, b_green, c_blue."""
    for number, name in enumerate(("a_red", "b_green", "c_blue")):
        own = [0, 0, 0]
        own[number] = counts[number]
        colour_images(root / name, own)
    return root


def constant_output(outputs: dict[str, np.ndarray], inputs: Sequence[Any] | None = None) -> onnx.ModelProto:
    """A model that answers every image [1, 3, 16, 16] with the same arrays."""
    given = list(inputs) if inputs is not None else [tensor("image", [1, 3, 16, 16])]
    nodes, infos, arrays = [], [], {}
    for name, value in outputs.items():
        arrays[f"{name}_value"] = value
        nodes.append(node("Identity", [f"{name}_value"], [name]))
        kind = TensorProto.FLOAT if value.dtype.kind == "f" else TensorProto.INT64
        infos.append(tensor(name, list(value.shape), kind))
    return model(nodes, given, infos, arrays)


def language_model(vocabulary: int = 16, seed: int = 0) -> onnx.ModelProto:
    """Logits [N, T, V] from the last token alone: a table."""
    table = np.random.default_rng(seed).standard_normal((vocabulary, vocabulary)).astype(np.float32)
    return model(
        [node("Gather", ["table", "input_ids"], ["logits"], axis=0)],
        [tensor("input_ids", ["N", "T"], TensorProto.INT64)],
        [tensor("logits", ["N", "T", vocabulary])],
        {"table": table},
    )


def encoder(
    vocabulary: int = 32, width: int = 6, seed: int = 1, *, scores: int | None = None
) -> onnx.ModelProto:
    """Token vectors [N, T, H] from a table; with ``scores`` the summed vectors as class scores [N, C]."""
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {"table": rng.standard_normal((vocabulary, width)).astype(np.float32)}
    nodes = [node("Gather", ["table", "input_ids"], ["hidden"], axis=0)]
    inputs = [tensor(n, ["N", "T"], TensorProto.INT64) for n in ("input_ids", "attention_mask")]
    if scores is None:
        nodes.append(node("Cast", ["attention_mask"], ["unused"], to=TensorProto.FLOAT))
        return model(nodes, inputs, [tensor("hidden", ["N", "T", width])], arrays)
    arrays["last"] = np.array([2])
    arrays["middle"] = np.array([1])
    arrays["w"] = rng.standard_normal((width, scores)).astype(np.float32)
    nodes += [
        node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        node("Unsqueeze", ["mask", "last"], ["mask3"]),
        node("Mul", ["hidden", "mask3"], ["kept"]),
        node("ReduceSum", ["kept", "middle"], ["summed"], keepdims=0),
        node("MatMul", ["summed", "w"], ["scores"]),
    ]
    return model(nodes, inputs, [tensor("scores", ["N", scores])], arrays)


WORDS = [f"w{index}" for index in range(28)]


def tokenizer(path: Path) -> Path:
    """A tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    known = {word: number for number, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(path))
    return path


def coco_file(
    path: Path, images: Sequence[tuple[str, int]], boxes: Sequence[tuple[int, int, list[float]]]
) -> Path:
    """Annotations of (image, category, box); categories 1 cat, 3 dog."""
    content = {
        "images": [{"id": number, "file_name": name, "width": 32, "height": 16} for name, number in images],
        "annotations": [
            {"id": i, "image_id": image, "category_id": category, "bbox": box}
            for i, (image, category, box) in enumerate(boxes)
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 3, "name": "dog"}],
    }
    path.write_text(json.dumps(content))
    return path
