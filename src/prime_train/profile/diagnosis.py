"""Names the bottleneck of a measured run, with the evidence, and what recommendations are computed from. Pure."""

from __future__ import annotations

from typing import Literal, NamedTuple

from prime_train.core.units import format_seconds
from prime_train.profile.critical_path import OTHER
from prime_train.profile.measurement import COMPUTING, Calls, EngineSpeed, Measurement
from prime_train.spec import RunSpec
from prime_train.spec.answers import global_batch, policy_of

Class = Literal[
    "host-starved",
    "latency-bound",
    "decode-bound",
    "prefill-bound",
    "train-bound",
    "communication-bound",
    "input-bound",
    "checkpoint-bound",
    "balanced",
]

PARTS: dict[Class, tuple[str, ...]] = {
    "host-starved": COMPUTING,
    "latency-bound": ("tool", "environment"),
    "decode-bound": ("decode", "queue", "rollouts"),
    "prefill-bound": ("prefill",),
    "train-bound": ("forward", "backward", "forward_backward", "optimizer"),
    "communication-bound": ("communication", "weights"),
    "input-bound": ("data",),
    "checkpoint-bound": ("checkpoint",),
}
_STALLS: tuple[Class, ...] = ("communication-bound", "input-bound", "checkpoint-bound")
_WORK: tuple[Class, ...] = ("decode-bound", "prefill-bound", "train-bound")
_LEAST_THROTTLED_S = 0.1
_HALF = 0.5
# A stall is waste, so it is named before the work that it interrupts: without it a step takes a quarter less time.
_STALL = 0.25
# Computing never sleeps, so a process that used clearly less than one core in it waited for a core.
_LEAST_CORES = 0.75
_MOST_THROTTLED = 0.1  # of the time, by the limit of the control group
_MARKED = 0.1  # components of the class with a smaller share of the path are no bottleneck


class BottleneckDiagnosis(NamedTuple):
    """The class, its share of the critical path, the components that are marked, and sentences with the evidence."""

    name: Class
    share: float
    bottlenecks: tuple[str, ...]
    evidence: tuple[str, ...]

    @property
    def is_throughput(self) -> bool:
        """Whether the run is bound by useful work: more or faster devices help."""
        return self.name in _WORK


def diagnose(measured: Measurement, setup: Setup | None = None) -> BottleneckDiagnosis:
    """The class of a run.

    A process that does not get the CPU it computes on is starved, with any kind of work. Latency counts from half of
    the path on, a stall from a quarter, before work from half of it.
    """
    setup = setup or Setup()
    name = _classify({kind: measured.share(*parts) for kind, parts in PARTS.items() if kind != "host-starved"})
    if measured.share(*COMPUTING) >= _STALL and is_starved(measured, setup):
        name = "host-starved"
    if name == "balanced":
        return BottleneckDiagnosis(name, 0.0, (), tuple(_evidence(name, measured, setup)))
    parts = PARTS[name]
    marked = tuple(one.component for one in measured.shares if one.component in parts and one.share >= _MARKED)
    return BottleneckDiagnosis(name, measured.share(*parts), marked, tuple(_evidence(name, measured, setup)))


def is_starved(measured: Measurement, setup: Setup) -> bool:
    """Whether the trainer waited for a core, or its control group's limit stopped it."""
    if measured.cpu_cores is None:
        return False
    return measured.cpu_cores < _LEAST_CORES or setup.throttled_s > _MOST_THROTTLED * measured.wall_s


def describe_host(measured: Measurement, setup: Setup) -> str:
    """What the trainer's computing got of the CPU, and what else is known of the machine."""
    text = f"its computing used {measured.cpu_cores or 0.0:.2f} cores on average"
    if setup.cores is not None:
        text += f" of the {setup.cores} that it may use"
    if setup.load is not None:
        text += f"; {setup.load:.0f} threads wanted to run"
        text += f" on the {setup.machine_cores} of this machine" if setup.machine_cores else ""
    if setup.throttled_s >= _LEAST_THROTTLED_S:
        text += f"; the limit of its control group stopped it for {format_seconds(setup.throttled_s)}"
    return text


def _classify(shares: dict[Class, float]) -> Class:
    if shares["latency-bound"] > _HALF:
        return "latency-bound"
    stall = max(_STALLS, key=lambda kind: shares[kind])
    if shares[stall] >= _STALL:
        return stall
    work = max(_WORK, key=lambda kind: shares[kind])
    return work if shares[work] >= _HALF else "balanced"


def _evidence(name: Class, measured: Measurement, setup: Setup) -> list[str]:
    step_s = measured.wall_s / measured.steps
    largest = [one for one in measured.shares if one.component != OTHER and one.critical_s > 0]
    found = []
    if name == "balanced":
        top = ", ".join(f"{one.component} {one.share:.0%}" for one in largest[:3])
        found.append(f"no part dominates a step of {format_seconds(step_s)}: {top}")
    else:
        parts = ", ".join(
            f"{one.component} {one.share:.0%} ({format_seconds(one.critical_s / measured.steps)})"
            for one in largest
            if one.component in PARTS[name]
        )
        found.append(f"of a step of {format_seconds(step_s)}, the critical path is {parts}")
    if name == "host-starved":
        found.append(describe_host(measured, setup))
    calls = (measured.call(component) for component in PARTS.get(name, ()))
    found += [_describe_calls(call) for call in calls if call is not None]
    if measured.trainer_idle is not None and measured.engine_idle is not None:
        found.append(
            f"the trainer is idle {measured.trainer_idle:.0%} of the time, the engine {measured.engine_idle:.0%}"
        )
    if name == "decode-bound" and measured.decoding is not None:
        found.append(f"the engine decodes {measured.decoding:.1f} answers at a time")
    return found


def _describe_calls(call: Calls) -> str:
    each = f"{call.component}: {format_seconds(call.mean_s)} a call at {call.per_rollout:.1f} calls a rollout"
    median, slow = format_seconds(call.quantiles.p50_s), format_seconds(call.quantiles.p99_s)
    return f"{each}; half take up to {median}, 99 % up to {slow}"


LEAST_GAIN = 1.03  # a smaller one is below the noise of a few steps


class Recommendation(NamedTuple):
    """A change. `gain` = tokens or rollouts per second afterwards over those before; None if it cannot be computed."""

    kind: Class
    text: str
    setting: str  # an assignment of run.toml; "" if there is none
    gain: float | None


class Setup(NamedTuple):
    """None where a setting is not known or does not exist. `kv_tokens`: the tokens that the engine's cache holds."""

    micro_batch: int | None = None
    global_batch: int | None = None  # sequences, or rollouts, of a step
    ctx_tokens: int | None = None
    processes: int | None = None
    loader_workers: int | None = None
    checkpoint_interval_steps: int | None = None
    async_save: bool | None = None
    concurrency: int | None = None
    max_behind_steps: int | None = None
    cores: int | None = None
    kv_tokens: int | None = None
    gpus: int = 0  # of this machine
    load: float | None = None  # threads that wanted to run on this machine, in the last minute
    machine_cores: int | None = None
    throttled_s: float = 0.0  # for which the limit of the control group stopped the run

    @property
    def kv_sequences(self) -> int | None:
        """Sequences of full length that the cache holds."""
        if self.kv_tokens is None or not self.ctx_tokens:
            return None
        return max(1, self.kv_tokens // self.ctx_tokens)

    def kv_share(self, sequences: float) -> float | None:
        """The share of the cache that so many sequences of full length use."""
        if self.kv_tokens is None or not self.ctx_tokens:
            return None
        return min(1.0, sequences * self.ctx_tokens / self.kv_tokens)


def setup_of(run: RunSpec, cores: int | None = None, kv_tokens: int | None = None, gpus: int = 0) -> Setup:
    """The setup of a run.toml."""
    policy = policy_of(run)
    return Setup(
        micro_batch=run.batch.micro_batch,
        global_batch=global_batch(run),
        ctx_tokens=run.data.ctx_tokens,
        processes=run.parallel.processes,
        loader_workers=run.data.planned_workers if policy is None else None,
        checkpoint_interval_steps=run.checkpoint.interval_steps,
        async_save=run.checkpoint.async_save,
        concurrency=None if policy is None else policy.concurrency,
        max_behind_steps=None if policy is None else policy.max_behind_steps,
        cores=cores,
        kv_tokens=kv_tokens,
        gpus=gpus,
    )


class Probe(NamedTuple):
    """Forward and backward of one micro-batch that is `times` as large as the run's, beside the run."""

    times: int
    seconds: float


class ProfileEvidence(NamedTuple):
    """Everything that recommendations are computed from."""

    measured: Measurement
    setup: Setup
    probes: tuple[Probe, ...] = ()
    engine: EngineSpeed | None = None

    @property
    def step_s(self) -> float:
        return self.measured.wall_s / self.measured.steps

    def per_step_s(self, *components: str) -> float:
        return self.measured.critical_s(*components) / self.measured.steps

    def gain(self, saved_s: float, kept_trainer_s: float | None = None) -> float:
        """The gain of a step that is shorter by `saved_s`, and not shorter than the trainer's own work."""
        least_s = self.measured.trainer_s / self.measured.steps if kept_trainer_s is None else kept_trainer_s
        return self.step_s / max(self.step_s - saved_s, least_s, 1e-9)
