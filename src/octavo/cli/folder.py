"""``octavo quantize FOLDER``: variants of all parts of a model folder."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from octavo.cli.console import Console
from octavo.cli.data import given_flags, paths_of
from octavo.cli.requirements import NOT_MET
from octavo.cli.selection import flags_of
from octavo.cli.verb import Answer
from octavo.errors import RecipeError

_OF_FOLDERS = ("variants", "part", "max_kl", "min_cosine")
_OF_MODELS = (
    "plan", "stats", "table", "report", "card", "effort", "time_limit", "optimize", "target",
    "min_speed", "max_size", "evaluate", "evaluate_data", "evaluate_scale", "evaluate_samples", "stride",
    "batch", "preprocess", "size", "scale", "mean", "std", "layout", "classes", "offset", "annotations",
    "categories", "columns", "decoder", "numbering", "pooling", "window",
)  # fmt: skip


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Add the flags of folders."""
    group = parser.add_argument_group("where MODEL is a folder with the parts of a model")
    group.add_argument(
        "--variants",
        metavar="NAMES",
        help="web: what transformers.js loads by dtype (default); all; auto: the smallest for each part that "
        "holds and is no slower than float; or some of fp32, fp16, q8, int8, uint8, q4, q4f16, bnb4, static, "
        "q2, q2f16",
    )
    group.add_argument(
        "--part",
        metavar="PART=NAMES",
        action="append",
        help="other variants for one part, such as decoder_model_merged=q4; may be repeated",
    )
    group.add_argument(
        "--max-kl", metavar="X", type=float, help="divergence of logits (default: by the variant)"
    )
    group.add_argument(
        "--min-cosine", metavar="X", type=float, help="cosine of vectors (default: by the variant)"
    )


def refuse_folder_flags(options: argparse.Namespace) -> None:
    """Raise where a single model comes with flags of folders."""
    if given := given_flags(options, _OF_FOLDERS):
        raise RecipeError(
            f"{', '.join(given)} is about a folder with the parts of a model, and {options.model} is not a"
            " folder; leave it out."
        )


def quantize_folder(options: argparse.Namespace, console: Console) -> Answer:
    """Write the variants, and answer with one table for all of them."""
    import octavo

    if clash := [*flags_of(options), *given_flags(options, _OF_MODELS)]:
        raise RecipeError(
            f"{', '.join(clash)} is about a single model; a folder takes --variants and --part, which say how"
            " each part is quantized."
        )
    if options.output is None:
        raise RecipeError(
            f"{options.model} is a folder: variants of all models in it are written, to a new folder; say"
            " which with -o OUT. To quantize one model give the path of its .onnx file."
        )
    result = octavo.quantize_folder(
        options.model,
        _data(options.data),
        output=options.output,
        variants=options.variants or "web",
        parts=dict(_pair(text) for text in options.part or ()),
        samples=options.samples,
        tokenizer=options.tokenizer,
        max_length=options.max_length,
        column=options.column,
        labels=options.labels,
        max_drop=options.max_drop,
        max_kl=options.max_kl,
        min_cosine=options.min_cosine,
        min_sqnr=options.min_sqnr,
        threads=options.threads,
        progress=console.progress,
    )
    missed = [trial for trial in result.refused if trial.variant.name in (options.variants or "").split(",")]
    complaint = ", ".join(f"{trial.part.name} {trial.variant.name}" for trial in missed)
    return Answer(
        f"{result}\n\nwritten: {result.output}",
        {"written": [str(result.output)], **result.to_dict()},
        NOT_MET if missed else 0,
        f"requested, and not written: {complaint}" if missed else "",
    )


def _data(given: list[str] | None) -> Any:
    """What ``--data`` names: for the first part, or ``PART=DATA`` for several."""
    if given is None:
        return None
    if any(text.startswith("random:") for text in given):
        raise RecipeError(
            "Random data tells nothing about a folder; leave --data out: inputs are made up then."
        )
    pairs = [text.partition("=") for text in given]
    if all(sign and not Path(text).exists() for text, (_, sign, _) in zip(given, pairs, strict=True)):
        found = {name: data for name, _, data in pairs}
        if len(found) < len(pairs):
            raise RecipeError("--data names a part twice; give one .npz that has all its inputs.")
        return found
    return paths_of(given)


def _pair(text: str) -> tuple[str, str]:
    name, sign, variants = text.partition("=")
    if not sign or not name or not variants:
        raise RecipeError(f"--part {text!r} is not PART=NAMES; write for example decoder_model_merged=q4.")
    return name, variants
