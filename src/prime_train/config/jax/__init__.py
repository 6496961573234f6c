"""Reads Python scripts that start jax.distributed, without running them."""
