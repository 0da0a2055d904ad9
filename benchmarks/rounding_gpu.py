"""Rounding on a GPU: the step ``rounding`` with numpy, and with CuPy or PyTorch, on the same layers.

    python benchmarks/rounding_gpu.py                          # layers of 768 × 3072 and 4096 × 4096
    python benchmarks/rounding_gpu.py --sizes 512x512 --library torch-cpu

Needs numpy and one of the two libraries, nothing else of what octavo needs. Each layer is rounded to 8 and to
4 bits: the range search, the Cholesky factor and the feedback, transfers included. The two results have to
have the same error to one in a thousand; weights on which they differ are near a tie.
"""

from __future__ import annotations

import argparse
import sys
import time
import types
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1] / "src"
CLOSE = 1e-3


def kernels() -> tuple[Any, Any, Any]:
    """The modules that round, without the rest of the package, which imports what may not be installed."""
    sys.path.insert(0, str(ROOT))
    package = types.ModuleType("octavo.algorithms")
    package.__path__ = [str(ROOT / "octavo" / "algorithms")]
    sys.modules["octavo.algorithms"] = package
    from octavo.algorithms.layers import error_feedback, weight_error
    from octavo.core import arrays

    return arrays, error_feedback, weight_error


def library(arrays: Any, name: str) -> Any:
    """The arrays of a library by name."""
    if name == "torch-cpu":
        return arrays.Torch("cpu")
    return {"cupy": arrays.Cupy, "torch": arrays.Torch, "gpu": lambda: arrays.arrays("gpu")}[name]()


def layer(outputs: int, inputs: int, seed: int = 0) -> tuple[np.ndarray, Any]:
    """Weights, and moments of inputs that go together as those of a real layer do."""
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((inputs, inputs)).astype(np.float32) * np.float32(inputs**-0.5)
    x = rng.standard_normal((2 * inputs, inputs)).astype(np.float32) @ mixing + np.float32(0.3)
    mean, square = x.mean(axis=0, dtype=np.float64)[None], (x.astype(np.float64) ** 2).mean(axis=0)[None]
    moments = types.SimpleNamespace(
        count=float(len(x)),
        mean=mean,
        square=square,
        variance=square - mean**2,
        gram=(x.T @ x / np.float32(len(x)))[None],
    )
    return rng.standard_normal((1, outputs, inputs)) * 0.05, moments


def rounded(modules: tuple[Any, Any, Any], xp: Any, rows: np.ndarray, moments: Any, top: int) -> Any:
    """A layer rounded with one library, and the seconds that it took."""
    _, feedback, errors = modules
    scale = (np.abs(rows).max(axis=2, keepdims=True) / top).astype(np.float32).astype(np.float64)
    grid = feedback.Grid(scale, np.zeros_like(scale), -top, top)
    began = time.perf_counter()
    error = errors.WeightError.of(moments, 0.02, xp, factor=True)
    found = errors.rounded_rows(rows, grid, error, np.zeros_like(scale), together=False)
    return found, time.perf_counter() - began


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="768x3072,4096x4096", metavar="OUTxIN,…")
    parser.add_argument("--library", choices=("gpu", "cupy", "torch", "torch-cpu"), default="gpu")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    modules = kernels()
    try:
        xp = library(modules[0], arguments.library)
    except Exception as error:
        print(f"{arguments.library} can't be used here: {error}", file=sys.stderr)
        return 2
    print(f"{'layer':>12s} bits  numpy s  {xp.name} s  faster  error/plain  same weights  verdict")
    bad = 0
    for size in arguments.sizes.split(","):
        outputs, inputs = map(int, size.split("x"))
        rows, moments = layer(outputs, inputs)
        rounded(modules, xp, rows, moments, 127)  # compiles kernels
        for bits, top in ((8, 127), (4, 7)):
            host, host_s = rounded(modules, modules[0].HOST, rows, moments, top)
            other, other_s = rounded(modules, xp, rows, moments, top)
            off = abs(other.after.sum() / host.after.sum() - 1)
            same = float(np.mean(np.abs(other.stored - host.stored) < 1e-6))
            bad += off > CLOSE
            print(
                f"{size:>12s} {bits:4d} {host_s:8.2f} {other_s:7.3f} {host_s / other_s:6.1f} ×"
                f" {host.after.sum() / host.before.sum():12.3f} {100 * same:12.2f} %"
                f"  {'same' if off <= CLOSE else f'off by {off:.2g}'}",
                flush=True,
            )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
