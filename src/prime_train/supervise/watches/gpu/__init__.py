"""Watches the GPUs of a run."""
