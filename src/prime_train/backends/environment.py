"""Plans what a trainer finds in its environment, a reason beside each variable, and hides secrets in what is written.

Pure: it reads the mapping it is given and changes no environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from prime_train.backends.launch import Launch, Variable
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec

RUN = "PRIME_TRAIN_RUN"
SUPERVISOR = "PRIME_TRAIN_SUPERVISOR"

MASK = "•••"
_SHORTEST_SECRET = 4  # a shorter value would blot out half of every text, and protects nothing
_SECRET_NAME = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD)\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Host:
    """What the plan needs to know of the supervisor's process: its environment, its cores, its identity."""

    environment: Mapping[str, str]
    cores: int
    supervisor: str  # "PID:START_TICKS"


def plan(run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> tuple[Variable, ...]:
    """The additions to the environment. What the user has set stays, but for the marks of the run itself."""
    given = {name: value for name, value in host.environment.items() if value}
    defaults = [*_always(run, host), *(_distributed(run_dir, attempt) if run.parallel.processes > 1 else [])]
    if "PYTORCH_CUDA_ALLOC_CONF" in given:  # the earlier name of PYTORCH_ALLOC_CONF
        defaults = [variable for variable in defaults if variable.name != "PYTORCH_ALLOC_CONF"]
    marks = [
        Variable(RUN, str(run_dir.path), "names the run a process belongs to, so that leftovers of it are found"),
        Variable(SUPERVISOR, host.supervisor, "every rank ends itself when this process is gone"),
    ]
    return (*marks, *(variable for variable in defaults if variable.name not in given))


def _always(run: RunSpec, host: Host) -> list[Variable]:
    threads = max(1, host.cores // run.parallel.processes)
    return [
        Variable("PYTHONUNBUFFERED", "1", "the last lines before a crash reach the log"),
        Variable("PYTHONFAULTHANDLER", "1", "a segmentation fault, and a hang that is ended, leave their stacks"),
        Variable("OMP_NUM_THREADS", str(threads), f"{host.cores} cores over {run.parallel.processes} processes"),
        Variable("TOKENIZERS_PARALLELISM", "false", "loader workers fork, and forked thread pools of it deadlock"),
        Variable("CUDA_DEVICE_ORDER", "PCI_BUS_ID", "GPU numbers mean the same here and in nvidia-smi"),
        Variable("PYTORCH_ALLOC_CONF", "expandable_segments:True", "less memory is lost to fragments of segments"),
    ]


def _distributed(run_dir: RunDir, attempt: int) -> list[Variable]:
    """Ranks that meet on this machine alone, and torch's flight recorder: the collective each was in at a time-out.

    Both names of each variable: TORCH_NCCL_* up to torch 2.8, TORCH_FR_* from the rename on (torchtitan#1748).
    """
    recorded = "the last 2,000 collectives of each rank are kept"
    dumped = "where they go when a collective times out"
    prefix = str(run_dir.attempt(attempt) / "collectives_rank_")
    loopback = "all ranks are on this machine: nothing of the run listens on an interface that others reach"
    return [
        Variable("GLOO_SOCKET_IFNAME", "lo", loopback),
        Variable("NCCL_SOCKET_IFNAME", "lo", loopback),
        Variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", "torchrun's store listens everywhere; rank 0 has its own"),
        Variable("TORCH_NCCL_TRACE_BUFFER_SIZE", "2000", recorded),
        Variable("TORCH_FR_BUFFER_SIZE", "2000", recorded),
        Variable("TORCH_NCCL_DUMP_ON_TIMEOUT", "1", "a time-out writes them"),
        Variable("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", prefix, dumped),
        Variable("TORCH_FR_DUMP_TEMP_FILE", prefix, dumped),
    ]


# --- secrets ---------------------------------------------------------------------------------------


def secrets(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Values of variables that are named *KEY, *TOKEN, *SECRET or *PASSWORD, longest first."""
    values = {value for name, value in environment.items() if _SECRET_NAME.search(name)}
    return tuple(sorted((value for value in values if len(value) >= _SHORTEST_SECRET), key=len, reverse=True))


def redact(text: str, hidden: Iterable[str]) -> str:
    """`text` with every one of the values masked."""
    pattern = "|".join(re.escape(value) for value in hidden)
    return re.sub(pattern, MASK, text) if pattern else text


def hide(launch: Launch, hidden: Iterable[str]) -> Launch:
    """The launch as it may be written down."""
    hidden = tuple(hidden)
    variables = tuple(replace(variable, value=redact(variable.value, hidden)) for variable in launch.variables)
    return replace(launch, argv=tuple(redact(argument, hidden) for argument in launch.argv), variables=variables)
