"""From a recipe or known parameters to a plan, and from a plan and ranges to parameters."""

from octavo.planning.lowerings import settled as settled_lowerings
from octavo.planning.outliers import lost_weights
from octavo.planning.plan_check import check_fits
from octavo.planning.planner import build
from octavo.planning.policies import policy_for
from octavo.planning.resolve import resolve
from octavo.planning.state import Avoid

__all__ = [
    "Avoid",
    "build",
    "check_fits",
    "lost_weights",
    "policy_for",
    "resolve",
    "settled_lowerings",
]
