"""The presets: the user's own in an XDG folder, and those that ship with the package. Writes nothing.

A user's preset stands before a shipped one with its name, which is then reached as `shipped:NAME`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from prime_train.core import outside
from prime_train.core.errors import UserError
from prime_train.core.installation import config_path
from prime_train.core.outside import CONFIG_BYTES
from prime_train.registry import gpus

SHIPPED = "shipped:"
_SUFFIX = ".toml"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,100}")
_MOST_FILES = 1000  # more are no presets


class Preset(NamedTuple):
    """A preset by the name that commands take. `shadows`: a shipped one has the same name."""

    name: str
    path: Path
    is_users: bool = False
    shadows: bool = False


def users_folder() -> Path:
    """$XDG_CONFIG_HOME/prime-train/presets, else ~/.config/prime-train/presets. It need not exist."""
    return Path(config_path("presets"))


def list_presets() -> dict[str, Preset]:
    """Every preset by its name: the user's, then the shipped ones."""
    shipped = gpus.presets()
    own = {name: Preset(name, path, is_users=True, shadows=name in shipped) for name, path in _users()}
    others = (Preset(SHIPPED + name if name in own else name, path) for name, path in shipped.items())
    return own | {preset.name: preset for preset in others}


def find_preset(name: str) -> Preset | None:
    """The preset with a name; `shipped:NAME` is always a shipped one."""
    if name.startswith(SHIPPED):
        path = gpus.presets().get(name.removeprefix(SHIPPED))
        return None if path is None else Preset(name, path)
    return list_presets().get(name)


def read_preset(preset: Preset) -> str:
    """The text. Raises UserError for a user's file that is no preset: a link, too large, no UTF-8."""
    within = users_folder() if preset.is_users else None
    try:
        return outside.read_text(preset.path, CONFIG_BYTES, within)
    except UnicodeDecodeError as error:
        raise _unusable(preset, f"byte {error.start + 1} is not UTF-8", "a config is UTF-8 text") from None
    except outside.OutsideError as error:
        raise _unusable(preset, str(error), error.why) from None
    except OSError as error:
        raise _unusable(preset, "it cannot be read", (error.strerror or str(error)).lower()) from None


def _unusable(preset: Preset, what: str, why: str) -> UserError:
    instead = f", or take the shipped one: {SHIPPED}{preset.name}" if preset.shadows else ""
    return UserError(what, str(preset.path), why, f"put a regular file there, or remove it{instead}")


def _users() -> Iterator[tuple[str, Path]]:
    """Names and paths in the user's folder. What may not be listed, or has no plain name, is no preset."""
    try:
        with os.scandir(users_folder()) as entries:
            names = sorted(entry.name for entry in islice(entries, _MOST_FILES) if entry.name.endswith(_SUFFIX))
    except OSError:
        return
    for name in names:
        stem = name.removesuffix(_SUFFIX)
        if _NAME.fullmatch(stem):
            yield stem, users_folder() / name
