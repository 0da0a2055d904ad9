from __future__ import annotations

from hypothesis import settings

# A loaded machine is no failure of an example.
settings.register_profile("octavo", deadline=None)
settings.load_profile("octavo")
