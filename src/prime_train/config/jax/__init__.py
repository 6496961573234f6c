"""Reads Python scripts that start jax.distributed, without running them. Folders are not searched for scripts."""
