"""Finds the shipped files of the dialect. Reads none of them.

`prime_train.registry` does the same for the rest of the program, with pathlib, whose import a lint cannot afford.
"""

# ruff: noqa: PTH100, PTH112, PTH118, PTH120

from __future__ import annotations

import os


def shipped(*names: str) -> str:
    """The path of a file or folder below `registry/`: inside the package in a wheel, beside src/ in a checkout."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    inside = os.path.join(package, "_shipped", "registry")
    home = inside if os.path.isdir(inside) else os.path.join(os.path.dirname(os.path.dirname(package)), "registry")
    return os.path.join(home, *names)
