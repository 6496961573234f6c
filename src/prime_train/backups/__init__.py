"""Copies of complete checkpoints in a bucket: what is there, push, pull, prune, and freeing the local disk."""
