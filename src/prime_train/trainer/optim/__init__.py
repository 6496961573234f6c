"""Optimizers beside torch's own."""
