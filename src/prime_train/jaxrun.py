"""`python -m prime_train.jaxrun script.py` runs a JAX script as it is; its initialize is that of `prime_train.jax`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import jax

from prime_train import jax as prime_jax

USAGE = "usage: python -m prime_train.jaxrun [-m MODULE | SCRIPT.py] [ARGUMENT...]"


def main() -> None:
    words = sys.argv[1:]
    is_module = bool(words) and words[0] == "-m"
    words = words[1:] if is_module else words
    if not words or words[0].startswith("-"):
        sys.exit(USAGE)
    jax.distributed.initialize = prime_jax.initialize
    sys.argv = words
    if is_module:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).resolve().parent)
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
