"""How much ``octavo quantize`` and ``octavo.quantize`` try: the efforts, and the default where none is given.

============  ==============================================================================================
``plain``     the recipe, and nothing else: one way, checked that it runs, not compared with float
``standard``  a few ways (static with the steps of the recipe, mixed, dynamic, compressed weights), compared
              with float on samples that calibration has not seen, and timed beside it; the best is kept
``search``    the same, and layers and kinds of operators left in float wherever that may pay
============  ==============================================================================================

Where nothing is said, the effort is ``standard`` with data and ``plain`` without: what can't be compared
can't be chosen by. A call that says how to quantize (a recipe, a plan, statistics, a keyword that changes the
recipe, a model that is taken as it is, a result that is not verified) is carried out as it says: ``plain``.
"""

from __future__ import annotations

from pathlib import Path

from octavo.errors import RecipeError, closest

EFFORTS = ("plain", "standard", "search")


def effort_of(given: str | None, *, can_compare: bool, is_fixed: bool) -> str:
    """Return the effort of a call.

    ``can_compare`` says whether there is data and the target runs on this machine, ``is_fixed`` whether the
    call says how to quantize.
    """
    if given is None:
        return "standard" if can_compare and not is_fixed else "plain"
    if given not in EFFORTS:
        raise RecipeError(
            f"{given!r} is not an effort{closest(given, EFFORTS) or '.'} Known: {', '.join(EFFORTS)}."
        )
    return given


def best_path(output: str | Path) -> Path:
    """Return where a result goes that does not meet what was required of it."""
    path = Path(output)
    return path.with_name(f"{path.stem}.best{path.suffix}")
