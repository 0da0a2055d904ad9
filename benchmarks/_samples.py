"""The zoo's metrics with an error bar: results sample by sample, noted while a metric is measured.

The metric functions of the zoo run as they are; taps on what they call note the result of each sample on the
way. From these the metric is computed again with one group of samples left out at a time (the delete-a-group
jackknife). Two models measured on the same samples then have a standard error of their difference ``d``::

    se² = (G - 1) / G · Σ (d_g - mean d)²        d_g = the difference without group g
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Figures, failure
from _zoo import zoo_module

GROUPS = 20

Partial = Callable[[np.ndarray], float]  # which samples to keep → the metric of these
Noted = tuple[int, Partial]  # how many samples there are, and the metric of some of them


def task_judge(payload: Figures) -> Figures:
    """The zoo's metric for one file (the float model when ``path`` is None), and its jackknife."""
    evaluate = zoo_module(payload["zoo"], "evaluate")
    name, limit = payload["model"], payload["limit"]
    path = Path(payload["path"]) if payload["path"] else evaluate.model_path(name)
    try:
        evaluate.session(path)
    except Exception as error:
        raise failure("does not load", error) from error
    start = time.perf_counter()
    try:
        with tapped(evaluate, name, limit) as noted:
            metrics = evaluate.evaluate(name, path, limit)
        samples = noted()
    except Exception as error:
        raise failure("does not run", error) from error
    return {
        "metrics": metrics,
        "jackknife": jackknife(*samples) if samples is not None else None,
        "eval_s": time.perf_counter() - start,
        "path": str(path),
    }


def jackknife(count: int, partial: Partial) -> list[float] | None:
    """The metric without each of the groups; every so many-th sample is in the same group."""
    groups = min(GROUPS, count)
    if groups < 2:
        return None
    member = np.arange(count) % groups
    return [partial(member != group) for group in range(groups)]


def standard_error(one: Sequence[float] | None, other: Sequence[float] | None) -> float | None:
    """The standard error of the difference of two metrics, from their jackknives."""
    if one is None or other is None or len(one) != len(other):
        return None
    difference = np.asarray(one) - np.asarray(other)
    groups = len(difference)
    return float(np.sqrt((groups - 1) / groups * np.square(difference - difference.mean()).sum()))


# ------------------------------------------------------------------------------------------ taps


@contextlib.contextmanager
def tapped(evaluate: Any, name: str, limit: int | None) -> Iterator[Callable[[], Noted | None]]:
    """Note what each sample gives while the metric of a model is measured."""
    kind = {"coco": _detection, "sts": _similarity, "perplexity": _likelihood, "text_recognition": _reading}
    metric = evaluate.METRICS[name].__name__
    labels = _labels(evaluate, name, limit)
    if labels is not None:
        with _answers(evaluate, labels) as noted:
            yield noted
    elif metric in kind:
        with kind[metric](evaluate, name, limit) as noted:
            yield noted
    else:
        yield lambda: None


@contextlib.contextmanager
def _instead(owner: Any, attribute: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """An attribute replaced by something made of it, for a while."""
    known = getattr(owner, attribute)
    setattr(owner, attribute, make(known))
    try:
        yield
    finally:
        setattr(owner, attribute, known)


class _Session:
    """A session that shows each feed with its outputs to a function."""

    def __init__(self, session: Any, show: Callable[[Any, Any], None]) -> None:
        self._session, self._show = session, show

    def run(self, names: Any, feed: Any) -> Any:
        found = self._session.run(names, feed)
        self._show(feed, found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


def _labels(evaluate: Any, name: str, limit: int | None) -> list[int] | None:
    """The classes of a classifier's samples, in the order in which the metric goes through them."""
    inputs, metric = evaluate.inputs, evaluate.METRICS[name].__name__
    if metric == "imagenet":
        return [label for _, label in inputs.imagenet_rows("dev", limit)]
    if metric == "fashion":
        return [int(label) for label in inputs.fashion_samples("test", limit)[1]]
    if metric == "sst2":
        rows = sorted(inputs.sst2_rows()[:limit], key=lambda row: len(row[0]))
        return [label for _, label in rows]
    if metric == "file_types":
        config = json.loads((evaluate.model_path(name).parent / "config.min.json").read_text())
        space = config["target_labels_space"]
        return [space.index(label) for _, label in inputs.filetype_rows("test")[:limit]]
    return None


@contextlib.contextmanager
def _answers(evaluate: Any, labels: Sequence[int]) -> Iterator[Callable[[], Noted]]:
    guesses: list[np.ndarray] = []

    def show(_: Any, outputs: Any) -> None:
        guesses.append(outputs[0].argmax(1))

    def noted() -> Noted:
        right = np.concatenate(guesses) == np.asarray(labels)
        return len(right), lambda keep: float(right[keep].mean())

    with _instead(evaluate, "session", lambda known: lambda path: _Session(known(path), show)):
        yield noted


@contextlib.contextmanager
def _similarity(evaluate: Any, name: str, limit: int | None) -> Iterator[Callable[[], Noted]]:
    from scipy.stats import spearmanr

    sides: list[np.ndarray] = []

    def noting(known: Any) -> Any:
        def vectors(*given: Any) -> np.ndarray:
            sides.append(known(*given))
            return sides[-1]

        return vectors

    def noted() -> Noted:
        alike = (sides[0] * sides[1]).sum(1)
        wanted = np.array([row[2] for row in evaluate.inputs.sts_rows()[:limit]])
        return len(wanted), lambda keep: float(spearmanr(alike[keep], wanted[keep])[0])

    with _instead(evaluate, "sentence_vectors", noting):
        yield noted


@contextlib.contextmanager
def _likelihood(evaluate: Any, name: str, limit: int | None) -> Iterator[Callable[[], Noted]]:
    windows: list[float] = []

    def show(feed: Any, outputs: Any) -> None:
        targets = feed["input_ids"][0, 1:]
        total = 0.0
        for place, logits in enumerate(outputs[0][0, :-1]):
            top = float(logits.max())
            total += top + float(np.log(np.exp(logits - top).sum())) - float(logits[targets[place]])
        windows.append(total / len(targets))

    def noted() -> Noted:
        each = np.array(windows)
        return len(each), lambda keep: float(np.exp(each[keep].mean()))

    with _instead(evaluate, "session", lambda known: lambda path: _Session(known(path), show)):
        yield noted


@contextlib.contextmanager
def _reading(evaluate: Any, name: str, limit: int | None) -> Iterator[Callable[[], Noted]]:
    lines: list[tuple[int, int]] = []

    def noting(known: Any) -> Any:
        def distance(read: str, line: str) -> int:
            found: int = known(read, line)
            lines.append((found, len(line)))
            return found

        return distance

    def noted() -> Noted:
        table = np.array(lines, np.float64)
        return len(table), lambda keep: float(table[keep, 0].sum() / table[keep, 1].sum())

    with _instead(evaluate, "edit_distance", noting):
        yield noted


@contextlib.contextmanager
def _detection(evaluate: Any, name: str, limit: int | None) -> Iterator[Callable[[], Noted | None]]:
    from pycocotools import cocoeval

    runs: list[Any] = []

    def noting(known: Any) -> Any:
        class Noting(known):  # type: ignore[misc]
            def accumulate(self, p: Any = None) -> None:
                if self not in runs:
                    runs.append(self)
                super().accumulate(p)

        return Noting

    def noted() -> Noted | None:
        if not runs:
            return None
        run, images = runs[0], list(runs[0].params.imgIds)
        each = run.evalImgs  # of each class, in each range of areas, of each image

        def partial(keep: np.ndarray) -> float:
            kept = np.flatnonzero(keep)
            starts = range(0, len(each), len(images))
            run.evalImgs = [each[start + image] for start in starts for image in kept]
            run.params.imgIds = run._paramsEval.imgIds = [images[image] for image in kept]
            with contextlib.redirect_stdout(None):
                run.accumulate()
            precision = run.eval["precision"][:, :, :, 0, -1]
            return float(precision[precision > -1].mean())

        return len(images), partial

    with _instead(cocoeval, "COCOeval", noting):
        yield noted
