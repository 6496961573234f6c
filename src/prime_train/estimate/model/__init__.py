"""Describes a model: its shape, from a config.json, the registry or a run.toml. Names a missing number. Pure."""
