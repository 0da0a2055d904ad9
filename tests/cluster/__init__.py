"""Octavo on a Ray cluster of three nodes; ``make test-ray`` runs it."""
