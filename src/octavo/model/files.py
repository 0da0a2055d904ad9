"""Replacing files as a whole, for everything that writes: see :mod:`octavo.core.files`."""

from octavo.core.files import replacing, swap

__all__ = ["replacing", "swap"]
