"""The root config classes."""
