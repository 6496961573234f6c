"""Finds the files of the dialect: those shipped, and the tables that the user keeps. Reads none of them.

`prime_train.registry` does the same for the rest of the program, with pathlib, whose import a lint cannot afford.
"""

# ruff: noqa: PTH100, PTH111, PTH112, PTH118, PTH120

from __future__ import annotations

import os


def shipped(*names: str) -> str:
    """The path of a file or folder below `registry/`: inside the package in a wheel, beside src/ in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    inside = os.path.join(package, "_shipped", "registry")
    home = inside if os.path.isdir(inside) else os.path.join(os.path.dirname(os.path.dirname(package)), "registry")
    return os.path.join(home, *names)


def kept(*names: str) -> str:
    """The path of a table that `schema import --keep` writes, or of their folder: beside the user's own prices."""
    base = os.environ.get("PRIME_TRAIN_CACHE")
    if not base:
        base = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "prime-train")
    return os.path.join(os.path.abspath(base), "prime_rl", *names)
