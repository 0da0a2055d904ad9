"""Lint: what a target rejects, computes wrongly or runs slowly in a quantized model, whoever made it.

:mod:`.rules` holds the rules, a small function each; :mod:`.view` what they look at, :mod:`.repairs` what
``--fix`` does, :mod:`.engine` the run over all of them.
"""

from octavo.linting import rules
from octavo.linting.engine import lint
from octavo.linting.findings import RULES, Finding, Lint, Severity

__all__ = ["RULES", "Finding", "Lint", "Severity", "lint", "rules"]
