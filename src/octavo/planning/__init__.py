"""From a recipe to a plan, and from a plan and ranges to parameters."""

from octavo.planning.build import build
from octavo.planning.candidates import Avoid
from octavo.planning.fits import check_fits
from octavo.planning.outliers import lost_weights
from octavo.planning.resolve import resolve

__all__ = ["Avoid", "build", "check_fits", "lost_weights", "resolve"]
