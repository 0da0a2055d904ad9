"""Small helpers of the vendored package, under their names."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.quantization._values import MODEL_SIZE_THRESHOLD as MAXIMUM_PROTOBUF
from octavo.quantization._values import find_by_name as _find_by_name

__all__ = ["MAXIMUM_PROTOBUF", "find_by_name", "logger", "simple_progress_bar", "to_numpy"]

logger = logging.getLogger("octavo.quantization")


def simple_progress_bar(total: int, i: int) -> None:
    """Log how much of the work is done; nothing is printed."""
    logger.info("%d of %d", i, total)


def find_by_name(name: str, item_list: Iterable[Any]) -> Any:
    """Return the first item of this name, or None."""
    return _find_by_name(name, item_list)


def to_numpy(data: Any) -> npt.NDArray[Any]:
    """Return an array of what a sample holds: an array, a torch tensor, or numbers."""
    if hasattr(data, "detach"):
        data = data.detach().cpu()
        if str(data.dtype) == "torch.bfloat16":
            data = data.float()
    return np.asarray(data)
