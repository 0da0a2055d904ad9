"""Run the rules over a model, and repair what can be repaired without changing results."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from octavo.errors import ModelError, OutputError
from octavo.linting.findings import RULES, Finding, Lint, Severity
from octavo.linting.view import LintedModel
from octavo.model.files import io
from octavo.model.files.serialize import lowest_ir_version
from octavo.model.graph.edit import Editor
from octavo.model.graph.normalize import normalize
from octavo.model.graph.scopes import remove_unused
from octavo.model.prepare import shapes
from octavo.model.runtime import verification
from octavo.targets import Target
from octavo.targets import target as find_target

_ROUNDS = 4  # a repair may uncover another fault


def lint(
    model: io.ModelSource,
    *,
    target: str | Target = "ort-cpu",
    fix: bool = False,
    output: str | Path | None = None,
) -> Lint:
    """Find what a target rejects, computes wrongly or runs slowly in a quantized model of any tool.

    With ``fix`` (or an ``output``) the faults that can be repaired without changing results are, in a copy;
    what is left is found again. With ``output`` that copy is checked and written.
    """
    sheet = find_target(target)
    source = str(model) if isinstance(model, str | Path) else "the model in memory"
    loaded = io.load(model)
    normalize(loaded)
    shapes.infer(loaded)
    tried = _repaired(loaded, sheet) if fix or output is not None else []
    left = _findings(LintedModel(loaded, sheet))
    still = {(one.rule, one.node) for one in left if one.repair is not None}  # the repair did not help
    fixed = tuple(one for one in tried if (one.rule, one.node) not in still)
    found = Lint(loaded, source, sheet.name, left, fixed)
    if output is not None:
        if fixed:
            _check(loaded)
        found.save(output)
    return found


def _findings(view: LintedModel) -> tuple[Finding, ...]:
    """Return what all rules find, errors first; OCT602 is left out where another rule explains the node."""
    found = [one for rule in RULES.values() for one in rule.findings(view)]
    explained = {one.node for one in found if not RULES[one.rule].runs}
    kept = [one for one in found if one.rule != "OCT602" or one.node not in explained]
    return tuple(sorted(kept, key=lambda one: (list(Severity).index(one.severity), one.rule)))


def _repaired(model: ir.Model, target: Target) -> list[Finding]:
    done: list[Finding] = []
    for _ in range(_ROUNDS):
        before = len(done)
        for rule in RULES.values():
            if rule.runs:
                continue
            for finding in rule.findings(LintedModel(model, target)):
                if finding.repair is not None:
                    finding.repair(Editor(model))
                    done.append(finding)
        remove_unused(model)
        if len(done) == before:
            break
    model.ir_version = lowest_ir_version(model)
    return done


def _check(model: ir.Model) -> None:
    """Raise where a fixed model does not run: it is not written then."""
    try:
        verification.verify(model)
    except ModelError as error:
        raise OutputError(f"The fixed model failed its check and is not written: {error}") from error
