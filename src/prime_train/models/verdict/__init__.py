"""The verdict on a model."""
