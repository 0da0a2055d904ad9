"""Quantize the Fashion-MNIST example and show what it gains: run with ``make demo``.

Prepares, calibrates on 256 images, quantizes, then evaluates the float and the int8 model on 1,000 labelled
test images and times both, taking turns so that a busy machine is unfair to neither. Writes only to ``out/``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import data
import numpy as np
import numpy.typing as npt
import onnxruntime

import octavo

Images = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

MODEL = data.HERE / "model.onnx"
OUT = data.HERE.parent.parent / "out" / "fashion_mnist"
BATCHES = (1, 32)
MOST_LOST = 1.0  # percentage points of accuracy that this demo may lose


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def accuracy(session: onnxruntime.InferenceSession, images: Images, labels: Labels) -> float:
    """Per cent of the images whose largest logit is the label's."""
    parts = [session.run(["logits"], {"image": part})[0] for part in np.split(images, 10)]
    return 100 * float((np.concatenate(parts).argmax(1) == labels).mean())


def latencies(sessions: list[onnxruntime.InferenceSession], images: Images, seconds: float) -> list[float]:
    """Median milliseconds of one call of each session; they take turns until the time is up."""
    feeds = {"image": images}
    for session in sessions:
        for _ in range(5):
            session.run(None, feeds)
    taken: list[list[float]] = [[] for _ in sessions]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[0]) < 20:
        for session, times in zip(sessions, taken, strict=True):
            start = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - start)
    return [1000 * statistics.median(times) for times in taken]


def show(rows: list[tuple[str, str, str, str]]) -> None:
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        print("  ".join([row[0].ljust(widths[0]), *(row[i].rjust(widths[i]) for i in range(1, 4))]).rstrip())


def main() -> int:
    parser = argparse.ArgumentParser(description="Quantize the Fashion-MNIST example and show what it gains.")
    parser.add_argument("--out", type=Path, default=OUT, help="folder to write to")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long to time each batch size")
    parser.add_argument("--threads", type=int, default=1, help="threads of each session")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "model.int8.onnx"

    start = time.perf_counter()
    result = octavo.quantize(MODEL, data.calibration(), effort="plain")
    result.save(path, manifest=True)
    taken = time.perf_counter() - start
    print(f"{MODEL.name} prepared, calibrated, quantized, verified and written to {path} in {taken:.1f} s\n")
    print(result.summary(), end="\n\n")

    images, labels = data.test()
    both = [open_session(MODEL, arguments.threads), open_session(path, arguments.threads)]
    right = [accuracy(session, images, labels) for session in both]
    sizes = [MODEL.stat().st_size, path.stat().st_size]
    rows = [
        ("", "float32", "int8", ""),
        (
            f"accuracy, {len(labels)} images",
            f"{right[0]:.2f} %",
            f"{right[1]:.2f} %",
            f"{right[1] - right[0]:+.2f}",
        ),
        ("size", f"{sizes[0] / 1000:.0f} kB", f"{sizes[1] / 1000:.0f} kB", f"{sizes[1] / sizes[0]:.2f} ×"),
    ]
    for batch in BATCHES:
        slow, fast = latencies(both, images[:batch], arguments.seconds)
        rows.append(
            (f"latency, batch {batch}", f"{slow:.3f} ms", f"{fast:.3f} ms", f"{slow / fast:.2f} × as fast")
        )
    show(rows)
    if right[0] - right[1] > MOST_LOST:
        print(f"\nThe int8 model lost more than {MOST_LOST} points of accuracy.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
