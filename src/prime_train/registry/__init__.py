"""Reads the data that ships with the package into types."""
