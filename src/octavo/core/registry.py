"""Registries: a table of names with one line ``module:attribute`` for each thing that can be added.

The module is imported when the entry is used, so that a registry costs nothing to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def load_entry(package: str, entry: str) -> Any:
    """Return the attribute that the line ``module:attribute`` names, of a module of the package."""
    module, _, attribute = entry.partition(":")
    return getattr(import_module(f"{package}.{module}"), attribute)
