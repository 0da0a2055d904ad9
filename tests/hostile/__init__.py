"""Hostile, broken and unlucky input: for each hazard a typed error or a right result, within bounds."""
