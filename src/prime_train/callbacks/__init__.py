"""Callbacks for trainers of other projects: each reports steps through `live`, takes settings, and saves on a stop.

`run` puts them into a trainer by itself (injected/sitecustomize.py). They run in the interpreter of the training, which
may be as old as Python 3.9, so they import `live` and the trainer's own package alone.
"""
