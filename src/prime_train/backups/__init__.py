"""Copies of complete checkpoints in a bucket: what is there, push, pull, prune, and freeing the local disk.

docs/backups.md describes a backup. No object is overwritten with other content, so an interrupted upload is continued,
and two machines cannot damage each other's copies. A missing bucket is an error and never an empty list. For prime-rl a
backup has the step's weights and broadcast, too.
"""
