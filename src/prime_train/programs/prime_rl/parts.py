"""Names the parts of prime-rl among a launcher's children. Only reads /proc; starts and ends nothing."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from prime_train.core.process_id import Identity, identify
from prime_train.programs.prime_rl.layout import COPY

LAUNCHER = "launcher"
INFERENCE = "inference"
TAIL = "tail"  # shows a log, and is no part
_PREFIXES = ("PRIME-RL::", "PRL::")  # of the titles from setproctitle, in 2026-08 and later
_ENV_SERVER = "env server"
# configs/envs/train/wordle.json in 2026-08, configs/env_server_train_wordle.toml in 2026-05.
_CONFIG = re.compile(r"(?:/envs/(?:train|eval)/|env_server_(?:train|eval)_)(.+)\.\w+\Z")


@dataclass(frozen=True, slots=True)
class Part:
    """A process that the launcher has started, and its kind: "inference", "env server NAME", "other"."""

    identity: Identity
    name: str

    @property
    def is_server(self) -> bool:
        """Whether it serves the other parts, so that it must not end before them."""
        return self.name == INFERENCE or self.name.startswith(_ENV_SERVER)


def list_parts(guard: Identity) -> list[Part] | None:
    """The living children of the launcher. None if the launcher itself, the guard's first child, is gone.

    Orphans become children of the guard too; they are no parts any more.
    """
    launchers = (
        [pid for pid in _list_children(guard.pid) if name_part(_read_command(pid)) == LAUNCHER] if guard.alive else []
    )
    if not launchers:
        return None
    found = []
    for pid in _list_children(launchers[0]):
        identity = identify(pid)
        if identity is not None and identity.alive:
            found.append(Part(identity, name_part(_read_command(pid))))
    return found


def name_part(command: list[str]) -> str:
    """The part that a command line belongs to. A part may replace its whole command line by a title."""
    if command and Path(command[-1]).name == COPY:
        return LAUNCHER
    line = " ".join(command)
    prefix = next((prefix for prefix in _PREFIXES if line.startswith(prefix)), None)
    if prefix is not None:
        title = line.removeprefix(prefix).lower().replace("_", "").replace("-", "")
        titled = ((LAUNCHER, LAUNCHER), ("infer", INFERENCE), ("env", _ENV_SERVER))
        return next((part for word, part in titled if title.startswith(word)), "other")
    # After an interpreter or `uv run`; or a module, by its last name.
    programs = [Path(word).name.rpartition(".")[2] for word in command[:4]]
    if "tail" in programs or any(word.startswith("tail ") for word in command[:3]):
        return TAIL
    if INFERENCE in programs:
        return INFERENCE
    if "env-server" in programs or "env_server" in programs:
        config = _CONFIG.search(command[-1])
        return f"{_ENV_SERVER} {config[1]}" if config else _ENV_SERVER
    return "other"


def _list_children(pid: int) -> list[int]:
    """Direct children. Source: proc_pid_task_tid_list_children(5)."""
    own = Path(f"/proc/{pid}/task/{pid}/children")
    if not own.exists():  # a kernel without CONFIG_PROC_CHILDREN
        with contextlib.suppress(psutil.Error):
            return [child.pid for child in psutil.Process(pid).children()]
        return []
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError):
        for thread in os.scandir(f"/proc/{pid}/task"):  # a child belongs to the thread that started it
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += map(int, Path(thread.path, "children").read_text(encoding="ascii").split())
    return found


def _read_command(pid: int) -> list[str]:
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [word.decode("utf-8", "replace") for word in raw.split(b"\0") if word]
