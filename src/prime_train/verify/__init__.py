"""Judges whether a model can be used: checks of what is known of its files, and a verdict per use. Pure."""
