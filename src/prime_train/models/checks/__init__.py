"""Checks of what was read of a model; tests/models/test_broken_folders.py asks transformers about each fault."""
