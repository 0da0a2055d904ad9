"""Arrays in a folder for work in progress (:mod:`octavo.core.scratch`), for other processes of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt


def save_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Keep arrays in a file of such a folder; texts, which come as objects, become of a fixed width."""
    content: dict[str, Any] = {
        f"a{i}": array.astype(np.str_) if array.dtype.kind == "O" else array
        for i, array in enumerate(map(np.asarray, arrays.values()))
    }
    np.savez(path, names=np.array(list(arrays), dtype=np.str_), **content)


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that were kept; the format has no name for bfloat16 and keeps its two bytes."""
    with np.load(path, allow_pickle=False) as stored:
        found = {str(name): stored[f"a{i}"] for i, name in enumerate(stored["names"].tolist())}
    return {name: a.view(ml_dtypes.bfloat16) if a.dtype == "V2" else a for name, a in found.items()}
