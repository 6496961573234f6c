"""The Watch protocol, and what a watch reports. Looks at nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from prime_train.core.process_id import Identity
    from prime_train.supervise.state import State
    from prime_train.supervise.watches.disk.watch import Freed

# What a watch asks for, least urgent first. "note": told once, in grey. "alert": told wherever alerts go, and the run
# goes on. "pause": the trainer saves and ends, exit code 75. "restart": the attempt is ended and another one made.
Answer = Literal["note", "alert", "pause", "restart"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is wrong at present. It stands as long as its watch says it; `key` tells it from others.

    What `cause_class` means, and which classes are tried again, stands in docs/architecture.md.
    """

    watch: str  # "gpu" | "engine" | "hang" | "disk" | "host"
    name: str  # "gpu_lost": the kind, by which tests, drills and documents speak of it
    subject: str  # "GPU 1", "inference", a path: which one
    answer: Answer
    cause_class: str  # of the attempt that ends by it
    what: str
    why: str
    fix: str
    where: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.watch, self.name, self.subject)


class Watch(Protocol):
    """A small shell around a pure judgement: it has samples taken beside the loop, and judges what came in."""

    name: str

    def begin(self) -> None:
        """Start to take samples. Called once, from the main thread, before the first attempt."""

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """Everything that is wrong at `now_s` (seconds since the epoch, as events are stamped). Never blocks."""

    def processes(self) -> tuple[Identity, ...]:
        """The processes it has started, which belong to no attempt and are spared when one is swept away."""

    def end(self) -> None:
        """Stop taking samples and leave no process behind."""


class GpuWatcher(Watch, Protocol):
    """The watch that knows the machine's GPUs."""

    @property
    def has_looked(self) -> bool:
        """Which GPUs there are is known, or will not be known."""

    def remaining(self, out: Collection[str]) -> tuple[str, ...]:
        """UUIDs of the run's GPUs but for `out`, in the order of their numbers."""

    def numbers(self, uuids: Collection[str]) -> tuple[str, ...]:
        """The numbers of GPUs: "0", "3"."""


class DiskWatcher(Watch, Protocol):
    """The watch that deletes what a run does not need any more."""

    def freed(self) -> list[Freed]:
        """What was deleted, or could not be, since the last call."""

    def stand_still(self) -> None:
        """Delete nothing until the next look."""


@dataclass(frozen=True, slots=True)
class Watches:
    """The watches of one supervision. Two of them do more than look."""

    gpu: GpuWatcher | None = None
    disk: DiskWatcher | None = None
    others: tuple[Watch, ...] = ()

    def __iter__(self) -> Iterator[Watch]:
        yield from (watch for watch in (self.gpu, self.disk) if watch is not None)
        yield from self.others
