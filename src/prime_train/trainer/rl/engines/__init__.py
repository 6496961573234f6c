"""Engines of rollouts: in this process, and vLLM."""
