"""Checks of what was read of a model."""
