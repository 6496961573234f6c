"""Estimates what a run needs and costs: memory, time and money, as named terms and intervals. Pure."""
