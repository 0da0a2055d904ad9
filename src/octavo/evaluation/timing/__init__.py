"""Timing: latency of models that take turns, memory, load time, size, and the runtime's profile."""
