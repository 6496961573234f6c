"""Takes many items of evidence side by side and writes each down, secrets masked. Waits for none that hangs."""

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

from prime_train.core.rundir import write_atomic
from prime_train.facts.facts import NotKnown
from prime_train.supervise.launch import environment

_AT_ONCE = 8
_ITEM_S = 8.0
_REAP_S = 0.6  # for a child that is ended at its deadline, before the thread that asked it goes on


@dataclass(frozen=True, slots=True)
class Item:
    """One thing to find out; `take` gets the seconds it may need."""

    name: str
    take: Callable[[float], str | NotKnown]


class Keep:
    """Takes items side by side and writes each, masked, into the folder. What hangs is left behind, not waited for."""

    def __init__(self, folder: Path, hidden: tuple[str, ...]) -> None:
        self._folder = folder
        self._hidden = hidden

    def redact(self, text: str) -> str:
        return environment.redact(text, self._hidden)

    def all(self, items: Sequence[Item], give_up_s: float) -> list[str]:
        """What became of each item, in their order, at `give_up_s` (monotonic) at the latest."""
        waiting: SimpleQueue[Item | None] = SimpleQueue()
        done: SimpleQueue[tuple[str, str]] = SimpleQueue()
        for item in items:
            waiting.put(item)
        workers = min(_AT_ONCE, len(items))
        for _ in range(workers):
            waiting.put(None)
            arguments = (waiting, done, give_up_s)
            threading.Thread(target=self._work, args=arguments, name="evidence", daemon=True).start()
        told: dict[str, str] = {}
        with contextlib.suppress(Empty):
            while len(told) < len(items):
                name, said = done.get(timeout=max(0.0, give_up_s - time.monotonic()))
                told[name] = said
        return [told.get(item.name, f"{item.name}: not within the time there was") for item in items]

    def _work(self, waiting: SimpleQueue[Item | None], done: SimpleQueue[tuple[str, str]], give_up_s: float) -> None:
        while (item := waiting.get()) is not None:
            done.put((item.name, self._one(item, give_up_s)))

    def _one(self, item: Item, give_up_s: float) -> str:
        left_s = min(_ITEM_S, give_up_s - time.monotonic() - _REAP_S)
        if left_s <= 0:
            return f"{item.name}: not within the time there was"
        told = item.take(left_s)
        if isinstance(told, NotKnown):
            return f"{item.name}: {self.redact(told.reason)}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write_atomic(self._folder / item.name, self.redact(told))
        except OSError as error:  # a full disk is often why evidence is looked for
            return f"{item.name}: {error.strerror}"
        return item.name


_FRAME = re.compile(r"\s+(?P<function>\S.*?) \((?P<file>.+):(?P<line>\d+)\)\Z")
_PROCESS = re.compile(r"Process (?P<pid>\d+):")
# Where a rank waits is in one of these; whose line made it wait is in none of them.
_LIBRARIES = frozenset(
    {"accelerate", "datasets", "deepspeed", "lightning", "numpy", "torch", "torchdata", "torchtitan", "transformers"}
    | {"triton", "trl", "vllm"}
)


def stands_at(dump: str) -> str:
    """The innermost line of the program itself in the main thread, and what of a library it waits in.

    `_accumulate (prime_train/trainer/step.py:96), in _engine_run_backward`; empty where there is no main thread.
    """
    frames = list(_main_thread(dump))
    if not frames:
        return ""
    own = next((frame for frame in frames if not _is_library(frame["file"])), frames[0])
    place = f"{own['function']} ({own['file']}:{own['line']})"
    return place if own is frames[0] else f"{place}, in {frames[0]['function']}"


def _main_thread(dump: str) -> Iterator[re.Match[str]]:
    """Its frames, innermost first. Its number is the process's own; of a stopped process no thread has a name."""
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


def tell(places: Mapping[str, str]) -> str:
    """One line for each place, first where the fewest ranks stand: who stands apart is whom the others wait for.

    Of as few, first who does not wait in a library, as a rank does that came to the collective.
    """
    together: dict[str, list[str]] = {}
    for who, place in places.items():
        together.setdefault(place, []).append(who)
    ordered = sorted(together.items(), key=lambda group: (len(group[1]), ", in " in group[0]))
    return "".join(f"{', '.join(who)}: {place}\n" for place, who in ordered)
