"""Runs in a process of their own."""
