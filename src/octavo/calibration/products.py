"""Products of a layer's inputs: the sum of ``x xᵀ`` over all samples, which GPTQ weighs errors by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from octavo.errors import DataError
from octavo.model.session import Feeds, Session

Array = npt.NDArray[Any]
_AT_ONCE = 1 << 30  # bytes of products held in one pass over the samples


def products(
    model: ir.Model,
    widths: Mapping[str, int],
    samples: Sequence[Feeds],
    *,
    providers: Sequence[str] | None = None,
) -> Iterator[dict[str, Array]]:
    """For each tensor of the main graph, of so many columns, its products; some tensors at a time."""
    for names in _portions(widths):
        yield _pass(model, {name: widths[name] for name in names}, samples, providers)


def _portions(widths: Mapping[str, int]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for name, width in widths.items():
        if part and size + width * width * 8 > _AT_ONCE:
            yield part
            part, size = [], 0
        part.append(name)
        size += width * width * 8
    if part:
        yield part


def _pass(
    model: ir.Model, widths: Mapping[str, int], samples: Sequence[Feeds], providers: Sequence[str] | None
) -> dict[str, Array]:
    fed = {value.name for value in model.graph.inputs}
    inner = [name for name in widths if name not in fed]
    session = Session.open(model, providers=providers, outputs=inner) if inner else None
    sums = {name: np.zeros((width, width)) for name, width in widths.items()}
    for index, sample in enumerate(samples):
        seen = {**sample, **(session.run(sample) if session is not None else {})}
        for name, width in widths.items():
            x = np.asarray(seen[name]).astype(np.float32, copy=False).reshape(-1, width)
            sums[name] += x.T @ x
            if not np.isfinite(sums[name]).all():
                raise DataError(
                    f"Sample {index} of the calibration data gives NaN or infinity at {name!r}; remove it."
                )
    return sums
