"""Collects many items of evidence in parallel and writes each to a file with secrets masked."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from prime_train.core.redaction import redact
from prime_train.core.rundir import make_folder, write_atomic
from prime_train.facts.facts import NotKnown

_AT_ONCE = 8
_ITEM_S = 8.0
_TOO_LATE = "not within the time limit"
_REAP_S = 0.6  # between the deadline of a child process and the end of its thread


@dataclass(frozen=True, slots=True)
class EvidenceItem:
    """One file of evidence; `take` gets its time limit in seconds."""

    name: str
    take: Callable[[float], str | NotKnown]


class EvidenceWriter:
    """Writes items into the folder with secrets masked. An item that hangs is left to its daemon thread."""

    def __init__(self, folder: Path, hidden: tuple[str, ...]) -> None:
        self._folder = folder
        self._hidden = hidden

    def redact(self, text: str) -> str:
        return redact(text, self._hidden)

    def write_all(self, items: Sequence[EvidenceItem], give_up_s: float) -> list[str]:
        """The result of each item, in order, by `give_up_s` (monotonic) at the latest."""
        waiting: SimpleQueue[EvidenceItem | None] = SimpleQueue()
        done: SimpleQueue[tuple[str, str]] = SimpleQueue()
        for item in items:
            waiting.put(item)
        workers = min(_AT_ONCE, len(items))
        for _ in range(workers):
            waiting.put(None)
            arguments = (waiting, done, give_up_s)
            threading.Thread(target=self._work, args=arguments, name="evidence", daemon=True).start()
        results: dict[str, str] = {}
        with contextlib.suppress(Empty):
            while len(results) < len(items):
                name, result = done.get(timeout=max(0.0, give_up_s - time.monotonic()))
                results[name] = result
        return [results.get(item.name, f"{item.name}: {_TOO_LATE}") for item in items]

    def _work(
        self, waiting: SimpleQueue[EvidenceItem | None], done: SimpleQueue[tuple[str, str]], give_up_s: float
    ) -> None:
        while (item := waiting.get()) is not None:
            done.put((item.name, self._write(item, give_up_s)))

    def _write(self, item: EvidenceItem, give_up_s: float) -> str:
        left_s = min(_ITEM_S, give_up_s - time.monotonic() - _REAP_S)
        if left_s <= 0:
            return f"{item.name}: {_TOO_LATE}"
        text = item.take(left_s)
        if isinstance(text, NotKnown):
            return f"{item.name}: {self.redact(text.reason)}"
        try:
            make_folder(self._folder)
            write_atomic(self._folder / item.name, self.redact(text))
        except OSError as error:  # a full disk is often the cause of the failure
            return f"{item.name}: {error.strerror}"
        return item.name


_FRAME = re.compile(r"\s+(?P<function>\S.*?) \((?P<file>.+):(?P<line>\d+)\)\Z")
_PROCESS = re.compile(r"Process (?P<pid>\d+):")
# A rank waits inside one of these packages; the line of the program that waits is in none of them.
_LIBRARIES = frozenset(
    {"accelerate", "datasets", "deepspeed", "lightning", "numpy", "torch", "torchdata", "torchtitan", "transformers"}
    | {"triton", "trl", "vllm"}
)


def find_program_line(dump: str) -> str:
    """The innermost line of the program in the main thread, and the library function that it waits in.

    `_accumulate (prime_train/trainer/loops/step.py:96), in _engine_run_backward`; empty without a main thread.
    """
    frames = list(_main_thread(dump))
    if not frames:
        return ""
    own = next((frame for frame in frames if not _is_library(frame["file"])), frames[0])
    place = f"{own['function']} ({own['file']}:{own['line']})"
    return place if own is frames[0] else f"{place}, in {frames[0]['function']}"


def _main_thread(dump: str) -> Iterator[re.Match[str]]:
    """The frames of the main thread, innermost first. Its id is the pid; a stopped process has no thread names."""
    header = _PROCESS.match(dump)
    start = f"Thread {header['pid']} " if header else "Thread "
    within = False
    for line in dump.splitlines():
        if line.startswith("Thread "):
            within = line.startswith(start)
        elif within and (frame := _FRAME.match(line)):
            yield frame


def _is_library(file: str) -> bool:
    package = file.removeprefix("/").split("/")[0].removesuffix(".py")
    return file.startswith("<frozen") or package in _LIBRARIES or package in sys.stdlib_module_names


def format_places(places: Mapping[str, str]) -> str:
    """One line per place, the place with the fewest ranks first, because the other ranks wait for these.

    With equal counts, a place outside a library is first, because ranks that reached the collective wait in a library.
    """
    groups: dict[str, list[str]] = {}
    for process, place in places.items():
        groups.setdefault(place, []).append(process)
    ordered = sorted(groups.items(), key=lambda group: (len(group[1]), ", in " in group[0]))
    return "".join(f"{', '.join(processes)}: {place}\n" for place, processes in ordered)
