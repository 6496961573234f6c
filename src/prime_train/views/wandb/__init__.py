"""The mirror of a run at W&B."""
