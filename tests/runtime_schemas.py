"""The operator schemas of the installed runtime."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from onnxruntime.capi import onnxruntime_pybind11_state as state


@functools.cache
def schemas() -> Mapping[tuple[str, str], tuple[Any, ...]]:
    """Return all schemas by ``(domain, op type)``, oldest first."""
    found: dict[tuple[str, str], list[Any]] = {}
    for schema in state.get_all_operator_schema():
        domain = "" if schema.domain == "ai.onnx" else schema.domain
        found.setdefault((domain, schema.name), []).append(schema)
    return {key: tuple(sorted(entries, key=lambda s: s.since_version)) for key, entries in found.items()}
