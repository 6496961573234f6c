"""Watches the machine that a run is on."""
