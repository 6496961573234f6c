"""Reads the text of a config: a file, the name of a preset, or standard input. Does not parse it."""

# pathlib takes longer to import than this takes to run.
# ruff: noqa: PTH109, PTH118

from __future__ import annotations

import os
import sys

from prime_train.core.errors import UserError

STDIN = "-"
SHOWN_STDIN = "<stdin>"
_MAX_BYTES = 64 * 2**20  # a config has kilobytes; a larger file is probably a data file


def read_config(config: str) -> tuple[str, str]:
    """(text, path to show) of a config path, a preset's name or "-". Raises UserError if it cannot be read."""
    if config == STDIN:
        return _decode(sys.stdin.buffer.read(), SHOWN_STDIN), SHOWN_STDIN
    path = _preset(config) or config
    return _decode(_read_bytes(path, config), path), path


def _preset(config: str) -> str | None:
    """The file of a preset; None if there is none, or a file of that name exists."""
    if os.sep in config or os.path.lexists(config):
        return None
    from prime_train.registry import gpus

    path = gpus.presets().get(config)
    return None if path is None else str(path).removeprefix(os.path.join(os.getcwd(), ""))


def _read_bytes(path: str, config: str) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise _missing(config) from None
    except IsADirectoryError:
        raise _unreadable(config, "it is a folder", "one config file is wanted") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise _unreadable(config, "it cannot be read", getattr(error, "strerror", None) or str(error)) from None
    if len(content) > _MAX_BYTES:
        raise _unreadable(config, f"it has more than {_MAX_BYTES} bytes", "a config is a small TOML file")
    return content


def _decode(content: bytes, shown: str) -> str:
    """The text of UTF-8 bytes, with or without a byte order mark. Raises UserError for other bytes."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            what=f"byte 0x{content[error.start]:02x} is not UTF-8",
            where=f"{shown}:{line}",
            why="TOML is UTF-8 text",
            fix=f"iconv -f latin1 -t utf-8 {shown}, or save it as UTF-8",
        ) from None


def _missing(config: str) -> UserError:
    from prime_train.registry import gpus
    from prime_train.toml.did_you_mean import nearest

    known = gpus.presets()
    meant = nearest(config, known)
    if meant is None:
        return _unreadable(config, "there is no such file", f"nor a preset of that name; presets: {', '.join(known)}")
    return UserError("there is no such file", where=config, why="nor a preset of that name", fix=f"the preset {meant}?")


def _unreadable(config: str, what: str, why: str) -> UserError:
    return UserError(what, where=config or '""', why=why, fix="give the path of a run.toml, or the name of a preset")
