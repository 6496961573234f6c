"""Plans the environment variables of each child, with a reason for each. Pure: it changes no environment.

A child inherits the supervisor's environment. A program returns what a role needs (`Needs`). `plan` returns the
additions, and `describe_environment` the rest: what was set by hand, what is left out, which secrets are passed on.
"""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from prime_train.core.python_child import SAFE_PATH
from prime_train.core.redaction import MASK, is_secret, redact
from prime_train.core.rundir import RunDir
from prime_train.facts.host import count_usable_cores
from prime_train.supervise.launch.program import EnvNote, Host, Launch, Needs, Role, Variable

V1 = "VLLM_USE_V1"
_V1_DEFAULT = (0, 8)  # vLLM 0.8.0 made V1 the default
_V0_GONE = (0, 11)  # 0.11.0 has no V0 (vllm#25033), and 0.11.1 does not know the variable (vllm-ascend#4086)
_READY_S = 4200  # as in prime-rl's launcher, because a large model takes longer to start than vLLM's own 600 s


def list_engine_variables(version: str | None) -> tuple[Variable, ...]:
    """What every vLLM of this version gets, also that of another launcher. None: the version is not known."""
    known = _parse_version(version)
    why = f"vLLM {version} has both engines, and its V1 has died without an error message"
    older = (Variable(V1, "0", why),) if known is not None and _V1_DEFAULT <= known < _V0_GONE else ()
    return (
        *older,
        Variable("VLLM_WORKER_MULTIPROC_METHOD", "spawn", "a fork after the start of CUDA or threads fails or hangs"),
        Variable("VLLM_ENGINE_READY_TIMEOUT_S", str(_READY_S), "a large model takes longer to start than vLLM's 600 s"),
        Variable("VLLM_NO_USAGE_STATS", "1", "vLLM reports each start to a server on the internet"),
    )


def explain_v1(by_hand: str | None, version: str | None) -> tuple[EnvNote, ...]:
    """Why VLLM_USE_V1 is not set; nothing for the versions that have both engines."""
    known = _parse_version(version)
    if known is None:
        why = "the version of vLLM is not known; only 0.8 to 0.10 have a choice of engines"
    elif known >= _V0_GONE:
        why = f"vLLM {version} has one engine: 0.11 removed the other one and this variable"
    elif known < _V1_DEFAULT:
        why = f"vLLM {version} uses the older engine by default"
    else:
        return ()
    if by_hand is None:
        return (EnvNote("left out", V1, "", why),)
    return (EnvNote("ignored" if known is not None and known >= _V0_GONE else "kept", V1, by_hand, why),)


def _parse_version(text: str | None) -> tuple[int, int] | None:
    found = re.match(r"(\d+)\.(\d+)", text or "")
    return (int(found[1]), int(found[2])) if found else None


RUN = "PRIME_TRAIN_RUN"
SUPERVISOR = "PRIME_TRAIN_SUPERVISOR"

# Old and new names of one variable, the new one first. A library reads only the name it knows, so both are set.
ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # torch 2.13, c10/cuda/CUDAAllocatorConfig.h
_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")  # renamed after torch 2.8: torchtitan#1748
_DUMP = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_TWINS = (ALLOCATOR, _BUFFER, _DUMP)


def plan(needs: Needs, run_dir: RunDir, host: Host) -> tuple[Variable, ...]:
    given = host.given
    marks = (
        Variable(RUN, str(run_dir.path), "the run that a process belongs to, so that leftover processes are found"),
        Variable(SUPERVISOR, host.supervisor, "every rank ends itself when this process is gone"),
    )
    forced = {variable.name for variable in needs.forced}
    # What was set by hand stays, unless it does harm in this role: the program forces those variables.
    wanted = (_copy_twin(variable, given) for variable in needs.wanted)
    return (*marks, *needs.forced, *(v for v in wanted if v.name not in given and v.name not in forced))


def describe_environment(needs: Needs, host: Host) -> tuple[EnvNote, ...]:
    given = host.given
    forced = {variable.name for variable in needs.forced}
    kept = (
        EnvNote("kept", wanted.name, given[wanted.name], f"set by hand; otherwise {wanted.value}: {wanted.reason}")
        for wanted in needs.wanted
        if wanted.name in given and wanted.name not in forced and given[wanted.name] != wanted.value
    )
    passed = (
        EnvNote("passed on", name, MASK, "a secret: passed only by the environment, and masked in every file")
        for name, value in sorted(given.items())
        if is_secret(name, value)
    )
    return (*kept, *needs.left_out, *passed, *_limits(host))


def _copy_twin(variable: Variable, given: Mapping[str, str]) -> Variable:
    """If the other name of a variable was set by hand, this name gets the same value."""
    twins = next((names for names in _TWINS if variable.name in names), ())
    by_hand = next((name for name in twins if name != variable.name and name in given), None)
    if by_hand is None:
        return variable
    return Variable(variable.name, given[by_hand], f"as {by_hand}, its other name, which was set by hand")


def _limits(host: Host) -> tuple[EnvNote, ...]:
    if host.open_files is None:
        return ()
    soft, hard = host.open_files
    wanted = "loader workers share tensors by file descriptors, and an inference server needs one per request"
    return (EnvNote("limit", "open files", f"{soft:,} -> {hard:,}" if soft != hard else f"{soft:,}", wanted),)


def python() -> tuple[Variable, ...]:
    return (
        Variable("PYTHONUNBUFFERED", "1", "the last lines before a crash reach the log"),
        Variable("PYTHONFAULTHANDLER", "1", "a segmentation fault, or a hang that is ended, leaves its stacks"),
        Variable("TOKENIZERS_PARALLELISM", "false", "its thread pools deadlock in worker processes that are forked"),
    )


def safe_path() -> Variable:
    reason = "a json.py in the working directory is not imported in place of Python's"
    return Variable("PYTHONSAFEPATH", SAFE_PATH["PYTHONSAFEPATH"], reason)


def gpu_order() -> Variable:
    return Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPU numbers mean the same here and in nvidia-smi")


def loopback() -> tuple[Variable, ...]:
    reason = "all ranks are on this machine, so no port is open on an interface that others reach"
    return (Variable("GLOO_SOCKET_IFNAME", "lo", reason), Variable("NCCL_SOCKET_IFNAME", "lo", reason))


def between_machines(interface: str) -> tuple[Variable, ...]:
    """`interface`: that of the address by which the other machines know this one; "" = the libraries choose."""
    reason = "the ranks of the other machines reach this machine there"
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME") if interface else ()
    return tuple(Variable(name, interface, reason) for name in names)


def flight_recorder(run_dir: RunDir, attempt: int) -> tuple[Variable, ...]:
    """torch's flight recorder: the last collectives of each rank, written when one times out."""
    prefix = str(run_dir.attempt(attempt) / "collectives_rank_")
    return (
        *(Variable(name, "2000", "the last 2,000 collectives of each rank are kept") for name in _BUFFER),
        Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a time-out writes them"),
        *(Variable(name, prefix, "where they go when a collective times out") for name in _DUMP),
    )


def hide(launch: Launch, hidden: Iterable[str]) -> Launch:
    """The launch with secrets masked, for a file."""
    hidden = tuple(hidden)
    variables = tuple(replace(variable, value=redact(variable.value, hidden)) for variable in launch.variables)
    return replace(launch, argv=tuple(redact(argument, hidden) for argument in launch.argv), variables=variables)


VISIBLE = "CUDA_VISIBLE_DEVICES"


def assign_gpus(role: str, roles: Sequence[Role], gpus: Sequence[str], left_out: Collection[str]) -> Variable | None:
    """CUDA_VISIBLE_DEVICES of one role; None if it sees all GPUs.

    `gpus`: the GPUs of the run, in order. Each role gets as many as it needs, one role after the other. With too few
    GPUs for all roles, each role sees all of them, and a server shares a GPU with the trainer.
    """
    total, most = sum(one.gpus for one in roles), max((one.gpus for one in roles), default=0)
    # With too few GPUs for all roles they share: an attempt that is slow is better than none.
    least = sum(one.gpus if one.least_gpus is None else one.least_gpus for one in roles)
    whole = restrict_gpus(gpus, left_out, least) or restrict_gpus(gpus, left_out, most)
    # Where no GPU can be left out, the roles divide all of them.
    kept = [gpu for gpu in gpus if whole is None or gpu not in left_out]
    if len(roles) < 2 or len(kept) < total:
        return whole
    place = next(number for number, one in enumerate(roles) if one.name == role)
    first = sum(one.gpus for one in roles[:place])
    others = ", ".join(one.name for one in roles if one.name != role)
    reason = f"{others} has GPUs of its own" + (f"; {whole.reason}" if whole is not None else "")
    return Variable(VISIBLE, ",".join(kept[first : first + roles[place].gpus]), reason)


def restrict_gpus(gpus: Sequence[str], left_out: Collection[str], needed: int) -> Variable | None:
    """CUDA_VISIBLE_DEVICES without the GPUs that failed; None if all remain.

    `gpus`: the GPUs of the run, in order, by UUID if the program reads UUIDs, because a lost GPU changes the numbers of
    the GPUs after it. `needed`: the least number of GPUs. No GPU is left out if fewer would remain, because an attempt
    that may fail is better than none.
    """
    kept = [gpu for gpu in gpus if gpu not in left_out]
    if len(kept) == len(gpus) or len(kept) < needed:
        return None
    gone = ", ".join(gpu for gpu in gpus if gpu in left_out)
    return Variable(VISIBLE, ",".join(kept), f"without {gone}, which the run leaves out")


def read_host(supervisor: str) -> Host:
    """Read the environment and the limits of this process. `supervisor`: "PID:START_TICKS"."""
    return Host(os.environ, count_usable_cores(), supervisor, resource.getrlimit(resource.RLIMIT_NOFILE))
