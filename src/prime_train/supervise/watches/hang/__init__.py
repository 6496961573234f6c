"""Watches for a trainer that makes no progress; each of its events is a sign of life (docs/supervision.md)."""
