"""Variants of model folders: a sentence encoder, a language model and Whisper base.

::

    python benchmarks/variants.py --zoo ../shared/zoo --models $OCTAVO_ZOO [--whisper FOLDER] [--variants web]

The folder of Whisper is made by ``benchmarks/models/whisper_base.py``. Its variants transcribe a clip of 12
seconds; the words that differ from those of float are counted (word error rate with float as the reference).
One clip is little evidence: a rate of zero says that the variant works, not that it never errs.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import octavo

sys.path.insert(0, str(Path(__file__).parent))
from models import whisper_base

MAX_TOKENS = 100
PARTS = ("encoder_model", "decoder_model", "decoder_with_past_model")
SUFFIXES = {"fp32": "", "fp16": "_fp16", "q8": "_quantized", "q4": "_q4"}


def opened(path: Path) -> ort.InferenceSession:
    """A session with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def transcribed(paths: list[Path], tokenizer: Path, sound: Any) -> str:
    """What three parts of Whisper hear: greedy, with a cache."""
    from tokenizers import Tokenizer

    encoder, first, later = map(opened, paths)
    (states,) = encoder.run(None, {"input_features": whisper_base.features(sound)})
    feed = {"input_ids": np.int64([whisper_base.PROMPT]), "encoder_hidden_states": states}
    tokens: list[int] = []
    cache: dict[str, Any] = {}
    session = first
    while len(tokens) < MAX_TOKENS:
        names = [one.name for one in session.get_outputs()]
        found = dict(zip(names, session.run(None, feed), strict=True))
        token = int(found["logits"][0, -1].argmax())
        if token == whisper_base.END:
            break
        tokens.append(token)
        kept = {name: value for name, value in found.items() if name.startswith("present")}
        cache.update({name.replace("present", "past_key_values"): value for name, value in kept.items()})
        session, feed = later, {"input_ids": np.int64([[token]]), **cache}
    return str(Tokenizer.from_file(str(tokenizer)).decode(tokens)).strip()


def words(text: str) -> list[str]:
    """The words of a text, without case and punctuation."""
    return re.findall(r"[\w'-]+", text.lower())


def word_errors(expected: list[str], found: list[str]) -> float:
    """The word error rate: edits that turn one text into the other, as a share of its words."""
    row = list(range(len(found) + 1))
    for i, word in enumerate(expected, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(found, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return row[-1] / max(len(expected), 1)


def whisper(source: Path, zoo: Path, output: Path, variants: str) -> None:
    """Quantize Whisper on pieces of the clip, and transcribe the whole of it with every variant."""
    sound = np.fromfile(zoo / "data" / "speech" / "speech_16khz_f32le.pcm", np.float32)
    cuts = [(0, 64000), (0, 32000), (16000, 64000), (64000, None), (64000, 128000), (110000, None)]
    prompt = np.int64([whisper_base.PROMPT])
    data = [
        {"input_features": whisper_base.features(sound[first:last]), "decoder_input_ids": prompt}
        for first, last in cuts
    ]
    print(octavo.quantize_folder(source, data, output=output, variants=variants, threads=1))
    tokenizer = source / "tokenizer.json"
    reference = transcribed([source / f"{part}.onnx" for part in PARTS], tokenizer, sound)
    print(f"\nfloat: {reference}")
    for name, suffix in SUFFIXES.items():
        paths = [output / "onnx" / f"{part}{suffix}.onnx" for part in PARTS]
        if suffix and all(path.exists() for path in paths):
            text = transcribed(paths, tokenizer, sound)
            print(f"{name}: {100 * word_errors(words(reference), words(text)):.1f} % of words differ: {text}")


def folders(models: Path, zoo: Path, work: Path) -> Iterator[tuple[str, Path, Path]]:
    """The folders of the zoo that are there, with a configuration, and texts for them."""
    for name, kind, data in (
        ("all_minilm_l6_v2", {"model_type": "bert"}, "stsb/calib.txt"),
        (
            "smollm2_135m_kv",
            {"model_type": "llama", "bos_token_id": 1, "eos_token_id": 0},
            "wikitext2/valid.txt",
        ),
    ):
        if (models / name).is_dir():
            folder = work / name
            folder.mkdir()
            for file in (models / name).iterdir():
                (folder / file.name).symlink_to(file.resolve())
            (folder / "config.json").write_text(json.dumps(kind))
            yield name, folder, zoo / "data" / data


def main() -> None:
    """Print a table for each folder."""
    parser = argparse.ArgumentParser(description="Variants of model folders.")
    parser.add_argument("--zoo", type=Path, default=Path("../shared/zoo"))
    parser.add_argument("--models", type=Path, help="where the zoo's larger models were built")
    parser.add_argument("--whisper", type=Path, help="the folder that models/whisper_base.py wrote")
    parser.add_argument("--variants", default="web")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for title, folder, data in folders(given.models, given.zoo, work) if given.models else ():
            made = octavo.quantize_folder(
                folder, data, output=work / f"{title}.out", variants=given.variants, threads=1
            )
            print(f"== {title}\n{made}\n")
        if given.whisper is not None:
            print("== whisper base")
            whisper(given.whisper, given.zoo, work / "whisper.out", given.variants)


if __name__ == "__main__":
    main()
