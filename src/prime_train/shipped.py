"""Finds the data files that ship with the package: `registry/` (facts, each with its source) and `presets/`.

Reads none of them. Uses os.path because importing pathlib takes longer than a lint may.
"""

# ruff: noqa: PTH100, PTH112, PTH118, PTH120

from __future__ import annotations

import os


def shipped(*names: str) -> str:
    """The path of a file or folder below `registry/`."""
    return os.path.join(_folder("registry"), *names)


def presets_folder() -> str:
    return _folder("presets")


def _folder(name: str) -> str:
    """Inside the package in a wheel; at the top of the checkout, beside src/, in an editable install."""
    package = os.path.dirname(os.path.abspath(__file__))
    inside = os.path.join(package, "_shipped", name)
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(os.path.dirname(package)), name)
