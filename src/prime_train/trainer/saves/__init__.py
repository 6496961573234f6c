"""Checkpoints and exports: written, resumed from, converted."""
