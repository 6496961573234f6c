"""What is known of a run, as values that grow by attempts and not by steps. Folds and decides nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from prime_train.events import AlarmRaised, HangFound, Record, Sampled, TrainerFailed, TrainerStarted
from prime_train.spec import ENDLESS_STEPS
from prime_train.supervise.watches.hang.silence_limits import Learned

Value = TypeVar("Value")


def changed(value: Value, **changes: object) -> Value:
    """dataclasses.replace for the values of this module, in a quarter of its time: a day has a million events.

    It calls no __init__, so a value that checks itself there must not be changed by it.
    """
    new = object.__new__(type(value))
    for name in type(value).__slots__:  # type: ignore[attr-defined]
        object.__setattr__(new, name, changes.pop(name) if name in changes else getattr(value, name))
    if changes:
        raise TypeError(f"{type(value).__name__} has no {', '.join(changes)}")
    return new


RunState = Literal["starting", "running", "recovering", "stopped", "finished", "failed"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the trainer. `outcome` is empty while it lives; times are seconds since the epoch."""

    number: int
    resume_step: int = 0
    rejected: tuple[str, ...] = ()
    asked_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    last_step: int = 0
    outcome: str = ""  # "finished" | "stopped" | "failed"
    returncode: int | None = None
    cause_class: str = ""
    what: str = ""
    why: str = ""
    fix: str = ""
    where: str = ""
    newest_complete: int = 0  # when it ended
    cause_id: str = ""  # the signature or the alarm that told it
    retry: str = ""  # what the signature says of another try: "no" | "after_fix" | "yes"; "" = the class decides
    fruitful: bool = False  # it brought a new complete checkpoint, or served for long


@dataclass(frozen=True, slots=True)
class Child:
    """A process of the live attempt; `start_ticks` tells it from a later process of the same pid."""

    role: str
    pid: int
    start_ticks: int
    log: str


@dataclass(frozen=True, slots=True)
class Sent:
    """Something that was sent to the live attempt: "stop_requested", "SIGABRT", "SIGTERM" or "SIGKILL"."""

    signal: str
    time_s: float


@dataclass(frozen=True, slots=True)
class Word:
    """The trainer's own account of its end: "finished", "stopped" or "failed"."""

    said: Literal["finished", "stopped", "failed"]
    time_s: float
    step: int


@dataclass(frozen=True, slots=True)
class Standing:
    """An alarm that was raised and not cleared."""

    alarm: AlarmRaised
    since_s: float

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.alarm.watch, self.alarm.name, self.alarm.subject)


@dataclass(frozen=True, slots=True)
class Doom:
    """Why the supervisor ends an attempt that would not end by itself: silence, or an alarm."""

    found: HangFound | AlarmRaised
    since_s: float
    evidence: bool = False  # what can be known of it has been written down

    @property
    def reason(self) -> str:
        return "it hangs" if isinstance(self.found, HangFound) else self.found.what


@dataclass(frozen=True, slots=True)
class Live:
    """What is known of the attempt that has not ended, beyond its Attempt."""

    number: int
    last_sign_s: float  # of any event of the trainer; before the first one, when it was launched
    roles: tuple[str, ...] = ("trainer",)
    services: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()  # services that answer
    ready_s: float | None = None  # since when all of them do
    phase: str = "start"
    phase_detail: str = ""
    first_progress: Record | None = None
    children: tuple[Child, ...] = ()
    sent: tuple[Sent, ...] = ()
    doom: Doom | None = None
    excused_until_s: float = 0.0  # silent, but seen at work
    failure: TrainerFailed | None = None  # the first in time: later ones are its echo on other ranks
    word: Word | None = None

    @property
    def next_role(self) -> str | None:
        """The role to start next; None where all have started, or a service before it does not answer yet."""
        started = len(self.children)
        waits = any(role in self.services and role not in self.ready for role in self.roles[:started])
        return self.roles[started] if started < len(self.roles) and not waits else None

    @property
    def all_started(self) -> bool:
        """Whoever trains is among them: it starts last."""
        return len(self.children) >= len(self.roles)

    @property
    def serves_only(self) -> bool:
        """There is no trainer, whose silence would mean anything."""
        return set(self.roles) <= set(self.services)


@dataclass(frozen=True, slots=True)
class Validation:
    step: int
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a writer has been read. `attempt`: the latest it spoke for, None for one that speaks for the run."""

    writer: str
    seq: int
    attempt: int | None


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a run. The value before any event is `State()`."""

    run: str = ""
    max_steps: int = 0
    state: RunState = "starting"
    opened_s: float | None = None  # when the latest supervisor took over
    first_opened_s: float | None = None
    supervisor_pid: int | None = None
    started: TrainerStarted | None = None  # rank 0 of the latest attempt that got that far
    step: int = 0
    loss: float | None = None
    tokens_per_s: float | None = None
    tokens_seen: int = 0
    progress_s: float | None = None  # time of the latest Progress
    first_validation: Validation | None = None
    last_validation: Validation | None = None
    samples: tuple[Sampled, ...] = ()  # of the latest step that has samples
    attempts: tuple[Attempt, ...] = ()  # the latest ATTEMPTS_KEPT, oldest first, the live one included
    live: Live | None = None
    learned: Learned = Learned()  # noqa: RUF009 - frozen; how long the trainer may be silent
    alarms: tuple[Standing, ...] = ()
    gpu_failures: tuple[tuple[str, int], ...] = ()  # UUID and attempt, of each GPU for which an attempt was ended
    left_out: tuple[str, ...] = ()  # UUIDs of GPUs that are not used again
    micro_batch: int | None = None  # smaller than the config's, since memory ran out
    shrunk_after: int = 0  # the attempt whose end it answers
    launched: bool = False  # since this supervisor took over
    restarts: int = 0  # launches that followed a failed attempt
    fruitless: int = 0  # failed attempts in a row without a new complete checkpoint, since this supervisor took over
    best_complete: int = 0  # the mark a new complete checkpoint must pass to count as progress
    newest_complete: int = 0
    saving_step: int | None = None
    rejected: tuple[str, ...] = ()  # at the latest launch
    unreadable: tuple[int, ...] = ()  # complete by their manifest, yet the trainer could not load them
    stop_asked_s: float | None = None
    stop_by: str = ""
    stop_saves: bool = True  # False: end it without a save
    stop_hurried: bool = False  # asked again: do not wait for a checkpoint
    exit_code: int | None = None
    reason: str = ""
    final: str = ""
    last_event: str = ""  # in words
    last_event_s: float | None = None
    read: tuple[Mark, ...] = ()

    @property
    def is_endless(self) -> bool:
        """It has no last step: a server, or a run of prime-rl that sets none."""
        return self.max_steps >= ENDLESS_STEPS

    @property
    def stands_at(self) -> str:
        """ "step 1,500 of 3,000"; without the last step where there is none."""
        return f"step {self.step:,}" + ("" if self.is_endless else f" of {self.max_steps:,}")

    @property
    def closed(self) -> bool:
        return self.exit_code is not None

    @property
    def attempt(self) -> Attempt | None:
        """The latest attempt, live or ended."""
        return self.attempts[-1] if self.attempts else None

    @property
    def last_progress_s(self) -> float | None:
        """Time of the last sign of life of the live attempt; None where none is live."""
        return self.live.last_sign_s if self.live else None

    @property
    def attempt_number(self) -> int:
        return self.attempts[-1].number if self.attempts else 0


def lives(state: State, number: int) -> bool:
    return state.live is not None and state.live.number == number


def with_live(state: State, **changes: object) -> State:
    assert state.live is not None
    return changed(state, live=changed(state.live, **changes))


def with_attempt(state: State, **changes: object) -> State:
    return changed(state, attempts=(*state.attempts[:-1], changed(state.attempts[-1], **changes)))
