"""A small set of images with known objects, and a detector for them that is made, not trained.

Each image is 64 × 64 with a few squares of pure red, green or blue, one of which may lie in each cell of an
8 × 8 grid. The detector looks at each cell: how much of each colour it holds, and nothing else.
Its output has the form of YOLOv8: ``[1, 4 + classes, cells]`` with centre, width and height of each box.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper

SIDE, CELL, CLASSES = 64, 8, ("red", "green", "blue")


def write_images(folder: Path, count: int, seed: int) -> Path:
    """Write PNG images, and beside their folder their annotations in COCO's format; returns the latter."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    images, boxes = [], []
    for number in range(1, count + 1):
        pixels = rng.integers(0, 40, (SIDE, SIDE, 3), dtype=np.uint8)
        for cell in rng.choice((SIDE // CELL) ** 2, 5, replace=False):
            y, x = divmod(int(cell), SIDE // CELL)
            colour = int(rng.integers(len(CLASSES)))
            pixels[y * CELL : (y + 1) * CELL, x * CELL : (x + 1) * CELL, colour] = 230
            boxes.append(
                {
                    "id": len(boxes) + 1,
                    "image_id": number,
                    "category_id": colour + 1,
                    "bbox": [x * CELL, y * CELL, CELL, CELL],
                    "area": CELL * CELL,
                    "iscrowd": 0,
                }
            )
        images.append({"id": number, "file_name": f"{number:06d}.png", "width": SIDE, "height": SIDE})
        Image.fromarray(pixels).save(folder / f"{number:06d}.png")
    categories = [{"id": i + 1, "name": name} for i, name in enumerate(CLASSES)]
    path = folder.parent / f"{folder.name}.json"
    path.write_text(json.dumps({"images": images, "annotations": boxes, "categories": categories}))
    return path


def write_detector(path: Path) -> None:
    """The detector: a mean over each cell, a steep Sigmoid, and boxes that are the cells themselves."""
    side = SIDE // CELL
    hidden = 16
    rng = np.random.default_rng(0)
    spread = rng.normal(size=(hidden, len(CLASSES)))
    mean = np.ones((1, 1, CELL, CELL)) / CELL**2
    first = (spread[:, :, None, None] * mean).astype(np.float32)
    second = (24 * np.linalg.pinv(spread))[:, :, None, None].astype(np.float32)
    y, x = np.divmod(np.arange(side * side), side)
    boxes = np.stack([x * CELL + CELL / 2, y * CELL + CELL / 2, np.full(len(x), CELL), np.full(len(x), CELL)])
    weights = {
        "mean": first,
        "mean_bias": np.zeros(hidden, np.float32),
        "colour": second,
        "colour_bias": np.full(len(CLASSES), -12, np.float32),
        "boxes": boxes[None].astype(np.float32),
        "cells": np.array([1, len(CLASSES), side * side]),
    }
    nodes = [
        helper.make_node("Conv", ["image", "mean", "mean_bias"], ["means"], "means", strides=[CELL, CELL]),
        helper.make_node("Conv", ["means", "colour", "colour_bias"], ["logits"], "logits"),
        helper.make_node("Sigmoid", ["logits"], ["chances"], "chances"),
        helper.make_node("Reshape", ["chances", "cells"], ["scores"], "scores"),
        helper.make_node("Concat", ["boxes", "scores"], ["output"], "output", axis=1),
    ]
    shapes = ([1, 3, SIDE, SIDE], [1, 4 + len(CLASSES), side * side])
    image, output = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
        for name, shape in zip(("image", "output"), shapes, strict=True)
    )
    graph = helper.make_graph(
        nodes, "cells", [image], [output], [numpy_helper.from_array(v, k) for k, v in weights.items()]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
