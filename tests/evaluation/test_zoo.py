"""The zoo's models score as the zoo's own evaluation says, on the same samples."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import octavo

ZOO = Path(os.environ.get("OCTAVO_ZOO_DIR") or Path(__file__).parents[3] / "shared" / "zoo")
BUILT = Path(os.environ.get("OCTAVO_ZOO") or ZOO.parents[1] / "zoo_models")
DATA = ZOO / "data"

pytestmark = [
    pytest.mark.zoo,
    pytest.mark.skipif(not (ZOO / "evaluate.py").is_file(), reason="the model zoo is not here"),
]


@pytest.fixture
def zoo(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The zoo's own evaluation, and no trace of it afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(ZOO))
    monkeypatch.setenv("OCTAVO_ZOO", str(BUILT))
    yield importlib.import_module("evaluate")
    for name in {"evaluate", "inputs", "make_models"} - before:
        sys.modules.pop(name, None)


def path_of(zoo: Any, name: str) -> Path:
    try:
        path: Path = zoo.model_path(name)
    except SystemExit:
        pytest.skip(f"{name} is not built")
    return path


@pytest.mark.parametrize(
    ("name", "samples", "figure", "place", "options"),
    [
        ("mobilenet_v2", 20, "top1", "imagenet/dev.txt", {"preprocess": "imagenet"}),
        ("efficientnet_lite0", 20, "top1", "imagenet/dev.txt", {"preprocess": "imagenet-lite"}),
        ("yolov8n", 6, "mAP", "coco/val2017", {"task": "detection"}),
        ("all_minilm_l6_v2", 40, "spearman", "stsb/dev.tsv", {"task": "similarity"}),
        ("minilm_sst2", 40, "accuracy", "sst2/dev.tsv", {"task": "text-classification", "max_length": 64}),
    ],
)
def test_figures_are_those_of_the_zoo(
    name: str, samples: int, figure: str, place: str, options: dict[str, Any], zoo: Any
) -> None:
    path = path_of(zoo, name)
    found = octavo.evaluate(path, DATA / place, samples=samples, threads=2, **options)
    want = zoo.evaluate(name, path, samples)
    assert found[figure] == pytest.approx(want[figure], abs=0.001)


def test_fashion_arrays_score_as_in_the_zoo(zoo: Any) -> None:
    path = path_of(zoo, "fashion_cnn")
    images, labels = importlib.import_module("inputs").fashion_samples("test", 300)
    found = octavo.evaluate(path, (images, labels))
    assert found["top1"] == pytest.approx(zoo.evaluate("fashion_cnn", path, 300)["accuracy"], abs=0.001)


@pytest.mark.slow
def test_perplexity_is_that_of_the_zoo(zoo: Any) -> None:
    path = path_of(zoo, "smollm2_135m")
    windows = importlib.import_module("inputs").wikitext_windows("test", 1)
    feeds = [{"input_ids": window} for window in windows]
    found = octavo.evaluate(path, feeds, "perplexity", threads=2)
    want = zoo.evaluate("smollm2_135m", path, 1)
    assert found["perplexity"] == pytest.approx(want["perplexity"], rel=0.001)
