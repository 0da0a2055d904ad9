"""What stands behind a weight: the initializer, and how it is turned."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from octavo.model import query


def weight_of(value: ir.Value | None) -> tuple[ir.Value, tuple[int, ...] | None] | None:
    """The initializer behind a weight, and the permutation of a Transpose between the two (tied weights)."""
    while value is not None:
        producer = value.producer()
        if producer is None:
            return (value, None) if query.constant(value) is not None else None
        if query.is_op(producer, "Identity"):
            value = producer.inputs[0]
            continue
        if query.is_op(producer, "Transpose") and query.constant(producer.inputs[0]) is not None:
            source = weight_of(producer.inputs[0])
            rank = query.rank(producer.inputs[0]) or 0
            perm = query.attribute(producer, "perm", None) or tuple(reversed(range(rank)))
            if source is None or source[1] is not None or sorted(perm) != list(range(rank)):
                return None
            return source[0], tuple(perm)
        return None
    return None


def size_of(value: ir.Value) -> int:
    """How many values an initializer holds."""
    tensor = query.constant(value)
    return int(np.prod(tensor.shape.numpy(), dtype=np.int64)) if tensor is not None else 0
