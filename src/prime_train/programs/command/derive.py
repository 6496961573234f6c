"""Makes the run.toml that a command stands for. Reads the files that the command names, and counts devices."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from prime_train.config.command_start import CommandStart, read_command
from prime_train.facts import host
from prime_train.facts.facts import NotKnown
from prime_train.programs.command.recognise import FoundTrainer, recognise
from prime_train.programs.command.trainer import name_folder
from prime_train.toml.document import to_toml

_HASH_CHARS = 6
_LONGEST_NAME = 40


class Derived(NamedTuple):
    """The text of a run.toml, and what it rests on, in words."""

    text: str
    notes: tuple[str, ...]


def derive(argv: Sequence[str], cwd: Path, name: str | None = None) -> Derived:
    """The run.toml of a command in a folder. The same command in the same folder gives the same text.

    `name`: that of the run; None for one that is made from the command.
    """
    start = _count_devices(read_command(argv, cwd))
    found = recognise(start, cwd)
    folder = name_folder(found.profile, start, cwd) if found is not None else ""
    lines = ["[run]", f"name = {to_toml(name or name_run(start, argv, cwd))}", 'kind = "command"', ""]
    lines += ["[command]", f"argv = {to_toml(list(argv))}", f"processes = {start.processes or 1}"]
    lines += [f"trainer = {to_toml(found.profile.name)}  # {found.because}"] if found is not None else []
    lines += ["", "[command.checkpoints]", f"dir = {to_toml(folder)}"] if folder else []
    return Derived("\n".join(lines) + "\n", tuple(_explain(start, found, cwd)))


def _count_devices(start: CommandStart) -> CommandStart:
    """With the processes of a launcher that starts one for each device of this machine, as torchrun counts them."""
    if not start.devices:
        return start
    cores = os.cpu_count()
    if start.devices == "cpu":
        return replace(start, processes=cores)
    found = host.gpus()
    gpus = None if isinstance(found, NotKnown) else len(found.devices)
    return replace(start, processes=cores if gpus == 0 and start.devices == "auto" else gpus or None)


def name_run(start: CommandStart, argv: Sequence[str], cwd: Path) -> str:
    """The name of the script, and a hash of the words and the folder: the same command continues its run."""
    digest = hashlib.sha256("\0".join((str(cwd), *argv)).encode(errors="surrogateescape")).hexdigest()
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", start.name).strip("-")[:_LONGEST_NAME] or "command"
    return f"{plain}-{digest[:_HASH_CHARS]}"


def _explain(start: CommandStart, found: FoundTrainer | None, cwd: Path) -> list[str]:
    known = f"recognised {found.profile.title}: {found.because}" if found is not None else "no profile fits the command"
    count = "not known, taken as 1" if start.processes is None else str(start.processes)
    lines = [known, f"processes: {count}" + (f", by {start.launcher}" if start.launcher else "")]
    if start.script and start.is_known(start.script) and not (cwd / start.script).exists():
        lines.append(f"{start.script} is not in {cwd}, so the command cannot start there")
    return lines
