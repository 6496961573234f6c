"""Judges whether a model can be used: checks of its files, and one verdict per use. Pure."""
