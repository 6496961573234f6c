"""Checks of what was read of a model; test_broken_folders.py asks transformers about each fault."""
