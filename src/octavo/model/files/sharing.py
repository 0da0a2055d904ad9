"""Several models beside one file of weights, in which a weight that they have in common lies once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import onnx_ir as ir

from octavo.core import files
from octavo.model.files.io import refuse_overwriting
from octavo.model.files.serialize import (
    INLINE_MOST,
    DataFiles,
    content,
    has_plain_bytes,
    tensor_digest,
    write_model,
)
from octavo.model.graph import query
from octavo.model.graph.tensors import tensor_bytes


def common_bytes(models: Sequence[ir.Model]) -> int:
    """Return the bytes of weights that models have in common, less one copy of each."""
    seen: set[bytes] = set()
    common = 0
    for model in models:
        own = {tensor_digest(tensor): tensor_bytes(tensor) for _, tensor in _weights(model)}
        common += sum(size for key, size in own.items() if key in seen)
        seen |= own.keys()
    return common


def save_together(models: Sequence[ir.Model], paths: Sequence[Path], location: str) -> None:
    """Write models into one folder, all weights into one file beside them, equal ones once."""
    data = paths[0].with_name(location)
    for model in models:
        refuse_overwriting(model, *paths, data)
    held: dict[bytes, tuple[int, int]] = {}
    with files.replacing([*paths, data]) as handles:
        for model, handle in zip(models, handles, strict=False):
            place = dict.fromkeys((name for name, _ in _weights(model)), 0)
            write_model(model, handle, DataFiles([location], handles[-1:], place, held))


def _weights(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    """The weights that can lie beside a model."""
    for name, value in query.initializers(model.graph).items():
        tensor = content(name, value)
        if tensor_bytes(tensor) >= INLINE_MOST and has_plain_bytes(tensor):
            yield name, tensor
