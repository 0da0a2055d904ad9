"""The rules: importing this registers them."""

from octavo.linting.rules import (
    accepted,
    biases,
    half_precision,
    parameters,
    placement,
    running,
    types,
)

__all__ = ["accepted", "biases", "half_precision", "parameters", "placement", "running", "types"]
