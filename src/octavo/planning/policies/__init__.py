"""Policies: what each way of planning requests. :mod:`.policy` says what one has to do."""

from octavo.core.lazy import load_entry
from octavo.core.recipe import Placement, Recipe, Style
from octavo.planning.legality import fitted
from octavo.planning.policies.policy import Policy
from octavo.targets import Target

__all__ = ["policy_for"]


def policy_for(recipe: Recipe, target: Target) -> Policy:
    """Return the policy of a recipe's placement; raise where the target does not take what it asks for."""
    recipe = fitted(recipe, target)
    if recipe.is_weight_only:
        entry = "weight_only:WeightOnlyPolicy"
    elif recipe.placement is not Placement.LISTED:
        entry = "target:TargetPolicy"
    else:
        entry = "listed:ListedPairs" if recipe.style is Style.QDQ else "listed_integers:ListedIntegers"
    policy: Policy = load_entry(__name__, entry)(recipe, target)
    return policy
