"""Describes a model: its shape, from a config.json, the registry or a run.toml. Pure."""
