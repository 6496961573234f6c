"""Estimates the time of a step, of its rollouts and of a run. Pure."""
