"""Replacing files as a whole, for everything that writes: see :mod:`octavo.core.files`."""

from octavo.core.files import check_room, replacing, swap, sweep
from octavo.core.leftovers import new_name

__all__ = ["check_room", "new_name", "replacing", "swap", "sweep"]
