"""Checks whether this interpreter, which also runs the trainer, has the trainer's packages. Imports none of them."""

from __future__ import annotations

from importlib.util import find_spec

from prime_train.facts.facts import Packages

# Import names of the `train` extra in pyproject.toml.
TRAIN = ("torch", "numpy", "tokenizers", "safetensors", "pyarrow", "datasets", "transformers", "matplotlib")


def find_packages() -> Packages:
    return Packages(tuple(name for name in TRAIN if find_spec(name) is None))
