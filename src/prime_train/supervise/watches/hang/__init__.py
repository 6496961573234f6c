"""Watches for a trainer that makes no progress."""
