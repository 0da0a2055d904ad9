"""Policies: what each way of planning requests. :mod:`.policy` says what one has to do."""

from octavo.core.recipe import Placement, Recipe, Style
from octavo.planning.legality import fitted
from octavo.planning.policies.listed import ListedPairs
from octavo.planning.policies.listed_integers import ListedIntegers
from octavo.planning.policies.policy import Policy
from octavo.planning.policies.target import TargetPolicy
from octavo.planning.policies.weight_only import WeightOnlyPolicy
from octavo.targets import Target

__all__ = ["policy_for"]


def policy_for(recipe: Recipe, target: Target) -> Policy:
    """Return the policy of a recipe's placement; raise where the target does not take what it asks for."""
    recipe = fitted(recipe, target)
    if recipe.is_weight_only:
        return WeightOnlyPolicy(recipe, target)
    if recipe.placement is not Placement.LISTED:
        return TargetPolicy(recipe, target)
    return ListedPairs(recipe, target) if recipe.style is Style.QDQ else ListedIntegers(recipe, target)
