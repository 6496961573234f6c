"""[prime_train]: the supervision of the run. Values only; as run.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from prime_train.spec.annotations import Doc, Elsewhere, Ge, Gt, Le, Lt, Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """Restarts after a crash."""

    max_fruitless_attempts: Annotated[
        Positive, Doc("Maximum of consecutive attempts without a new complete checkpoint.")
    ] = 3
    backoff_s: Annotated[float, Ge(0), Doc("Wait before a restart; it doubles each time.")] = 1.0
    backoff_max_s: Annotated[float, Ge(0), Doc("Longest wait before a restart.")] = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """Limits of silence. A longer silence counts as a hang."""

    startup_limit_s: Annotated[float, Gt(0), Doc("Longest silence before the first step.")] = 900.0
    join_limit_s: Annotated[
        float, Gt(0), Doc("Longest wait of a machine for the others, with parallel.machines above 1.")
    ] = 1800.0
    step_limit_s: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Longest silence between two steps; unset: learned from earlier steps.")
    ] = None
    slow_phase_limit_s: Annotated[
        Annotated[float, Gt(0)], Doc("Longest silence during evaluation, export and the wait for a checkpoint.")
    ] = 1800.0


Answer = Literal["off", "alert", "restart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """The response if a watch finds a problem: `alert` reports it, `restart` starts another attempt."""

    gpu: Annotated[Answer, Doc("A GPU is lost, needs a reset, or has memory errors.")] = "restart"
    engine: Annotated[Answer, Doc("vLLM generates no tokens while requests wait.")] = "restart"
    hang: Annotated[Answer, Doc("The trainer is idle and silent for longer than ever before.")] = "restart"
    disk: Annotated[
        Literal["off", "alert", "pause"],
        Doc("The disk will be full before the next checkpoint; `pause` saves and ends the run."),
    ] = "pause"
    host: Annotated[Literal["off", "alert"], Doc("Memory that grows with each save, open files, shared memory.")] = (
        "alert"
    )
    straggler: Annotated[
        Literal["off", "alert", "drain"],
        Doc("A rank makes the others wait; `drain` goes on without its GPU where enough others remain."),
    ] = "alert"
    preemption: Annotated[
        Literal["off", "alert", "pause"],
        Doc("AWS, Google Cloud or Azure takes the machine away; `pause` saves if the time allows, and ends the run."),
    ] = "pause"
    cost: Annotated[
        Literal["off", "alert", "pause"],
        Doc("The cost so far passes `budget_usd`; `pause` saves and ends the run. A price is never guessed."),
    ] = "alert"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """Settings that may change so that a run can continue."""

    on_oom: Annotated[
        Literal["stop", "shrink"],
        Doc(
            "Out of memory: end the run, or halve the micro-batch with the same global batch (sums round differently)."
        ),
    ] = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instability:
    """The answer to a loss or a gradient norm that leaves its range, or that is no number."""

    policy: Annotated[
        Literal["off", "propose", "auto"],
        Doc("`propose`: the change waits for `prime-train set RUN --accept`; `auto`: the supervisor makes it."),
    ] = "propose"
    action: Annotated[
        Literal["lower_rate", "roll_back", "skip"],
        Doc(
            "`roll_back`: to the newest checkpoint before it, with the lower rate. A loss of nan always goes back. "
            "`skip`: to a checkpoint before it, and its steps change no weights (`optim.skip_steps`)."
        ),
    ] = "lower_rate"
    factor: Annotated[float, Gt(0), Lt(1), Doc("The learning rate is multiplied by it.")] = 0.5
    limit: Annotated[Positive, Doc("Most changes that `auto` makes in a run; later ones are proposed.")] = 3
    cool_down_steps: Annotated[Positive, Doc("Steps after an answer in which none follows.")] = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRiskSettings:
    """The answer to a GPU whose driver reports signs of a failure to come. `prime_train.watch.gpu` samples them."""

    policy: Annotated[
        Literal["off", "alert", "drain"],
        Doc("`drain`: save, go on without it and test it, where enough others remain; it is used again if it passes."),
    ] = "alert"
    model: Annotated[str | None, Doc("File with the weights of the estimate; unset = the shipped ones.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleanup:
    """Deletion of files during the run.

    The newest complete checkpoint, pinned ones and those of keep_every_steps are never deleted.
    """

    enabled: Annotated[bool, Doc("Delete superseded checkpoints when space is low.")] = True
    max_disk_gb: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Maximum size of the run's own files, in 10^9 bytes.")
    ] = None
    max_used_ratio: Annotated[
        float, Gt(0), Le(1), Doc("Used fraction of the disk, by all files, above which space is freed.")
    ] = 0.85


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """Messages about an alarm, a restart or an end, in addition to the console and the events."""

    command: Annotated[
        tuple[str, ...], Doc("A program and its arguments; it reads the alert as one JSON object from its input.")
    ] = ()
    webhook_env: Annotated[
        str | None, Doc("Environment variable with an https address, to which the alert is posted as JSON.")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """Copies of complete checkpoints in a bucket, and the treatment of checkpoints that are no longer the newest."""

    provider: Annotated[
        Literal["off", "local", "s3", "b2", "gcs", "azure", "hf"] | None,
        Doc("Storage of the copies; unset = the default of `prime-train backup configure`, `off` = no copies."),
    ] = None
    bucket: Annotated[str | None, Doc("Bucket; `local`: an existing folder; `hf`: a repository.")] = None
    prefix: Annotated[str, Doc("Folder in the bucket; each run has a folder below it.")] = ""
    endpoint: Annotated[str | None, Doc("`s3`, `b2`: address of the server; unset = AWS_ENDPOINT_URL or AWS.")] = None
    interval_steps: Annotated[Positive | None, Doc("Least steps between copies; unset = every checkpoint.")] = None
    keep_last: Annotated[Positive, Doc("Number of the newest copies to keep in the bucket.")] = 3
    local_keep: Annotated[Positive, Doc("With delete_after_upload: newest complete checkpoints kept on the disk.")] = 1
    delete_after_upload: Annotated[bool, Doc("Delete older checkpoints here when their copy is proved by hash.")] = (
        False
    )
    max_upload_mb_per_s: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Limit of the upload, in megabytes per second; unset = none.")
    ] = None
    flush_limit_s: Annotated[float, Ge(0), Doc("Longest wait for the last copy at the end of `run`.")] = 600.0
    compress: Annotated[bool, Doc("Pack older checkpoints here, and copies on their way, without loss.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Wandb:
    """A mirror of the run at Weights & Biases, in a separate process. Needs the extra `wandb`."""

    project: Annotated[str | None, Doc("W&B project; unset = no mirror.")] = None
    entity: Annotated[str | None, Doc("User or team of the project; unset = the default of the login.")] = None
    mode: Annotated[Literal["online", "offline"], Doc("`offline` stores the data for `wandb sync`.")] = "online"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMachine:
    """The rented machine on which `run --spot` starts a command."""

    setup: Annotated[
        tuple[str, ...],
        Doc("Lines of bash that install what the command needs, on each machine, in the copy of its folder."),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BusLink:
    """A bus to a controller, over which events go out and commands come in. Servers need the extra `control`."""

    url: Annotated[
        str | None, Doc("`nats://127.0.0.1:PORT`, `tls://HOST:PORT`, or `local`: a folder here; unset = no bus.")
    ] = None
    credentials_file: Annotated[str | None, Doc("File of mode 600 with user and password, from the controller.")] = None
    credentials_env: Annotated[
        str | None, Doc("Environment variable with the text of such a file; unset = PRIME_TRAIN_BUS_CREDENTIALS.")
    ] = None
    machine: Annotated[str | None, Doc("Name of this machine; unset = the user of the credentials, or the host.")] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimeTrain:
    """The supervision of the run."""

    restart: Annotated[Restart, Doc("Restarts after a crash.")] = Restart()
    heartbeat: Annotated[Heartbeat, Doc("Limits of silence.")] = Heartbeat()
    watch: Annotated[Watches, Doc("Responses to problems that a watch finds.")] = Watches()
    recovery: Annotated[Recovery, Doc("Settings that may change so that the run can continue.")] = Recovery()
    instability: Annotated[Instability, Doc("The answer to a training that becomes unstable.")] = Instability()
    gpu_risk: Annotated[GpuRiskSettings, Doc("GPUs that may fail soon.")] = GpuRiskSettings()
    cleanup: Annotated[Cleanup, Doc("Deletion of files during the run.")] = Cleanup()
    alerts: Annotated[Alerts, Doc("Messages about alarms, restarts and ends.")] = Alerts()
    backup: Annotated[Backup, Doc("Copies of checkpoints.")] = Backup()
    wandb: Annotated[Wandb, Doc("The mirror at Weights & Biases.")] = Wandb()
    spot: Annotated[SpotMachine, Doc("The rented machine of a command.")] = SpotMachine()
    bus: Annotated[BusLink, Doc("The bus to a controller.")] = BusLink()
    stop_grace_s: Annotated[float, Gt(0), Doc("Time for the trainer to save a checkpoint before it is killed.")] = 60.0
    budget_hours: Annotated[
        Annotated[float, Gt(0)] | None, Doc("Maximum hours of the run; `validate` warns if the estimate is longer.")
    ] = None
    budget_usd: Annotated[
        Annotated[float, Gt(0)] | None,
        Doc("Maximum cost of the run: `validate` compares it with the estimate, `watch.cost` with the cost so far."),
    ] = None
    interruptions_per_day: Annotated[
        Annotated[float, Gt(0)] | None,
        Doc("Interruptions of the spot machine per day; unset = the price table's. `validate` checks the interval."),
    ] = None
    expected_prompt_tokens: Annotated[Positive | None, Doc("Tokens of the longest prompt."), Elsewhere()] = None
