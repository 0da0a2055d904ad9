"""What is worth trying: for a target, with or without data."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.recipe import Recipe
from octavo.core.scheme import Auto, Scheme
from octavo.targets import Target

REPAIRS = ("equalize", "rounding", "bias-correction")


@dataclass(frozen=True)
class Candidate:
    """A way to quantize a model."""

    name: str
    recipe: Recipe
    idea: str


def first_round(target: Target, base: Recipe | None, *, static: bool) -> list[Candidate]:
    """What is tried on every model; with a ``base`` that is where all of them start."""
    found: list[Candidate] = []
    if static:
        plain = base if base is not None else target.static_recipe
        found.append(Candidate("static", plain, "ranges from calibration"))
        if isinstance(plain.activations, Scheme):
            closer = plain.but(activations=plain.activations.but(method=Auto()))
            found.append(
                Candidate(
                    "static, ranges by error", closer, "the method with the least error, tensor by tensor"
                )
            )
            repaired = closer.but(steps=REPAIRS)
            found.append(Candidate("static, repaired", repaired, f"the steps {', '.join(REPAIRS)}"))
    dynamic = target.dynamic_recipe
    if base is not None:
        dynamic = dynamic.but(include=base.include, exclude=base.exclude, op_types=base.op_types)
    found.append(Candidate("dynamic", dynamic, "ranges found while the model runs; matrix products alone"))
    return found


def without(candidate: Candidate, nodes: tuple[str, ...]) -> Candidate:
    """The same with some nodes left float."""
    recipe = candidate.recipe.but(exclude=(*candidate.recipe.exclude, *nodes))
    count = f"{len(nodes)} layer{'s' if len(nodes) > 1 else ''}"
    return Candidate(
        f"{candidate.name}, {count} float",
        recipe,
        f"the layers that lose most stay float: {', '.join(nodes)}",
    )
