"""Takes many items of evidence side by side and writes each down, secrets masked. Waits for none that hangs."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from prime_train.facts.facts import NotKnown
from prime_train.rundir import write_atomic
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
