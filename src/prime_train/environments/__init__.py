"""Environments: they pose tasks, answer the model's turns and score the result. No torch."""
