"""Finds the files that ship with the package, in `registry/` and `presets/`, and the user's cache folder.

Reads and creates none of them.
"""

from __future__ import annotations

import os

# ruff: noqa: PTH100, PTH111, PTH112, PTH113, PTH118, PTH120 - paths are texts here


def shipped(*names: str) -> str:
    """The path of a file or folder below `registry/`."""
    return os.path.join(_folder("registry"), *names)


def presets_folder() -> str:
    return _folder("presets")


def shipped_workflow(name: str) -> str:
    """The path of a workflow for GitHub Actions; in a checkout the project uses the file itself."""
    inside = os.path.join(_folder("workflows"), name)
    beside = os.path.join(os.path.dirname(_folder("registry")), ".github", "workflows", name)
    return inside if os.path.isfile(inside) else beside


def _folder(name: str) -> str:
    """Inside the package in a wheel; at the top of the checkout, beside src/, in an editable install."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    inside = os.path.join(package, "_shipped", name)
    return inside if os.path.isdir(inside) else os.path.join(os.path.dirname(os.path.dirname(package)), name)


def cache_path(*names: str) -> str:
    """A path below $PRIME_TRAIN_CACHE, else below $XDG_CACHE_HOME/prime-train, else below ~/.cache/prime-train."""
    folder = os.environ.get("PRIME_TRAIN_CACHE")
    if not folder:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "prime-train")
    return os.path.join(os.path.abspath(folder), *names)


def config_path(*names: str) -> str:
    """A path below $XDG_CONFIG_HOME/prime-train, else below ~/.config/prime-train."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return os.path.join(os.path.abspath(folder), "prime-train", *names)
