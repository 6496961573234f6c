"""Finds the folder in which prime-train keeps a user's files: prices, prime-rl tables, tokenizers, tokenised text.

Creates nothing. Uses os.path because importing pathlib takes longer than a lint may.
"""

# ruff: noqa: PTH100, PTH111, PTH118

from __future__ import annotations

import os


def cache_path(*names: str) -> str:
    """A path below $PRIME_TRAIN_CACHE, else below $XDG_CACHE_HOME/prime-train, else below ~/.cache/prime-train."""
    folder = os.environ.get("PRIME_TRAIN_CACHE")
    if not folder:
        folder = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "prime-train")
    return os.path.join(os.path.abspath(folder), *names)
