"""Estimates the cost of a run, with interruptions, and ranks offers. Pure."""
