"""Runs a training on machines of a cloud: job descriptions, their checks, submission and following."""
