"""Plans what each child finds in its environment, a reason beside each variable. Pure: it changes no environment.

A child inherits the supervisor's environment; `plan` says what is added, and `told` what else a person should know of
it: what was set by hand and stays, what is left out and why, which secrets are passed on.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from prime_train.backends.launch import Launch, Variable
from prime_train.redaction import MASK as MASK
from prime_train.redaction import is_secret
from prime_train.redaction import redact as redact
from prime_train.redaction import secrets as secrets
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec

RUN = "PRIME_TRAIN_RUN"
SUPERVISOR = "PRIME_TRAIN_SUPERVISOR"

Role = Literal["trainer", "inference", "prime_rl"]

# Names for one thing: the first is the present one. A version reads the one it knows, so both are set.
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # torch 2.13, c10/cuda/CUDAAllocatorConfig.h
_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # renamed after torch 2.8: torchtitan#1748
_DUMP = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_TWINS = (_ALLOCATOR, _BUFFER, _DUMP)

_V1 = "VLLM_USE_V1"
_V1_DEFAULT = (0, 8)  # vLLM 0.8.0 made V1 the default
_V0_GONE = (0, 11)  # 0.11.0 has no V0 (vllm#25033), and 0.11.1 does not know the variable (vllm-ascend#4086)
_READY_S = 4200  # as prime-rl's launcher sets it; a large model is compiled and captured for longer than vLLM's own 600


@dataclass(frozen=True, slots=True)
class Host:
    """What the plan needs to know of the supervisor's process, and of the environment that vLLM is installed in."""

    environment: Mapping[str, str]
    cores: int
    supervisor: str  # "PID:START_TICKS"
    vllm: str | None = None  # the version that `inference` will run; None = not known
    open_files: tuple[int, int] | None = None  # soft and hard limit


class Told(NamedTuple):
    """A variable that is not set by the plan, and why."""

    how: Literal["kept", "ignored", "left out", "passed on", "limit"]
    name: str
    value: str  # masked where it is a secret
    reason: str


def plan(role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> tuple[Variable, ...]:
    """The additions to the environment of one role. What was set by hand stays, but for what would do harm there."""
    given = _given(host)
    marks = (
        Variable(RUN, str(run_dir.path), "names the run a process belongs to, so that leftovers of it are found"),
        Variable(SUPERVISOR, host.supervisor, "every rank ends itself when this process is gone"),
    )
    forced = _forced(role, given)
    taken = {variable.name for variable in forced}
    wanted = (_as_its_twin(variable, given) for variable in _wanted(role, run, run_dir, attempt, host))
    return (*marks, *forced, *(v for v in wanted if v.name not in given and v.name not in taken))


def told(role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> tuple[Told, ...]:
    """What else there is to know of the environment of one role."""
    given = _given(host)
    forced = {variable.name for variable in _forced(role, given)}
    kept = (
        Told("kept", wanted.name, given[wanted.name], f"it was set by hand; else {wanted.value}: {wanted.reason}")
        for wanted in _wanted(role, run, run_dir, attempt, host)
        if wanted.name in given and wanted.name not in forced and given[wanted.name] != wanted.value
    )
    passed = (
        Told("passed on", name, MASK, "a secret: by the environment alone, and masked in whatever is written")
        for name, value in sorted(given.items())
        if is_secret(name, value)
    )
    return (*kept, *_left_out(role, given, host), *passed, *_limits(host))


def _given(host: Host) -> dict[str, str]:
    """What was set by hand. An empty value counts as none."""
    return {name: value for name, value in host.environment.items() if value}


def _as_its_twin(variable: Variable, given: Mapping[str, str]) -> Variable:
    """Where the other name of a variable was set by hand, this one says the same."""
    twins = next((names for names in _TWINS if variable.name in names), ())
    by_hand = next((name for name in twins if name != variable.name and name in given), None)
    if by_hand is None:
        return variable
    return Variable(variable.name, given[by_hand], f"as {by_hand}, another name of it, which was set by hand")


# --- what each role gets ---------------------------------------------------------------------------


def _wanted(role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> tuple[Variable, ...]:
    recorder = _flight_recorder(run_dir, attempt)
    match role:
        case "inference":
            return (*_python(), _gpu_order(), *_vllm(host), *_loopback())
        case "prime_rl":
            return (*_python(), _gpu_order(), *recorder)
        case _:
            threads = max(1, host.cores // run.parallel.processes)
            several = (*_loopback(), _NO_SHARED_STORE, *recorder) if run.parallel.processes > 1 else ()
            counted = f"{host.cores} cores over {run.parallel.processes} processes"
            return (
                *_python(),
                Variable("OMP_NUM_THREADS", str(threads), counted),
                _gpu_order(),
                *_expanding(),
                *several,
            )


def _python() -> tuple[Variable, ...]:
    return (
        Variable("PYTHONUNBUFFERED", "1", "the last lines before a crash reach the log"),
        Variable("PYTHONFAULTHANDLER", "1", "a segmentation fault, and a hang that is ended, leave their stacks"),
        Variable("TOKENIZERS_PARALLELISM", "false", "workers fork, and forked thread pools of it deadlock"),
    )


def _gpu_order() -> Variable:
    return Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPU numbers mean the same here and in nvidia-smi")


def _expanding() -> tuple[Variable, ...]:
    reason = "less memory is lost to fragments of segments"
    return tuple(Variable(name, "expandable_segments:True", reason) for name in _ALLOCATOR)


def _vllm(host: Host) -> tuple[Variable, ...]:
    known = _version(host.vllm)
    older = (
        (Variable(_V1, "0", f"vLLM {host.vllm} has both engines, and its V1 was seen to die without a word"),)
        if known is not None and _V1_DEFAULT <= known < _V0_GONE
        else ()
    )
    return (
        *older,
        Variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "a fork after CUDA or threads were started fails or hangs"),
        Variable("VLLM_ENGINE_READY_TIMEOUT_S", str(_READY_S), "a large model takes longer to start than vLLM's 600 s"),
        Variable("VLLM_NO_USAGE_STATS", "1", "vLLM tells a server on the internet of each start"),
        Variable("VLLM_HOST_IP", "127.0.0.1", "its own processes meet on this machine alone"),
    )


_NO_SHARED_STORE = Variable(
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", "torchrun's store listens everywhere; rank 0 has its own"
)


def _loopback() -> tuple[Variable, ...]:
    reason = "all ranks are on this machine: nothing of the run listens on an interface that others reach"
    return (Variable("GLOO_SOCKET_IFNAME", "lo", reason), Variable("NCCL_SOCKET_IFNAME", "lo", reason))


def _flight_recorder(run_dir: RunDir, attempt: int) -> tuple[Variable, ...]:
    """torch's flight recorder: the collective that each rank was in when one timed out."""
    prefix = str(run_dir.attempt(attempt) / "collectives_rank_")
    return (
        *(Variable(name, "2000", "the last 2,000 collectives of each rank are kept") for name in _BUFFER),
        Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a time-out writes them"),
        *(Variable(name, prefix, "where they go when a collective times out") for name in _DUMP),
    )


_EXPANDS = re.compile(r"expandable_segments:\s*\w+")
_NOT_EXPANDING = "expandable_segments:False"


def _forced(role: str, given: Mapping[str, str]) -> tuple[Variable, ...]:
    """What is set whatever was set by hand: an allocator that was chosen for a trainer must not reach vLLM."""
    if role != "inference":
        return ()
    by_hand = next((given[name] for name in reversed(_ALLOCATOR) if name in given), "")  # torch reads the older first
    value, found = _EXPANDS.subn(_NOT_EXPANDING, by_hand)
    if not found:
        value = f"{by_hand},{_NOT_EXPANDING}" if by_hand else _NOT_EXPANDING
    reason = "vLLM maps its memory by itself when weights or caches are exchanged, which needs fixed segments"
    return tuple(Variable(name, value, reason) for name in _ALLOCATOR)


# --- what is not set, and why ----------------------------------------------------------------------


def _left_out(role: str, given: Mapping[str, str], host: Host) -> tuple[Told, ...]:
    match role:
        case "inference":
            threads = "vLLM shares the cores among its own processes where it finds none"
            omp = () if "OMP_NUM_THREADS" in given else (Told("left out", "OMP_NUM_THREADS", "", threads),)
            return (*omp, *_no_v1(given.get(_V1), host.vllm))
        case "prime_rl":
            sets = "prime-rl's launcher sets it for each of its parts, whatever it finds"
            shadowed = f"{_ALLOCATOR[1]}, which prime-rl sets for each of its parts, is read before it"
            reasons = ((_ALLOCATOR[1], sets), ("OMP_NUM_THREADS", sets), (_ALLOCATOR[0], shadowed))
            return tuple(_not_set(name, given, reason) for name, reason in reasons)
        case _:
            return ()


def _not_set(name: str, given: Mapping[str, str], reason: str) -> Told:
    return Told("ignored", name, given[name], reason) if name in given else Told("left out", name, "", reason)


def _no_v1(by_hand: str | None, version: str | None) -> tuple[Told, ...]:
    known = _version(version)
    if known is None:
        why = "which vLLM will run is not known; only 0.8 to 0.10 have a choice of engines"
    elif known >= _V0_GONE:
        why = f"vLLM {version} has one engine: the variable went with the other one, in 0.11"
    elif known < _V1_DEFAULT:
        why = f"vLLM {version} takes the older engine by itself"
    else:
        return ()
    if by_hand is None:
        return (Told("left out", _V1, "", why),)
    return (Told("ignored" if known is not None and known >= _V0_GONE else "kept", _V1, by_hand, why),)


def _limits(host: Host) -> tuple[Told, ...]:
    if host.open_files is None:
        return ()
    soft, hard = host.open_files
    wanted = "loader workers share tensors by file descriptors, and an inference server has one for each request"
    return (Told("limit", "open files", f"{soft:,} -> {hard:,}" if soft != hard else f"{soft:,}", wanted),)


def _version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


# --- what is written down --------------------------------------------------------------------------


def hide(launch: Launch, hidden: Iterable[str]) -> Launch:
    """The launch as it may be written down."""
    hidden = tuple(hidden)
    variables = tuple(replace(variable, value=redact(variable.value, hidden)) for variable in launch.variables)
    return replace(launch, argv=tuple(redact(argument, hidden) for argument in launch.argv), variables=variables)
