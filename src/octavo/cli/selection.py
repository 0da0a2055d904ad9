"""The flags that say what to quantize and how, shared by several verbs; the keywords they make."""

from __future__ import annotations

import argparse
from typing import Any

from octavo.errors import RecipeError

PRESET_NAMES = ("W8A8", "W8A16", "W8", "W4", "W4A16", "FP8")


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the flags to a parser; the size of weights is beside that of images (:mod:`.data`)."""
    parser.set_defaults(share=None)
    _add_nodes(parser)
    _add_types(parser)
    _add_blocks(parser)


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which nodes."""
    what = parser.add_argument_group("what to quantize")
    what.add_argument(
        "--exclude",
        metavar="PATTERN",
        action="append",
        default=[],
        help="keep these nodes in float: a name, a glob, re:…, op:TYPE, between:TENSOR,TENSOR; may be "
        "repeated",
    )
    what.add_argument(
        "--include",
        metavar="PATTERN",
        action="append",
        default=[],
        help="quantize these nodes and no others; may be repeated",
    )
    what.add_argument("--op-types", metavar="A,B", help="quantize these op types and no others")


def _add_types(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say how."""
    how = parser.add_argument_group("how")
    how.add_argument(
        "--recipe", metavar="FILE|PRESET", help=f"a YAML or JSON file, or one of {', '.join(PRESET_NAMES)}"
    )
    how.add_argument(
        "--dynamic", action="store_true", help="find activation ranges while the model runs: no data needed"
    )
    how.add_argument(
        "--compressed",
        "--stored",
        choices=("rest", "all"),
        help="store weights of float layers as int8, dequantized at load: rest, of what is not quantized; "
        "all: quantize nothing",
    )
    how.add_argument(
        "--format",
        metavar="NAME",
        help="how quantized operators are written: qdq, qoperator or integer (default: the recipe's)",
    )
    how.add_argument(
        "--target", metavar="NAME", help="what the model will run on (default: ort-cpu; see octavo targets)"
    )
    how.add_argument(
        "--weights",
        metavar="TYPE",
        help="int8, uint8, int4, uint4, int2 (in blocks), int16, uint16 or float8e4m3fn",
    )
    how.add_argument(
        "--activations", metavar="TYPE", help="such a type, or 'dynamic', or 'none' for weights only"
    )
    how.add_argument(
        "--float",
        metavar="TYPE",
        help="16-bit floats for what is not quantized: fp16, bf16 or auto; computed in where the target does"
        " that, else only stored; fp16:compute and fp16:storage say which. Alone it quantizes nothing",
    )
    how.add_argument(
        "--io",
        choices=("keep", "half", "fp16", "bf16"),
        help="the type of the model's inputs and outputs; half: that of --float (default: keep)",
    )
    how.add_argument("--per", metavar="GRANULARITY", help="scales of weights: tensor, channel or block:SIZE")
    how.add_argument(
        "--method",
        metavar="METHOD",
        help="how ranges are chosen: minmax, percentile:99.99, entropy, mse, distribution or auto",
    )
    how.add_argument(
        "--steps",
        metavar="A,B",
        help="win back accuracy: smoothquant, equalize, clip, rounding, … (see octavo steps), or none",
    )


def _add_blocks(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are about weights in blocks alone."""
    blocks = parser.add_argument_group("weights in blocks, activations in float", _COSTS)
    blocks.add_argument(
        "--algorithm",
        metavar="NAME",
        help="rtn, furthest, hqq, k-quant, importance or gptq (default: importance with"
        " --steps awq; k-quant where there is no data and the model reads no token ids)",
    )
    blocks.add_argument(
        "--symmetric",
        choices=("yes", "no"),
        help="no zero point: the range is centred on zero (default: by the type)",
    )
    blocks.add_argument(
        "--accuracy-level",
        type=int,
        metavar="N",
        help="of MatMulNBits: 4 rounds activations to 8 bits; 0 leaves them float, a little slower at 4"
        " bits, and slower than float at 2 and 8 (default: 4)",
    )
    blocks.add_argument(
        "--head", metavar="BITS", help="bits of the layer that computes the logits, or 'same' (default: 8)"
    )
    blocks.add_argument(
        "--embeddings", metavar="BITS", help="bits of lookup tables, or 'float' (default: float)"
    )
    blocks.add_argument(
        "--bits",
        type=float,
        metavar="X",
        help="on average: layers get 2, 4 or 8 bits by how far predictions move with each (needs data)",
    )
    blocks.add_argument(
        "--layer",
        metavar="PATTERN=BITS",
        action="append",
        default=[],
        help="bits of some layers, such as '*down_proj*=8' or '*=4/64' or 'NAME=float'; may be repeated",
    )


_COSTS = """\
what presets cost a small language model (SmolLM2-135M, WikiText-2; bytes as
a part of float's, KL divergence from float, speed of writing tokens):
W8: 0.25 ×, KL 0.03, 2.3 ×; W4 and W4A16: 0.33 ×, KL 0.16, 2.4 ×, with data
KL 0.08; with --embeddings 8 where the table is tied to the head 0.16 × the
bytes (docs/language_models.md)."""

_CHANGES = (
    "weights",
    "activations",
    "per",
    "symmetric",
    "algorithm",
    "accuracy_level",
    "head",
    "embeddings",
    "bits",
    "method",
    "steps",
    "format",
    "compressed",
    "float",
    "io",
)


def _pair(text: str) -> tuple[str, str]:
    pattern, sign, bits = text.rpartition("=")
    if not sign or not pattern:
        raise RecipeError(f"--layer {text!r} is not PATTERN=BITS; write for example '*down_proj*=8'.")
    return pattern, bits


def flags_of(options: argparse.Namespace) -> list[str]:
    """Return the flags that were given of those that say what to quantize and how."""
    names = ("recipe", "dynamic", *_CHANGES, "layer", "op_types", "exclude", "include")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(options, name)]
    return [*given, "--size"] if options.share is not None else given


def changes_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the flags as the keywords that change a recipe."""
    found = {name: getattr(options, name) for name in _CHANGES if getattr(options, name) is not None}
    if "format" in found:
        found["style"] = found.pop("format")
    if "float" in found:
        found["float_type"] = found.pop("float")
    if "symmetric" in found:
        found["symmetric"] = found["symmetric"] == "yes"
    if options.share is not None:
        found["size"] = options.share
    if options.layer:
        found["layers"] = dict(_pair(text) for text in options.layer)
    if options.dynamic:
        found["activations"] = "dynamic"
    if options.op_types is not None:
        found["op_types"] = options.op_types
    return {**found, "exclude": tuple(options.exclude), "include": tuple(options.include)}
