"""What a comparison found, as plain values: it prints as a table, and is JSON, a data frame and a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from octavo.comparison.distances import Errors
from octavo.comparison.weight_errors import WeightError
from octavo.core import codec
from octavo.core.recipe import Override, Recipe
from octavo.core.shown import Shown
from octavo.reporting.comparison_tables import comparison_line, comparison_markdown, comparison_table
from octavo.reporting.notebook import data_frame

SCHEMA = 2  # the version of what to_dict() gives


@dataclass(frozen=True)
class TensorError:
    """A tensor of the float model and its twin.

    ``local`` is the error of its operator alone, fed with float inputs; ``accumulated`` that of the whole
    quantized model up to here; ``execution`` what the runtime's optimizations change. ``clipped`` is the
    share of values outside the quantized range, ``rounding`` rounding's share of the energy lost by this
    tensor's own quantization, ``used`` the share of the range that values reach.
    """

    name: str
    twin: str
    node: str
    op_type: str
    local: Errors | None
    accumulated: Errors | None
    execution: Errors | None
    low: float
    high: float
    clipped: float | None = None
    rounding: float | None = None
    used: float | None = None


@dataclass(frozen=True)
class Change:
    """Something to do about a culprit: settings for a tensor, or nodes to keep in float."""

    text: str
    overrides: tuple[Override, ...] = ()
    exclude: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "text": self.text,
            "overrides": [codec.encode(override) for override in self.overrides],
            "exclude": list(self.exclude),
        }


@dataclass(frozen=True)
class Culprit:
    """A tensor that makes a result wrong, by how much, why, and changes that may help, the likeliest first.

    :func:`octavo.propose` carries the changes out and says what they gain.
    """

    tensor: str
    kind: str  # "weight", "activation", or "operator"
    node: str
    op_type: str
    sqnr: float
    cause: str
    text: str
    changes: tuple[Change, ...] = ()

    @property
    def change(self) -> Change:
        """Return the likeliest change; one that changes nothing where no setting of a recipe helps."""
        return self.changes[0] if self.changes else Change("no setting of a recipe concerns it")


@dataclass(frozen=True)
class OutputComparison:
    """An output of the model: against float, and optimized against unoptimized."""

    name: str
    errors: Errors | None
    execution: Errors | None
    interval: tuple[float, float] | None = None  # 95 %, of the SQNR


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The comparison of a float model with its quantized version; prints as a table."""

    float_model: str
    quantized: str
    form: str  # the form of the float model that was matched
    samples: int
    looked: int  # samples in which tensors inside the models were compared
    matched: int
    unmatched: tuple[str, ...]
    outputs: tuple[OutputComparison, ...]
    tensors: tuple[TensorError, ...]
    weights: tuple[WeightError, ...]
    culprits: tuple[Culprit, ...]
    base: Recipe  # that the model was made by
    is_recorded: bool = False  # whether the model carries that recipe; else it was read off the model
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data; docs/compare.md says what each key holds."""
        return {
            "schema": SCHEMA,
            "float_model": self.float_model,
            "quantized": self.quantized,
            "form": self.form,
            "samples": self.samples,
            "looked": self.looked,
            "matched": self.matched,
            "unmatched": list(self.unmatched),
            "outputs": [asdict(output) for output in self.outputs],
            "culprits": [_culprit(culprit) for culprit in self.culprits],
            "tensors": [asdict(tensor) for tensor in self.tensors],
            "weights": [{**asdict(weight), "rounding": weight.rounding} for weight in self.weights],
            "notes": list(self.notes),
            "recipe": self.base.to_dict(),
            "is_recorded": self.is_recorded,
        }

    def to_pandas(self) -> Any:
        """Return the tensors, in the order of the network, as a data frame."""
        return data_frame([asdict(tensor) for tensor in self.tensors])

    def table(self, top: int = 10) -> str:
        """Return the culprits and the worst tensors, as text."""
        return comparison_table(self.to_dict(), top)

    def markdown(self, top: int = 20) -> str:
        """Return the same in Markdown."""
        return comparison_markdown(self.to_dict(), top)

    def __str__(self) -> str:
        return self.table()

    def _line(self) -> str:
        return comparison_line(self.to_dict())


def combined(recipe: Recipe, changes: Sequence[Change]) -> Recipe:
    """Return a recipe with changes added."""
    overrides = {o.tensor: o for o in (*recipe.overrides, *(o for c in changes for o in c.overrides))}
    excluded = dict.fromkeys((*recipe.exclude, *(node for c in changes for node in c.exclude)))
    return recipe.but(overrides=tuple(overrides.values()), exclude=tuple(excluded))


def _culprit(culprit: Culprit) -> dict[str, Any]:
    names = ("tensor", "kind", "node", "op_type", "sqnr", "cause", "text")
    return {
        **{name: getattr(culprit, name) for name in names},
        "change": culprit.change.to_dict(),
        "changes": [change.to_dict() for change in culprit.changes],
    }
