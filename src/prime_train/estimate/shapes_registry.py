"""Reads the shapes of models that people train out of the one file that ships them. Judges nothing.

JSON, one line per model: a lint reads this file, and JSON is read ten times as fast as TOML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from prime_train.shipped import shipped


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Name on the Hugging Face hub -> the fields of its ModelShape, those at their default left out."""
    with open(shipped("model_shapes.json"), "rb") as file:
        models: Mapping[str, Mapping[str, Any]] = json.load(file)["models"]
    return models


def row_of(name: str) -> Mapping[str, Any] | None:
    """The fields of a model by its name on the hub, whose case does not count there; None where there are none."""
    found = rows().get(name)
    if found is None:
        found = next((row for known, row in rows().items() if known.lower() == name.lower()), None)
    return found
