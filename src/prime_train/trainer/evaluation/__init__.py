"""Held-out text, sets and benchmarks."""
