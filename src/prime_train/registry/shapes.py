"""Reads the shapes of common models from the shipped file. Judges nothing.

The file is JSON, one line per model, because lint reads it and JSON parses ten times as fast as TOML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from prime_train.core.installation import shipped


@cache
def shape_rows() -> Mapping[str, Mapping[str, Any]]:
    """Name on the Hugging Face hub -> the fields of its ModelShape that differ from their defaults."""
    with open(shipped("model_shapes.json"), "rb") as file:
        models: Mapping[str, Mapping[str, Any]] = json.load(file)["models"]
    return models


def shape_row(name: str) -> Mapping[str, Any] | None:
    """The fields of a model by its hub name, upper or lower case; None if the file does not have it."""
    found = shape_rows().get(name)
    if found is None:
        found = next((row for known, row in shape_rows().items() if known.lower() == name.lower()), None)
    return found
