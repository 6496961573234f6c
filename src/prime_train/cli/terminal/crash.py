"""Writes a crash file for a bug in prime-train, so that the user can report it. Shows no traceback."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
from importlib import metadata
from pathlib import Path

from prime_train import __version__
from prime_train.core.redaction import own_secrets, redact

_PACKAGES = ("typer", "rich", "pydantic", "tomli", "tree-sitter", "psutil", "torch", "matplotlib")
# Variables that affect prime-train: the file shows their values, and only the names of all others.
_SHOWN = ("PRIME_TRAIN_", "PYTHON", "CUDA_", "NVIDIA_", "TORCH_", "PYTORCH_", "NCCL_", "OMP_", "HF_", "XDG_", "LC_")
_SHOWN_NAMES = frozenset({"LANG", "TERM", "NO_COLOR", "COLUMNS", "SHELL", "VIRTUAL_ENV"})


def write(error: BaseException) -> Path:
    """Write a crash file with `error`, the versions and the redacted environment. Returns its path."""
    text = redact(_text(error), own_secrets())
    name = time.strftime("crash-%Y%m%d-%H%M%S", time.gmtime()) + f"-{os.getpid()}.log"
    # Source: XDG base directory specification 0.8, XDG_STATE_HOME.
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    for directory in (state / "prime-train", Path(tempfile.gettempdir())):
        try:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / name
            with open(
                path,
                "x",
                encoding="utf-8",
                errors="backslashreplace",
                opener=lambda name, flags: os.open(name, flags, 0o600),
            ) as file:
                file.write(text)
        except OSError:
            continue
        return path
    sys.stderr.write(text)  # no folder is writable
    return Path(os.devnull)


def _text(error: BaseException) -> str:
    sections = [
        ("command", " ".join(sys.argv)),
        ("error", "".join(traceback.format_exception(error))),
        ("versions", "\n".join(_versions())),
        ("environment", "\n".join(f"{name}={_value(name)}" for name in sorted(os.environ))),
    ]
    return "\n".join(f"--- {title}\n{text}\n" for title, text in sections)


def _versions() -> list[str]:
    lines = [f"prime-train {__version__}", f"Python {platform.python_version()}", platform.platform()]
    for package in _PACKAGES:
        try:
            lines.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{package} not installed")
    return lines


def _value(name: str) -> str:
    return os.environ[name] if name in _SHOWN_NAMES or name.startswith(_SHOWN) else "(not shown)"
