"""Starts, watches and restarts a run."""
