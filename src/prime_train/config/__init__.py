"""Turns the text of a config into a RunSpec with positions and faults. Judges nothing."""
