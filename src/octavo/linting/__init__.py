"""Lint: what a target rejects, computes wrongly or runs slowly in a quantized model of any tool.

:mod:`.rules` holds the rules, a small function each; :mod:`.view` what they look at, :mod:`.repairs` what
``--fix`` does, :mod:`.linter` the run over all of them.
"""

from octavo.linting import rules
from octavo.linting.findings import RULES, Finding, Lint, Severity
from octavo.linting.linter import lint

__all__ = ["RULES", "Finding", "Lint", "Severity", "lint", "rules"]
