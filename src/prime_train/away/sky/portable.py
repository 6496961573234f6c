"""Finds what a config needs from this machine, and what a machine of a cloud can fetch instead. Pure; opens no file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_LOCAL_START = ("/", "~", "./", "../", "file://")
_TEXTS = frozenset({"prompts", "system_prompt", "pattern", "command"})  # keys whose values are texts, not paths
_DEEPEST = 64


class LocalPath(NamedTuple):
    """A value of the config that names a file or folder of this machine, with its dotted key."""

    key: str
    value: str


def local_paths(values: Mapping[str, Any]) -> tuple[LocalPath, ...]:
    """Every value of a config that is a path of this machine."""
    return tuple(_local_paths(values, "", 0))


def _local_paths(value: Any, key: str, depth: int) -> Iterator[LocalPath]:
    if depth > _DEEPEST:
        return
    if isinstance(value, str):
        if value.startswith(_LOCAL_START):
            yield LocalPath(key, value)
    elif isinstance(value, Mapping):
        if value.get("kind") == "files" and isinstance(value.get("path"), str):
            yield LocalPath(f"{key}.path", value["path"])
            return
        for name, item in value.items():
            if name not in _TEXTS:
                yield from _local_paths(item, f"{key}.{name}" if key else str(name), depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _local_paths(item, key, depth + 1)


def list_downloads(run: RunSpec) -> tuple[str, ...]:
    """Names on the Hugging Face hub that the bundled trainer reads as folders, so that a job must download them."""
    if run.prime_rl is not None:
        return ()
    named = (run.model.path, run.tokenizer.path)
    return tuple(dict.fromkeys(name for name in named if name is not None and _HUB_NAME.fullmatch(name)))


def list_unreachable(run: RunSpec) -> tuple[LocalPath, ...]:
    """Folders of a run.toml that are neither absolute nor names on the hub."""
    if run.prime_rl is not None:
        return ()
    named = (("model.path", run.model.path), ("tokenizer.path", run.tokenizer.path))
    return tuple(LocalPath(key, name) for key, name in named if name is not None and not _HUB_NAME.fullmatch(name))


def needs_containers(run: RunSpec) -> bool:
    """Whether an environment of the run starts containers."""
    sources = prime_rl_of(run).environments
    every = (*(sources.train or ()), *(sources.evaluate or ())) if sources is not None else ()
    return any(source.runtime == "docker" for source in every)
