"""Watches for a trainer that makes no progress; each event is a sign of life (docs/supervision.md)."""
