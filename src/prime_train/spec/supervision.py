"""`[prime_train]` of a config: how a run is supervised."""

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Elsewhere, Ge, Gt, Le

Positive = Annotated[int, Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """What follows a crash."""

    max_fruitless_attempts: Annotated[
        Positive, Doc("Attempts in a row that may end without a new complete checkpoint.")
    ] = 3
    backoff_s: Annotated[float, Ge(0), Doc("Wait before a restart; doubles each time.")] = 1.0
    backoff_max_s: Annotated[float, Ge(0), Doc("Longest wait before a restart.")] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """How long silence may last."""

    startup_limit_s: Annotated[float, Gt(0), Doc("Longest silence before the first step.")] = 900.0
    step_limit_s: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Longest silence between two steps; unset: learned from the steps taken.")
    ] = None
    slow_phase_limit_s: Annotated[
        Annotated[float, Gt(0)], Doc("Longest silence in evaluation, export and the wait for a checkpoint.")
    ] = 1800.0


Answer = Literal["off", "alert", "restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """What follows where a watch finds something wrong: `alert` tells it, `restart` starts another attempt."""

    gpu: Annotated[Answer, Doc("A GPU is lost, wants a reset, or counts memory errors.")] = "restart"
    engine: Annotated[Answer, Doc("vLLM generates nothing while requests wait.")] = "restart"
    hang: Annotated[Answer, Doc("The trainer is silent for longer than it ever was, and does nothing.")] = "restart"
    disk: Annotated[
        Literal["off", "alert", "pause"],
        Doc("The disk will be full before the next checkpoint; `pause` saves and ends."),
    ] = "pause"
    host: Annotated[Literal["off", "alert"], Doc("Memory that grows from save to save, open files, shared memory.")] = (
        "alert"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """What may be changed to bring a run back."""

    on_oom: Annotated[
        Literal["stop", "shrink"],
        Doc("Out of memory: end the run, or halve the micro-batch at an equal global batch (sums differ in rounding)."),
    ] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """What of the run may be deleted while it is on. The newest complete checkpoint, pinned ones and those of
    keep_every_steps never are."""

    enabled: Annotated[bool, Doc("Delete superseded checkpoints where space runs short.")] = True
    max_disk_gb: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Room that the run's own files may take, in 10^9 bytes.")
    ] = None
    max_used_ratio: Annotated[float, Gt(0), Le(1), Doc("Of the disk, by whatever files; beyond it space is freed.")] = (
        0.85
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Whom to tell of an alarm, a restart or an end, besides the console and the events."""

    command: Annotated[
        tuple[str, ...], Doc("A program and its arguments; it finds the alert as one JSON object on its input.")
    ] = ()
    webhook_env: Annotated[
        str | None,
        Doc("The environment variable that holds an https address to which the alert is posted as JSON."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What happens to checkpoints that are no longer the newest."""

    compress: Annotated[bool, Doc("Pack them without loss, in the background.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wandb:
    """A mirror of the run at Weights & Biases, kept by a process of its own (pip install 'prime-train[wandb]')."""

    project: Annotated[str | None, Doc("The project there; without one nothing is mirrored.")] = None
    entity: Annotated[str | None, Doc("The user or team it belongs to; without one the login's own.")] = None
    mode: Annotated[Literal["online", "offline"], Doc("`offline` keeps it for `wandb sync`.")] = "online"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeTrain:
    """How the run is supervised."""

    restart: Annotated[Restart, Doc("What happens after a crash.")] = Restart()
    heartbeat: Annotated[Heartbeat, Doc("When silence counts as a hang.")] = Heartbeat()
    watch: Annotated[Watches, Doc("What follows where a watch finds something wrong.")] = Watches()
    recovery: Annotated[Recovery, Doc("What may be changed to bring the run back.")] = Recovery()
    cleanup: Annotated[Cleanup, Doc("What may be deleted while it is on.")] = Cleanup()
    alerts: Annotated[Alerts, Doc("Whom to tell.")] = Alerts()
    backup: Annotated[Backup, Doc("What happens to older checkpoints.")] = Backup()
    wandb: Annotated[Wandb, Doc("Where it is shown at Weights & Biases.")] = Wandb()
    stop_grace_s: Annotated[float, Gt(0), Doc("Time the trainer gets to checkpoint before it is ended.")] = 60.0
    budget_hours: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Hours the run may take; `validate` tells where it would take longer.")
    ] = None
    budget_usd: Annotated[
        Annotated[float, Gt(0)] | None, Doc("What the run may cost; `validate` tells where it would cost more.")
    ] = None
    expected_prompt_tokens: Annotated[Positive | None, Doc("Tokens of the longest prompt."), Elsewhere()] = None
