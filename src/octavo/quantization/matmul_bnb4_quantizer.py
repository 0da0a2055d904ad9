"""Weights of matrix products as FP4 or NF4; also a command line.

``python -m octavo.quantization.matmul_bnb4_quantizer --input_model m.onnx --output_model q.onnx``
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from octavo.algorithms.weights import bnb4
from octavo.emission import bnb4 as emission
from octavo.model.files import io
from octavo.model.graph import query
from octavo.model.graph.normalize import normalize
from octavo.quantization._command import exit_code, new_output
from octavo.quantization._names import elsewhere
from octavo.quantization._streamed import StreamedModel, opened, source_of, tell
from octavo.quantization.onnx_model import ONNXModel


class MatMulBnb4Quantizer:
    """Quantizes the weights of MatMul nodes; the result is in ``model`` after ``process()``.

    A ``ModelProto`` that is given is the one that is quantized: callers go on with it.
    """

    FP4 = bnb4.FP4
    NF4 = bnb4.NF4

    def __init__(
        self,
        model: ModelProto | str,
        quant_type: int,
        block_size: int,
        nodes_to_exclude: Sequence[str] | None = None,
    ) -> None:
        bnb4.check(quant_type, block_size)
        self.model = opened(model)
        self._given = model if isinstance(model, ModelProto) else None
        self.model_path = str(model) if isinstance(model, str | os.PathLike) else None
        self.quant_type = quant_type
        self.block_size = block_size
        self.nodes_to_exclude = set(nodes_to_exclude or ())

    def bnb4_block_quant(self, fpweight: npt.ArrayLike) -> tuple[npt.NDArray[np.uint8], npt.NDArray[Any]]:
        """Packed codes and the largest magnitude of each block of a weight [K, N]."""
        found = bnb4.quantize(np.asarray(fpweight).T, self.quant_type, self.block_size)
        return found.packed, found.absmax

    def process(self) -> None:
        """Quantize; the result is in ``model``."""
        model = io.load(source_of(self.model))
        known = {node: node.name or "" for node in query.nodes(model)}
        normalize(model)
        skipped = emission.write_products(
            model,
            self.quant_type,
            self.block_size,
            lambda node: (known.get(node) or node.name or "") in self.nodes_to_exclude,
        )
        tell({known.get(node) or node.name or "": reason for node, reason in skipped.items()})
        self.model = StreamedModel(model)
        if self._given is not None:
            self._given.CopyFrom(self.model.model)
            self.model = ONNXModel(self._given)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    made = argparse.ArgumentParser(
        prog="python -m octavo.quantization.matmul_bnb4_quantizer",
        description="Quantize the weights of MatMul nodes to the 4-bit types of bitsandbytes.",
    )
    add = made.add_argument
    add("--input_model", required=True, help="the float model")
    add("--output_model", required=True, help="where to write the result; must not exist")
    add(
        "--quant_type",
        type=int,
        default=bnb4.NF4,
        choices=(bnb4.FP4, bnb4.NF4),
        help="0 FP4, 1 NF4 (default)",
    )
    add("--block_size", type=int, default=64, help="weights to a scale (default: 64)")
    add("-v", "--verbose", action="store_true", help="say what stays float, and why")
    add("--nodes_to_exclude", nargs="+", default=[], metavar="NODE", help="nodes that stay float")
    return made


def parse_args(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options of a command line."""
    return parser().parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Quantize as the arguments say, by default those of the command line."""
    args = parse_args(arguments)
    target = new_output(args)
    quantizer = MatMulBnb4Quantizer(args.input_model, args.quant_type, args.block_size, args.nodes_to_exclude)
    quantizer.process()
    quantizer.model.save_model_to_file(target, use_external_data_format=True)


__all__ = ["MatMulBnb4Quantizer", "main", "parse_args"]
__getattr__ = elsewhere(__name__)


if __name__ == "__main__":
    sys.exit(exit_code(main, parser().prog))
