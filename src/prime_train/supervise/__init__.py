"""Starts, watches and restarts a run. docs/supervision.md has watches, causes, hangs, stops and lost machines.

The supervisor and the children of the watches take at most 64 MiB, so pydantic, HTTP and hashes are imported where the
supervisor first needs them.
"""
