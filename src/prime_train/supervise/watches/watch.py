"""The Watch protocol, and what a watch reports. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from prime_train.checkpoints.cleanup import Kind
    from prime_train.core.process_id import Identity
    from prime_train.spec import PrimeTrain
    from prime_train.supervise.core.state import State

# What a watch requests, least urgent first. "note": shown once, in grey. "alert": sent as an alert, and the run
# continues. "test": a replica leaves the GPU in `where` for its test, and comes back if it passes.
# "drain": the run saves and goes on without the GPU in `where`, which is tested, if enough others remain.
# "pause": the trainer saves and ends, exit code 75. "restart": the attempt is ended and another one starts.
# "leave": the machine goes away at `deadline_s`; as "pause", but the save must be complete by then.
Answer = Literal["note", "alert", "test", "drain", "pause", "restart", "leave"]


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is wrong now.

    It stands as long as its watch reports it; `key` identifies it. docs/supervision.md describes what `cause_class`
    means, and which classes are retried.
    """

    watch: str  # "gpu" | "engine" | "hang" | "disk" | "host" | "preemption" | "cost" | "straggler"
    name: str  # its kind, as tests, drills and documents name it: "gpu_lost"
    subject: str  # which one: "GPU 1", "inference", a path
    answer: Answer
    cause_class: str  # of the attempt that ends by it
    what: str
    why: str
    fix: str
    where: str = ""
    deadline_s: float = 0.0  # of "leave": when the machine goes away, in seconds since the epoch
    savable: bool = True  # False: a save is not possible, so a pause ends the trainer without one

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.watch, self.name, self.subject)


class Watch(Protocol):
    """A small shell around a pure judgement: a child takes samples beside the loop, and the watch judges them."""

    name: str

    def begin(self) -> None:
        """Start to take samples. Called once, from the main thread, before the first attempt."""

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        """Everything that is wrong at `now_s` (seconds since the epoch, like the stamps of events). Never blocks."""

    def processes(self) -> tuple[Identity, ...]:
        """The processes that the watch has started. They belong to no attempt and outlive the end of one."""

    def end(self) -> None:
        """Stop taking samples and leave no process behind."""


@runtime_checkable
class LiveWatch(Watch, Protocol):
    """A watch with limits that change while the run trains."""

    def take_settings(self, settings: PrimeTrain) -> None:
        """Judge by these settings from the next look on."""


class GpuWatcher(Watch, Protocol):
    """The watch that knows the machine's GPUs."""

    @property
    def has_looked(self) -> bool:
        """Whether the GPUs are known, or will never be known."""

    def remaining(self, out: Collection[str]) -> tuple[str, ...]:
        """UUIDs of the run's GPUs except `out`, in the order of their numbers."""

    def numbers(self, uuids: Collection[str]) -> tuple[str, ...]:
        """The numbers of GPUs: "0", "3"."""


@dataclass(frozen=True, slots=True)
class Freed:
    """The result of a deletion. `failed` is empty if it was done."""

    kind: Kind
    step: int  # -1 for the rest of an interrupted deletion
    path: Path
    size_bytes: int
    reason: str
    failed: str


class DiskWatcher(Watch, Protocol):
    """The watch that deletes files that a run no longer needs."""

    def freed(self) -> list[Freed]:
        """The results of the deletions since the last call."""

    def stand_still(self) -> None:
        """Delete nothing until the next look."""


@dataclass(frozen=True, slots=True)
class RunningWatches:
    """The watches of one supervision. Two of them do more than look."""

    gpu: GpuWatcher | None = None
    disk: DiskWatcher | None = None
    others: tuple[Watch, ...] = ()

    def __iter__(self) -> Iterator[Watch]:
        yield from (watch for watch in (self.gpu, self.disk) if watch is not None)
        yield from self.others
