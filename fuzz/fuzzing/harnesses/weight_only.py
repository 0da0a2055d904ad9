"""Weights in blocks: a mutated model goes through the recipe W4 and through the drop-in's two quantizers."""

from __future__ import annotations

from random import Random
from zlib import crc32

import octavo
from fuzzing import guard
from fuzzing import seeds as made
from fuzzing.mutations import models
from octavo.errors import OctavoError
from octavo.model.prepare import PrepareOptions
from octavo.quantization.matmul_bnb4_quantizer import MatMulBnb4Quantizer
from octavo.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from octavo.quantization.quant_utils import load_model_with_shape_infer

SCOPE = (
    "algorithms/weights", "planning/policies/weight_only.py", "pipeline/weights_only.py",
    "quantization/_weight_only.py", "quantization/matmul_nbits_quantizer.py",
    "quantization/matmul_bnb4_quantizer.py",
)  # fmt: skip
SECONDS = 30.0


def seeds() -> list[bytes]:
    """Small valid models."""
    return list(made.models())


def mutate(data: bytes, chance: Random) -> bytes:
    """A model with changed fields."""
    return models.mutate(data, chance)


def one(data: bytes) -> None:
    """Quantize the weights in one of the ways; a typed error leaves no file."""
    way = crc32(data) % 4
    home = guard.folder()
    source, out = home / "given.onnx", home / "made.onnx"
    out.unlink(missing_ok=True)
    source.write_bytes(data)
    try:
        if way < 2:
            options = PrepareOptions(symbolic_shapes=False)
            octavo.quantize(source, output=out, recipe=("W4", "W4A16")[way], threads=1, prepare=options)
        elif way == 2:
            quantizer = MatMulNBitsQuantizer(str(source), block_size=32)
            quantizer.process()
            quantizer.model.save_model_to_file(str(out), use_external_data_format=False)
        else:
            MatMulBnb4Quantizer(load_model_with_shape_infer(source), 0, 64).process()
    except OctavoError:
        if out.exists():
            raise guard.FindingError("write", "after an error there is still an output") from None
