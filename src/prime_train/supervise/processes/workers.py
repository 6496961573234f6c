"""Finds the training processes that a launcher such as torchrun has started. Only reads /proc.

torchrun gives its workers 30 s after SIGTERM and then kills them, so a longer save must be asked of the workers
themselves (torch 2.13, elastic/multiprocessing/api.py). It gives each worker a session of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from prime_train.core.process_id import Identity, identify
from prime_train.registry.launchers import launchers

# What a launcher sets for each rank: torchrun, DeepSpeed, accelerate; Open MPI; Slurm; Intel MPI.
_RANK_VARIABLES = frozenset({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "MPI_LOCALRANKID"})
_PYTHON = re.compile(r"python[\d.]*|pypy[\d.]*")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish"})
_MOST_LAYERS = 12  # launchers inside each other


def list_workers(root: Identity, wrappers: Sequence[str] = ()) -> list[Identity]:
    """The training processes below `root`; `root` itself where it trains itself.

    `wrappers`: scripts whose process only starts another one. A rank is known by its environment, in which its parent
    has no rank. Without ranks, launchers and shells are followed to the programs that they run.
    """
    try:
        process = psutil.Process(root.pid)
        ranks = list(_list_ranks(process, _read_ranks(process)))
    except psutil.Error:
        return []
    found = ranks or list(_follow_launchers(process, wrappers, _MOST_LAYERS))
    identities = (identify(one.pid) for one in found)
    return [identity for identity in identities if identity is not None]


def _list_ranks(process: psutil.Process, ranks: set[str]) -> Iterator[psutil.Process]:
    """The processes below with a rank that `process` does not have, and not those below them: they are helpers."""
    for child in process.children():
        with suppress(psutil.Error):
            if _read_ranks(child) - ranks:
                yield child
            else:
                yield from _list_ranks(child, ranks)


def _read_ranks(process: psutil.Process) -> set[str]:
    return {f"{name}={value}" for name, value in process.environ().items() if name in _RANK_VARIABLES}


def _follow_launchers(process: psutil.Process, wrappers: Sequence[str], layers: int) -> Iterator[psutil.Process]:
    children: list[psutil.Process] = []
    with suppress(psutil.Error):
        if layers and is_launcher(process.cmdline(), wrappers):
            children = process.children()
    if not children:
        yield process
    for child in children:
        yield from _follow_launchers(child, wrappers, layers - 1)


def is_launcher(words: Sequence[str], wrappers: Sequence[str] = ()) -> bool:
    """Whether a command line only starts other programs."""
    if any(word in wrappers for word in words[:5]):
        return True
    module, words = _without_python(words)
    if not words:
        return False
    texts = (Path(words[0]).name, *words[1:3])
    if module or texts[0] in _SHELLS:
        return texts[0] in _SHELLS or any(module in launcher.modules for launcher in launchers())
    return any(texts[: len(name)] == name for launcher in launchers() for name in launcher.commands)


def _without_python(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """(name of the module, words from the module or script on) of a Python command line; ("", words) of another."""
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return "", words
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-m":
        at += 2 if words[at] in ("-X", "-W") else 1
    if words[at : at + 1] == ["-m"]:
        return (words[at + 1], words[at + 1 :]) if at + 1 < len(words) else ("", ())
    return "", words[at:]
