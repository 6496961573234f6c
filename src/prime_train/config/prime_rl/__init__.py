"""Reads prime-rl's configs of every generation by tables of their legal keys."""
