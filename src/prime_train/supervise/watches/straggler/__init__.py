"""Finds the rank that every other rank waits for (docs/supervision.md)."""
