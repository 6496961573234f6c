"""Plans what each child finds in its environment, a reason beside each variable. Pure: it changes no environment.

A child inherits the supervisor's environment. A program says what a role needs (`Needs`); `plan` returns what is added,
and `told` what else a person should know: what was set by hand and stays, what is left out and why, which secrets are
passed on.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from prime_train.core.redaction import MASK as MASK
from prime_train.core.redaction import is_secret
from prime_train.core.redaction import redact as redact
from prime_train.core.redaction import secrets as secrets
from prime_train.core.rundir import RunDir
from prime_train.supervise.launch.launch import Launch, Variable
from prime_train.supervise.launch.program import Role
from prime_train.supervise.process import usable_cores

RUN = "PRIME_TRAIN_RUN"
SUPERVISOR = "PRIME_TRAIN_SUPERVISOR"

# Names for one thing: the first is the present one. A version reads the one it knows, so both are set.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # torch 2.13, c10/cuda/CUDAAllocatorConfig.h
_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # renamed after torch 2.8: torchtitan#1748
_DUMP = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_TWINS = (ALLOCATOR, _BUFFER, _DUMP)


@dataclass(frozen=True, slots=True)
class Host:
    """What the plan needs to know of the supervisor's process."""

    environment: Mapping[str, str]
    cores: int
    supervisor: str  # "PID:START_TICKS"
    open_files: tuple[int, int] | None = None  # soft and hard limit

    @property
    def given(self) -> dict[str, str]:
        """What was set by hand. An empty value counts as not set."""
        return {name: value for name, value in self.environment.items() if value}


class Told(NamedTuple):
    """A variable that is not set by the plan, and why."""

    how: Literal["kept", "ignored", "left out", "passed on", "limit"]
    name: str
    value: str  # masked where it is a secret
    reason: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What one role needs. `wanted` gives way to what was set by hand, `forced` does not."""

    wanted: tuple[Variable, ...]
    forced: tuple[Variable, ...] = ()
    left_out: tuple[Told, ...] = ()


def plan(needs: Needs, run_dir: RunDir, host: Host) -> tuple[Variable, ...]:
    """The additions to the environment of one role."""
    given = host.given
    marks = (
        Variable(RUN, str(run_dir.path), "names the run a process belongs to, so that leftovers of it are found"),
        Variable(SUPERVISOR, host.supervisor, "every rank ends itself when this process is gone"),
    )
    forced = {variable.name for variable in needs.forced}
    wanted = (_as_its_twin(variable, given) for variable in needs.wanted)
    return (*marks, *needs.forced, *(v for v in wanted if v.name not in given and v.name not in forced))


def told(needs: Needs, host: Host) -> tuple[Told, ...]:
    """What else there is to know of the environment of one role."""
    given = host.given
    forced = {variable.name for variable in needs.forced}
    kept = (
        Told("kept", wanted.name, given[wanted.name], f"it was set by hand; else {wanted.value}: {wanted.reason}")
        for wanted in needs.wanted
        if wanted.name in given and wanted.name not in forced and given[wanted.name] != wanted.value
    )
    passed = (
        Told("passed on", name, MASK, "a secret: by the environment alone, and masked in whatever is written")
        for name, value in sorted(given.items())
        if is_secret(name, value)
    )
    return (*kept, *needs.left_out, *passed, *_limits(host))


def _as_its_twin(variable: Variable, given: Mapping[str, str]) -> Variable:
    """Where the other name of a variable was set by hand, this one gets the same value."""
    twins = next((names for names in _TWINS if variable.name in names), ())
    by_hand = next((name for name in twins if name != variable.name and name in given), None)
    if by_hand is None:
        return variable
    return Variable(variable.name, given[by_hand], f"as {by_hand}, another name of it, which was set by hand")


def _limits(host: Host) -> tuple[Told, ...]:
    if host.open_files is None:
        return ()
    soft, hard = host.open_files
    wanted = "loader workers share tensors by file descriptors, and an inference server has one for each request"
    return (Told("limit", "open files", f"{soft:,} -> {hard:,}" if soft != hard else f"{soft:,}", wanted),)


# --- variables that more than one program needs ----------------------------------------------------


def python() -> tuple[Variable, ...]:
    return (
        Variable("PYTHONUNBUFFERED", "1", "the last lines before a crash reach the log"),
        Variable("PYTHONFAULTHANDLER", "1", "a segmentation fault, and a hang that is ended, leave their stacks"),
        Variable("TOKENIZERS_PARALLELISM", "false", "workers fork, and forked thread pools of it deadlock"),
    )


def gpu_order() -> Variable:
    return Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPU numbers mean the same here and in nvidia-smi")


def loopback() -> tuple[Variable, ...]:
    reason = "all ranks are on this machine: nothing of the run listens on an interface that others reach"
    return (Variable("GLOO_SOCKET_IFNAME", "lo", reason), Variable("NCCL_SOCKET_IFNAME", "lo", reason))


def flight_recorder(run_dir: RunDir, attempt: int) -> tuple[Variable, ...]:
    """torch's flight recorder: the collective that each rank was in when one timed out."""
    prefix = str(run_dir.attempt(attempt) / "collectives_rank_")
    return (
        *(Variable(name, "2000", "the last 2,000 collectives of each rank are kept") for name in _BUFFER),
        Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a time-out writes them"),
        *(Variable(name, prefix, "where they go when a collective times out") for name in _DUMP),
    )


# --- what is written down --------------------------------------------------------------------------


def hide(launch: Launch, hidden: Iterable[str]) -> Launch:
    """The launch as it may be written down."""
    hidden = tuple(hidden)
    variables = tuple(replace(variable, value=redact(variable.value, hidden)) for variable in launch.variables)
    return replace(launch, argv=tuple(redact(argument, hidden) for argument in launch.argv), variables=variables)


VISIBLE = "CUDA_VISIBLE_DEVICES"


def placed(role: str, roles: Sequence[Role], gpus: Sequence[str], left_out: Collection[str]) -> Variable | None:
    """CUDA_VISIBLE_DEVICES of one role; None where it sees all there are.

    `gpus`: those the run may see, in their order. Each role has as many as it needs, one role behind the other. Where
    there are fewer than all need together, each role sees all: a server takes its fraction of a GPU that a trainer is
    on too.
    """
    total = sum(one.gpus for one in roles)
    whole = visible(gpus, left_out, total) or visible(gpus, left_out, max((one.gpus for one in roles), default=0))
    kept = [gpu for gpu in gpus if gpu not in left_out] if whole is not None else list(gpus)
    if len(roles) < 2 or len(kept) < total:
        return whole
    place = next(number for number, one in enumerate(roles) if one.name == role)
    first = sum(one.gpus for one in roles[:place])
    others = ", ".join(one.name for one in roles if one.name != role)
    reason = f"{others} has GPUs of its own" + (f"; {whole.reason}" if whole is not None else "")
    return Variable(VISIBLE, ",".join(kept[first : first + roles[place].gpus]), reason)


def visible(gpus: Sequence[str], left_out: Collection[str], needed: int) -> Variable | None:
    """CUDA_VISIBLE_DEVICES without the GPUs that failed; None where all stay.

    `gpus`: those the run may see, in their order, by UUID where the program reads UUIDs, because a lost GPU moves the
    numbers of those behind it. `needed`: how many the run cannot do without. Where fewer would remain, none is left
    out: an attempt that may fail is better than none.
    """
    kept = [gpu for gpu in gpus if gpu not in left_out]
    if len(kept) == len(gpus) or len(kept) < needed:
        return None
    gone = ", ".join(gpu for gpu in gpus if gpu in left_out)
    return Variable(VISIBLE, ",".join(kept), f"without {gone}, on which two attempts failed")


def host(supervisor: str) -> Host:
    """What is known here and now. `supervisor`: "PID:START_TICKS"."""
    return Host(os.environ, usable_cores(), supervisor, resource.getrlimit(resource.RLIMIT_NOFILE))
