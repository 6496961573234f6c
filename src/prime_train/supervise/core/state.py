"""The State of a run as frozen values, which grow with the attempts and not with the steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeVar

from prime_train.core.machines import find_machine
from prime_train.events import (
    AlarmRaised,
    CommandAccepted,
    GpuTested,
    HangFound,
    InstabilityFound,
    Measured,
    Record,
    Sampled,
    TrainerFailed,
    TrainerStarted,
)
from prime_train.spec import ENDLESS_STEPS
from prime_train.supervise.watches.hang.silence_limits import Learned

Value = TypeVar("Value")

STOP_COMMAND = "prime-train stop"
POLICY = "policy"  # who makes the changes that no person accepts
CPU = "cpu"  # stands for a GPU in the tests of a machine without one
ASKERS = ("SIG", STOP_COMMAND)  # how StopAsked.by begins, unless an alarm pauses the run


def evolve(value: Value, **changes: object) -> Value:
    """dataclasses.replace for the values of this module, twenty times faster because a day has a million events.

    It copies the dictionary of the value at once, so these classes have no slots. It calls no __init__, so it must not
    be used for a class that checks its values there.
    """
    fields = vars(value)
    new = object.__new__(type(value))
    vars(new).update(fields, **changes)
    if len(vars(new)) != len(fields):
        unknown = ", ".join(sorted(changes.keys() - fields.keys()))
        raise TypeError(f"{type(value).__name__} has no {unknown}")
    return new


RunState = Literal["starting", "running", "recovering", "paused", "stopped", "finished", "failed"]


@dataclass(frozen=True)
class AttemptState:
    """One start of the trainer. `outcome` is empty while it runs; times are seconds since the epoch."""

    number: int
    resume_step: int = 0
    rejected: tuple[str, ...] = ()
    launched_s: float | None = None
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
    cause_id: str = ""  # the signature or the alarm that names the cause
    retry: str = ""  # by the signature: "no" | "after_fix" | "yes"; "" = the cause class decides
    fruitful: bool = False  # it wrote a new complete checkpoint, or served for long
    knows_step: bool = True  # `resume_step` is known

    def describe_origin(self, checkpoint: str = "step") -> str:
        """The place it started from. `checkpoint`: the words before the number."""
        if self.resume_step:
            return f"{checkpoint} {self.resume_step:,}"
        return "the beginning" if self.knows_step else "a step that is not known"


@dataclass(frozen=True, slots=True)
class ChildProcess:
    """A process of the live attempt; `start_ticks` distinguishes it from a later process with the same pid."""

    role: str
    pid: int
    start_ticks: int
    log: str


@dataclass(frozen=True)
class Sent:
    """A signal or a request to the live attempt: "stop_requested", "SIGABRT", "SIGTERM" or "SIGKILL"."""

    signal: str
    time_s: float


@dataclass(frozen=True)
class TrainerExit:
    """The end that the trainer itself reported."""

    outcome: Literal["finished", "stopped", "failed"]
    time_s: float
    step: int
    note: str = ""  # what is not known about it


@dataclass(frozen=True)
class ActiveAlarm:
    """An alarm that is raised and not cleared."""

    alarm: AlarmRaised
    since_s: float

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.alarm.watch, self.alarm.name, self.alarm.subject)


@dataclass(frozen=True)
class PendingKill:
    """The hang or the alarm for which the supervisor ends an attempt."""

    found: HangFound | AlarmRaised
    since_s: float
    evidence: bool = False  # the evidence is written

    @property
    def reason(self) -> str:
        return "it hangs" if isinstance(self.found, HangFound) else self.found.what


@dataclass(frozen=True)
class OpenCommand:
    """A person's command that is accepted and not answered yet."""

    accepted: CommandAccepted
    attempt: int  # the newest one at that time
    is_sent: bool = False  # the trainer was asked, or the test was begun


@dataclass(frozen=True)
class Halt:
    """The live attempt ends with a save, and the run does not: it pauses, or goes on with another attempt at once."""

    by: str
    since_s: float
    launches: bool = False  # the next attempt follows


@dataclass(frozen=True)
class Live:
    """The attempt that has not ended: what its Attempt does not hold."""

    number: int
    last_sign_s: float  # time of the latest event of the trainer; before the first one, time of the launch
    roles: tuple[str, ...] = ("trainer",)
    services: tuple[str, ...] = ()
    ready: tuple[str, ...] = ()  # services that answer requests
    ready_s: float | None = None  # since when all services answer
    # Which silence is normal depends on the phase: a load takes minutes, a step seconds.
    phase: str = "start"
    phase_detail: str = ""
    listens: bool = False  # the trainer looks for the file of a stop request
    saves: bool = False  # the trainer looks for requests to save and go on
    first_progress: Record | None = None
    children: tuple[ChildProcess, ...] = ()
    sent: tuple[Sent, ...] = ()
    pending_kill: PendingKill | None = None
    excused_until_s: float = 0.0  # until then it may be silent, because its processes are seen at work
    failure: TrainerFailed | None = None  # the first one: later ones are its consequence on other ranks
    trainer_exit: TrainerExit | None = None
    freed_gpus: tuple[str, ...] = ()  # UUIDs that a drained replica has left

    @property
    def next_role(self) -> str | None:
        """The role to start next; None if all have started, or a service before it does not answer yet."""
        # Roles start in their order, so the number of children shows which have started.
        started = len(self.children)
        waits = any(role in self.services and role not in self.ready for role in self.roles[:started])
        return self.roles[started] if started < len(self.roles) and not waits else None

    @property
    def all_started(self) -> bool:
        """The trainer has started too, because it starts last."""
        return len(self.children) >= len(self.roles)

    @property
    def serves_only(self) -> bool:
        """There are services and no trainer, so silence has no meaning."""
        return set(self.roles) <= set(self.services)


@dataclass(frozen=True, slots=True)
class Validation:
    step: int
    loss: float
    tokens: int


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Mean rewards on the held-out tasks of one environment, of the first and of the latest evaluation."""

    environment: str
    first_step: int
    first_reward: float
    step: int
    reward: float


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """The last event read from one writer. `attempt`: its latest attempt; None if the writer belongs to the run."""

    writer: str
    seq: int
    attempt: int | None
    life: str = ""  # positions of two lives of a writer are not compared


@dataclass(frozen=True)
class State:
    """The state of a run. Before any event it is `State()`."""

    run: str = ""
    max_steps: int = 0
    state: RunState = "starting"
    opened_s: float | None = None  # when the latest supervisor took over
    first_opened_s: float | None = None
    supervisor_pid: int | None = None
    started: TrainerStarted | None = None  # by rank 0 of the latest attempt that started training
    step: int = 0
    loss: float | None = None
    reward: float | None = None  # mean over the rollouts of the latest step
    tokens_per_s: float | None = None
    tokens_seen: int = 0
    unit: str = "tokens"  # of what the loss counts
    progress_s: float | None = None  # time of the latest Progress
    first_validation: Validation | None = None
    last_validation: Validation | None = None
    recent_validations: tuple[Validation, ...] = ()  # a resume goes back to the last one before its checkpoint
    task_scores: tuple[TaskScore, ...] = ()  # one per environment, in the order of their first evaluation
    recent_scores: tuple[TaskScore, ...] = ()  # after each evaluation
    measured: tuple[Measured, ...] = ()  # the latest MEASURES_KEPT, oldest first
    rollouts_failed: int = 0
    samples: tuple[Sampled, ...] = ()  # of the latest step that has samples
    # Bounded, because a run that is started again each minute for a month has many.
    attempts: tuple[AttemptState, ...] = ()  # the latest ATTEMPTS_KEPT, oldest first, the live one included
    live: Live | None = None
    learned: Learned = Learned()  # noqa: RUF009 - frozen; how long the trainer may be silent
    # Alarms stand in the state and not in the watches, because the policy decides by them after a restart too.
    alarms: tuple[ActiveAlarm, ...] = ()
    # A GPU that failed stays at fault, so neither another attempt nor another supervisor forgets it.
    gpu_failures: tuple[tuple[str, int], ...] = ()  # UUID and attempt: a fault of this GPU ended this attempt
    left_out: tuple[str, ...] = ()  # UUIDs of GPUs that are not used any more, and names of drained machines
    drained_s: float | None = None  # when the policy last decided to go on without a GPU
    gpu_tests: tuple[GpuTested, ...] = ()  # the latest of each GPU
    micro_batch: int | None = None  # smaller than the config's, because memory ran out
    shrunk_after: int = 0  # the attempt whose out-of-memory end led to that micro-batch
    launched: bool = False  # this supervisor has launched an attempt
    restarts: int = 0  # launches that followed a failed attempt
    fruitless: int = 0  # failed attempts in a row without a new complete checkpoint, since this supervisor took over
    best_complete: int = 0  # only a newer complete checkpoint counts as progress
    newest_complete: int = 0
    saving_step: int | None = None
    saved_s: float | None = None  # when the latest complete checkpoint was reported
    saves_s: tuple[float, ...] = ()  # time from start to marker of the latest SAVES_KEPT saves, in their order
    rejected: tuple[str, ...] = ()  # at the latest launch
    unreadable: tuple[int, ...] = ()  # complete by their manifest, but the trainer could not load them
    stop_requested_s: float | None = None
    stop_by: str = ""
    stop_saves: bool = True  # False: end it without a save
    stop_at_once: bool = False  # requested twice: do not wait for a checkpoint
    answered: tuple[str, ...] = ()  # ids of the latest ANSWERS_KEPT requests
    settings_version: int = 0  # the newest change of settings that was accepted
    settings_applied: tuple[tuple[int, int], ...] = ()  # (version, first step with its values), by any attempt
    settings_in_force: tuple[int, int] = (0, 0)  # the newest one in the latest attempt; version 0 = the config alone
    instability: InstabilityFound | None = None  # the latest
    is_proposed: bool = False  # its change waits for a person
    accepted_by: str = ""  # who makes it: POLICY, or the person who accepted it; "" = it is proposed, or over
    policy_changes: int = 0  # that the policy made itself
    commands: tuple[OpenCommand, ...] = ()  # oldest first
    halt: Halt | None = None
    go_back_to: int = 0  # the step from which the next attempt must start; 0 = the newest
    exit_code: int | None = None
    reason: str = ""
    final: str = ""
    last_event: str = ""  # as text
    last_event_s: float | None = None
    # Part of the state, so that a snapshot and the reading after it cannot disagree on what is folded.
    read: tuple[ReadPosition, ...] = ()
    damage: str = ""  # of the events, as the latest EventsDamaged reports it

    @property
    def is_endless(self) -> bool:
        """The run has no last step: a server, or a prime-rl run without max_steps."""
        return self.max_steps >= ENDLESS_STEPS

    @property
    def progress_text(self) -> str:
        """ "step 1,500 of 3,000"; "step 1,500" for an endless run."""
        return f"step {self.step:,}" + ("" if self.is_endless else f" of {self.max_steps:,}")

    @property
    def closed(self) -> bool:
        return self.exit_code is not None

    @property
    def is_paused(self) -> bool:
        """No attempt follows until a person resumes the run. The live one may still save."""
        return self.halt is not None and not self.halt.launches

    @property
    def drained_machines(self) -> tuple[str, ...]:
        return tuple(one for one in self.left_out if find_machine(one) >= 0)

    @property
    def leaves_s(self) -> float | None:
        """When the machine goes away, in seconds since the epoch; None if nothing announces that."""
        leaving = (active.alarm.deadline_s for active in self.alarms if active.alarm.answer == "leave")
        return min(leaving, default=None)

    @property
    def attempt(self) -> AttemptState | None:
        return self.attempts[-1] if self.attempts else None

    @property
    def attempt_number(self) -> int:
        return self.attempts[-1].number if self.attempts else 0


def evolve_live(state: State, **changes: object) -> State:
    assert state.live is not None
    return evolve(state, live=evolve(state.live, **changes))


def evolve_attempt(state: State, **changes: object) -> State:
    return evolve(state, attempts=(*state.attempts[:-1], evolve(state.attempts[-1], **changes)))
