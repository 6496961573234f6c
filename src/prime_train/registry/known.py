"""Reads the shapes of common models, and what is known of environments of other projects. Judges nothing.

The shapes are JSON, one line per model, because lint reads them and JSON parses ten times as fast as TOML. A rule that
uses an environment only warns.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, NamedTuple

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


class KnownEnvironment(NamedTuple):
    """An environment that a public source describes.

    `executor` runs the code and the calls of a rollout: "local" is the environment's own process, "sandbox" a machine
    of its own, which is remote unless the config names a local runtime, "service" an API on the network.
    `prompt_tokens`: the longest prompt that the source trains with, None if it has no limit.
    """

    names: tuple[str, ...]
    turns: Literal["single", "multi"]
    tools: bool
    executor: Literal["none", "local", "sandbox", "service"]
    source: str
    as_of: str
    prompt_tokens: int | None = None

    @property
    def is_multi_turn(self) -> bool:
        return self.turns == "multi"

    @property
    def is_remote(self) -> bool:
        """Whether a rollout waits for another machine by default."""
        return self.executor in ("sandbox", "service")


def known_environment(environment_id: str) -> KnownEnvironment | None:
    """The entry of an id as configs write it: `owner/name@version`, with - or _; None if it is not listed."""
    name = environment_id.rpartition("/")[2].partition("@")[0].replace("_", "-").lower()
    return _by_name().get(name) or _by_name().get(name.removesuffix("-v1"))


@cache
def known_environments() -> tuple[KnownEnvironment, ...]:
    """In the order of the file."""
    from prime_train.registry.gpus import read_table  # here, because it loads tomli

    entries = read_table("environments.toml")["environment"]
    return tuple(KnownEnvironment(**{**entry, "names": tuple(entry["names"])}) for entry in entries)


@cache
def _by_name() -> Mapping[str, KnownEnvironment]:
    return {name: entry for entry in known_environments() for name in entry.names}
