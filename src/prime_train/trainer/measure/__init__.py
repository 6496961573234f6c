"""Metrics, spans and traces of steps."""
