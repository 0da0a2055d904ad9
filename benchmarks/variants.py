"""Variants of model folders: a sentence encoder, a language model and Whisper base.

::

    python benchmarks/variants.py --zoo ../shared/zoo --models $OCTAVO_ZOO [--whisper FOLDER] [--variants web]
        [--peer]

The folder of Whisper is made by ``benchmarks/models/whisper_base.py``. It is quantized on clips of the zoo's
speech, and transcribes others: two recordings of 16 kHz in pieces of nine seconds, varied in speed, level and
noise. They come without transcripts: the reference text was put together from the float model's own
transcripts, which favours float. It repeats itself; a piece begins and ends anywhere in it, so that words
missing at its ends are not counted. Two figures: wrong words as a share of those that float hears, and words
unlike float's. Two speakers are little evidence.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import sys
import tempfile
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import octavo
from octavo.data.audio.features import LogMel
from octavo.folders.beside import size_of
from octavo.folders.tasks import words
from octavo.folders.variants import VARIANTS, chosen_variants

sys.path.insert(0, str(Path(__file__).parent))
from _web_peer import PEER, peer_rows
from models import whisper_base

MAX_TOKENS = 100
SAID = (  # in every second clip, over and over
    "example application this is a pre-recorded message try pressing the record button and saying something",
    "well there's not much difference at least you know they all call me a yankee down here so much i don't"
    " hear that new jersey now though",
)
PARTS = ("encoder_model", "decoder_model", "decoder_with_past_model")
CALIBRATION = 9  # clips


def opened(path: Path) -> ort.InferenceSession:
    """A session with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def transcribed(parts: list[ort.InferenceSession], tokenizer: Path, sound: Any) -> str:
    """What three parts of Whisper hear: greedy, with a cache."""
    from tokenizers import Tokenizer

    encoder, first, later = parts
    (states,) = encoder.run(None, {"input_features": LogMel().spectrogram(sound)[None]})
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


def word_errors(found: list[str], expected: list[str], *, anywhere: bool = False) -> int:
    """The fewest edits that turn one text into the other, or into a part of it ``anywhere``."""
    row = [0] * (len(expected) + 1) if anywhere else list(range(len(expected) + 1))
    for i, word in enumerate(found, 1):
        above, row[0] = row[0], i
        for j, other in enumerate(expected, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (word != other))
    return min(row) if anywhere else row[-1]


def clips(zoo: Path) -> tuple[list[Any], list[Any]]:
    """Clips of speech to calibrate with, and others to transcribe."""
    sys.path.insert(0, str(zoo))
    more = importlib.import_module("more")
    known = itertools.islice(more.calibration("dnsmos"), CALIBRATION)
    return tuple([np.ravel(feed["input_1"]) for feed in feeds] for feeds in (known, more.test("dnsmos")))


def write_wav(path: Path, samples: Any) -> None:
    """A clip as a file of 16 bits at 16 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1), file.setsampwidth(2), file.setframerate(16000)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())


def used(result: octavo.FolderResult, source: Path, part: str, name: str) -> Path:
    """The file of a part in a variant, or in the nearest that holds."""
    tried = {one.variant.name: one for one in result.trials if one.part.stem == part}
    found = tried.get(name)
    if found is not None and not found.holds:
        found = result.nearest(found)
    if found is None or found.file is None or found.variant.is_float:
        return source / f"{part}.onnx"
    return result.output / found.file


def whisper(source: Path, zoo: Path, work: Path, variants: str, count: int) -> None:
    """Quantize Whisper on some clips, and transcribe others with every variant."""
    calibration, held_back = clips(zoo)
    sounds = work / "speech"
    sounds.mkdir()
    for number, samples in enumerate(calibration):
        write_wav(sounds / f"{number}.wav", samples)
    output = work / "whisper.out"
    result = octavo.quantize_folder(source, sounds, output=output, variants=variants, threads=1)
    print(result)
    texts: list[list[str]] = []
    for name in VARIANTS:
        paths = [used(result, source, part, name) for part in PARTS]
        if name != "fp32" and not any(one.variant.name == name for one in result.written):
            continue
        parts, started = [opened(path) for path in paths], time.process_time()
        texts_of = (transcribed(parts, source / "tokenizer.json", sound) for sound in held_back[:count])
        found = [words(text.lower().replace("there is", "there's")) for text in texts_of]
        seconds = time.process_time() - started
        texts = texts or found
        total = sum(map(len, texts))
        unlike = sum(word_errors(other, one) for one, other in zip(texts, found, strict=True))
        wrong = sum(word_errors(one, 4 * SAID[i % 2].split(), anywhere=True) for i, one in enumerate(found))
        size = sum(map(size_of, paths))
        print(
            f"{name}: {wrong} of {total} words wrong ({100 * wrong / max(total, 1):.1f} %), {unlike} unlike"
            f" float, {seconds:.1f} s, {size / 1e6:.0f} MB"
            f" ({', '.join(path.stem for path in paths)}): {' '.join(found[0])[:70]}",
            flush=True,
        )


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


def _peers(folder: Path, data: Path, work: Path, variants: str) -> Iterator[str]:
    names = [one.name for one in chosen_variants(variants) if one.name in PEER]
    work.mkdir()
    return peer_rows(folder, data, work, names)


def main() -> None:
    """Print a table for each folder."""
    parser = argparse.ArgumentParser(description="Variants of model folders.")
    parser.add_argument("--zoo", type=Path, default=Path("../shared/zoo"))
    parser.add_argument("--models", type=Path, help="where the zoo's larger models were built")
    parser.add_argument("--whisper", type=Path, help="the folder that models/whisper_base.py wrote")
    parser.add_argument("--variants", default="web")
    parser.add_argument("--peer", action="store_true", help="beside those of transformers.js' script")
    parser.add_argument("--clips", type=int, default=16, help="of speech to transcribe")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for title, folder, data in folders(given.models, given.zoo, work) if given.models else ():
            made = octavo.quantize_folder(
                folder, data, output=work / f"{title}.out", variants=given.variants, threads=1
            )
            print(f"== {title}\n{made}\n", flush=True)
            for line in _peers(folder, data, work / f"{title}.peer", given.variants) if given.peer else ():
                print(f"peer: {line}", flush=True)
        if given.whisper is not None:
            print("== whisper base")
            whisper(given.whisper, given.zoo, work, given.variants, given.clips)


if __name__ == "__main__":
    main()
