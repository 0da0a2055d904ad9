"""The rules: importing this registers them."""

from octavo.linting.rules import accepted, biases, parameters, placement, running, types

__all__ = ["accepted", "biases", "parameters", "placement", "running", "types"]
