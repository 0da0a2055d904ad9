"""Fuzzing of everything that Octavo reads: see ``fuzz/README.md``."""
