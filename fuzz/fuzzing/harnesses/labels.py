"""Labels, texts, class names and annotations: CSV, TSV, text, JSON and JSON lines."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

from fuzzing import guard
from fuzzing.mutations import raw, tree
from octavo.data.readers.text_files import lines
from octavo.errors import OctavoError
from octavo.evaluation import label_files as labels
from octavo.evaluation.detection.annotations import Annotations
from octavo.evaluation.text_samples import text_rows

SCOPE = ("evaluation/label_files.py", "evaluation/text_samples.py", "evaluation/detection/annotations.py",
         "data/readers/text_files.py")  # fmt: skip
SECONDS = 10.0

_WORDS = ("file_name", "label", "class", "id", "image_id", "category_id", "bbox", "images", "annotations",
          "categories", "name", "text", "sentence", "iscrowd", "area", "width", "height")  # fmt: skip
_TOKENS = [b",", b";", b"\t", b"\n", b"\r", b'"', b'""', b"\0", b"\xef\xbb\xbf", b"label",
           b"file_name", b"[" * 3000, b"9" * 5000, b"1e999", b"\xe2\x80\xa8"]  # fmt: skip


def seeds() -> list[bytes]:
    """One of each kind."""
    coco = {
        "images": [{"id": 1, "file_name": "a.jpg", "width": 10, "height": 8}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 3, "bbox": [1, 2, 3, 4], "area": 12, "iscrowd": 0}
        ],
        "categories": [{"id": 3, "name": "cat"}],
    }
    plain = ({"a.jpg": 1, "b.jpg": "cat"}, [1, 2], [["a", 1], ["b", 2]], [{"file_name": "a", "label": 0}],
             {"0": "cat", "1": "dog"}, ["cat", "dog"], coco)  # fmt: skip
    return [ b"file_name,label\na.jpg,1\nb.jpg,2\n", b"a.jpg;1\nb.jpg;2\n", b"a\t1\nb\t2\n",
            b"a.jpg 1\nb.jpg 2\n", b"text,label\nhello there,1\n\"quoted, text\",0\n",
            b'{"text": "hello", "label": 1}\n{"text": "x", "label": 0}\n',
            *(json.dumps(one).encode() for one in plain), ]  # fmt: skip


def mutate(data: bytes, chance: Random) -> bytes:
    """Trees and lines."""
    if data[:1] in b"{[" and chance.random() < 0.8:
        return tree.mutate_json(data, chance, _WORDS)
    return raw.mutate(data, chance, _TOKENS)


def one(data: bytes) -> None:
    """Read in every way that takes such a file."""
    home = guard.folder()
    for suffix in (*labels.SUFFIXES, ".jsonl"):
        path = home / f"labels{suffix}"
        path.write_bytes(data)
        readers = [
            lambda path=path: [labels.class_number(v, ["cat"], str(path)) for _, v in labels.entries(path)],
            lambda path=path: labels.class_names(path),
            lambda path=path: text_rows(path, 1, None, 10),
            lambda path=path: text_rows(path, 1, ("text", "label"), 10),
            lambda path=path: list(lines(path, None)),
            lambda path=path: _annotations(path),
        ]
        for read in readers:
            try:
                read()
            except OctavoError:
                continue


def _annotations(path: Path) -> None:
    found = Annotations.read(path)
    found.category_ids(None), found.category_ids(["cat", 3]), list(found.images)
