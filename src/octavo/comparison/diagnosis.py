"""``doctor``: what will be hard about quantizing a model, said before it is done.

Structure shows without data: what is quantized already, the opset, tensors without a shape, masks, weights
that one scale can't hold. With data, so do outliers of activations, joins of different ranges and bad
samples.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from octavo import planning
from octavo.comparison import checks
from octavo.comparison.checks import ERROR, LEAST_OPSET, NOTE, WARNING, Finding
from octavo.comparison.match import prepared
from octavo.core.progress import Progress
from octavo.core.shown import Shown
from octavo.data.feeds import Data
from octavo.data.named_functions import is_named_function
from octavo.data.readers import refuse_missing
from octavo.data.readers.several_paths import matching
from octavo.errors import ModelError
from octavo.model.files import io
from octavo.model.graph import query
from octavo.reporting.comparison_tables import diagnosis_table
from octavo.targets import target as find_target

_ORDER = {ERROR: 0, WARNING: 1, NOTE: 2}


@dataclass(frozen=True, repr=False)
class Diagnosis(Shown):
    """What ``doctor`` found, the worst first; prints as a list."""

    model: str
    findings: tuple[Finding, ...]
    samples: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing stands in the way of quantizing."""
        return not any(finding.severity == ERROR for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "schema": 1,
            "model": self.model,
            "samples": self.samples,
            "is_sound": self.is_sound,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __str__(self) -> str:
        return diagnosis_table(self.model, [asdict(finding) for finding in self.findings])


def doctor(
    model: io.ModelSource,
    data: Data | None = None,
    *,
    samples: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Diagnosis:
    """Examine a float model, and calibration data for it, before quantizing."""
    raw = io.load(model)
    if isinstance(data, str | Path) and not is_named_function(data):
        for path in matching(str(data)):
            refuse_missing(path)
    name = io.describe(raw)
    found = [*checks.kind(raw), *checks.opset(raw), *checks.unused(raw)]
    try:
        query.refuse_unsupported(raw)
        ready = prepared(model, max(LEAST_OPSET, query.opset(raw)))
    except ModelError as error:
        found.append(Finding(ERROR, "model", name, str(error), "start from another model"))
        return _ordered(name, found)
    target = find_target("ort-cpu")
    plan = planning.build(ready, planning.policy_for(target.static_recipe, target))
    found += [*checks.shapes(ready), *checks.masks(ready), *checks.weights(ready, plan)]
    count = 0
    if data is not None:
        more, count = checks.with_data(ready, plan, data, samples, threads, progress)
        found += more
    return _ordered(name, found, count)


def _ordered(name: str, found: list[Finding], samples: int = 0) -> Diagnosis:
    return Diagnosis(name, tuple(sorted(found, key=lambda f: _ORDER[f.severity])), samples)
