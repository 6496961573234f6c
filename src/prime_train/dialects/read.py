"""Reads the text of a config: a file, the name of a preset, or standard input. Judges nothing of what it says."""

from __future__ import annotations

import sys
from pathlib import Path

from prime_train import registry
from prime_train.errors import UserError

STDIN = "-"
_MAX_BYTES = 64 * 2**20  # a config is kilobytes: beyond this someone named a data file


def read_config(config: str) -> tuple[str, str]:
    """(text, path to show) of a config path, a preset's name or "-". Raises UserError where it cannot be read."""
    if config == STDIN:
        return _decoded(sys.stdin.buffer.read(), "<stdin>"), "<stdin>"
    path = Path(config)
    presets = registry.presets()
    if config in presets and not path.exists():
        path = presets[config]
    return _decoded(_content(path, config), str(path)), str(path)


def _content(path: Path, config: str) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise _unread(config, f"{path.stat().st_size} bytes are too many", "a config is a small TOML file")
        return path.read_bytes()
    except FileNotFoundError:
        known = ", ".join(registry.presets())
        raise _unread(config, "there is no such file", f"nor a preset of that name; presets: {known}") from None
    except IsADirectoryError:
        raise _unread(config, "it is a folder", "one config file is wanted") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        raise _unread(config, "it cannot be read", getattr(error, "strerror", None) or str(error)) from None


def _decoded(content: bytes, shown: str) -> str:
    """Text of UTF-8, with or without a byte order mark. Raises UserError where it is something else."""
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


def _unread(config: str, what: str, why: str) -> UserError:
    return UserError(what, where=config or '""', why=why, fix="give the path of a run.toml, or the name of a preset")
