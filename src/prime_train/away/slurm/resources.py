"""Computes what a job on Slurm asks for, from the run, its estimate and what earlier attempts measured. Pure."""

from __future__ import annotations

import math
from typing import NamedTuple

from prime_train.away.slurm.script import Resources
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.units import GIB, format_seconds
from prime_train.spec import ENDLESS_STEPS, RunSpec
from prime_train.spec.answers import (
    launched_server,
    machine_gpus,
    prime_rl_of,
    replicas_of,
    server_gpus,
    train_gpus,
    trains,
)

MARGIN_S = 30  # from the end of the trainer to the end of the job: cleanup, report, scontrol requeue
_START_S = 900  # imports, validation, loading and compiling: heartbeat.startup_limit_s allows the same

# Measured: 544 MiB resident after importing torch 2.13, before any model (rules/training/run_needs.py); rounded up.
_PROCESS_BYTES = 0.6 * GIB
_STAGED_BYTES = 12  # per parameter in fp32: weight and two moments, in CPU memory for saves (trainer/saves/staging.py)
_LOADED_BYTES = 4  # per parameter: the weights of a Hugging Face folder, read in fp32
_SERVED_BYTES = 2  # per parameter in bf16
_ON_CPU_BYTES = 16  # per parameter in fp32: weight, gradient, two moments (ZeRO, arXiv 1910.02054, s. 3.1)
_LOGIT_BYTES = 8  # per position and token of the vocabulary: the fp32 logit and its gradient
_MEMORY_FACTOR = 1.5  # activations of a CPU, the page cache of a control group, buffers of CUDA and NCCL

# A slow shared file system: NFS over 2.5 Gbit/s (2.5GBASE-T, IEEE 802.3bz). Measured saves replace it.
_SAVE_BYTES_PER_S = 0.3e9
_LONGEST_NOTICE_S = 65_535  # sbatch(1), --signal: "sig_time must have an integer value between 0 and 65535"


class KnownRun(NamedTuple):
    """What is known of a run. None: not known. `save_s` and `longest_step_s` are the longest measured seconds.

    `parameters`: those of the model. `step_s`: the median of measured steps, else the upper bound of the estimate.
    `done_steps`: of the newest complete checkpoint. `saves_on_stop`: the program saves when it is asked to stop;
    prime-rl and a server do not.
    """

    parameters: int | None = None
    vocab_size: int | None = None
    save_s: float | None = None
    longest_step_s: float | None = None
    step_s: float | None = None
    done_steps: int = 0
    saves_on_stop: bool = True


class CoreMemory(NamedTuple):
    """Memory that Slurm gives for each core, what set it, and the memory that the user asked for; None: nothing."""

    mib_per_core: int
    source: str  # "MaxMemPerCPU of the partition gpu"
    asked_mib: int | None = None


class Plan(NamedTuple):
    """The resources, the `stop_grace_s` with which a save is in time, and notes for the user."""

    resources: Resources
    stop_grace_s: float
    notes: tuple[str, ...]


def plan(
    run: RunSpec,
    known: KnownRun,
    limit_minutes: int | None,
    *,
    has_gpus: bool = True,
    core_memory: CoreMemory | None = None,
) -> Plan:
    """The resources of one job. `has_gpus`: False if the job asks for no GPU. Raises UserError."""
    gpus = _gpus(run) // run.parallel.machines
    notes = []
    memory = _memory_mib(run, known, on_cpu=not has_gpus)
    if memory is None:
        notes.append("memory: the default of the partition, because it is not known here; --sbatch mem=64G sets it")
    cpus = _cpus(run)
    needed_mib = memory if core_memory is None or core_memory.asked_mib is None else core_memory.asked_mib
    if core_memory is not None and needed_mib is not None:
        # with fewer, Slurm refuses the job or leaves it in the queue for ever
        cpus = max(cpus, math.ceil(needed_mib / core_memory.mib_per_core))
    if cpus > _cpus(run) and core_memory is not None:
        each = f"{core_memory.mib_per_core:,} MiB for each"
        notes.append(f"cores: {cpus}, because {core_memory.source} gives {each}, and the job needs {needed_mib:,} MiB")
    elif run.command is not None:
        notes.append(f"cores: {cpus}, because its loader workers are not known; --sbatch cpus-per-task=N sets them")
    if has_gpus and launched_server(run) is not None and trains(run):
        notes.append(f"gres: {gpus} GPUs for trainer and server; with fewer they share: --sbatch gres=gpu:1")
    save_s = _save_s(run, known)
    longest_s = 2 * save_s + (known.longest_step_s or known.step_s or 0.0)
    grace_s = max(run.prime_train.stop_grace_s, math.ceil(longest_s) if known.saves_on_stop else 0)
    if grace_s > run.prime_train.stop_grace_s:
        basis = "measured" if known.save_s is not None else "estimated"
        notes.append(
            f"prime_train.stop_grace_s = {grace_s:g} for this job, not {run.prime_train.stop_grace_s:g}: "
            f"a save takes {format_seconds(save_s)} ({basis}), and one may be in progress"
        )
    notice_s = math.ceil(grace_s) + MARGIN_S
    limit = limit_minutes if limit_minutes is not None else _limit_minutes(run, known, notice_s)
    if limit is None:
        notes.append("time: the limit of the partition, because the time of a step is not known; see --time-limit")
    _refuse_short(limit, notice_s)
    nodes = run.parallel.machines
    resources = Resources(gpus if has_gpus else 0, cpus, memory, limit, notice_s, nodes)
    return Plan(resources, grace_s, tuple(notes))


def _gpus(run: RunSpec) -> int:
    """GPUs on one machine. Raises UserError if the config has several machines or does not determine the number."""
    parts = prime_rl_of(run)
    serves_alone = run.server is not None and not trains(run)
    gpus = server_gpus(run) if serves_alone else machine_gpus(run)
    if gpus is not None:
        return gpus
    several = parts.deployment is not None and (parts.deployment.kind or "single_node") != "single_node"
    if several:
        what, why = "its deployment has several machines", "the job is one supervisor and its processes on one node"
        fix = "give deployment.type single_node, or submit it with prime-rl's own [slurm] table"
    else:
        what, why = "it does not set the number of its GPUs", "a job asks Slurm for a number of GPUs"
        fix = "set the numbers of GPUs in [deployment]"
    raise UserError(what, "--slurm", why, fix, ExitCode.FINDINGS)


def _cpus(run: RunSpec) -> int:
    """Cores of a node.

    One for the supervisor; for each trainer process itself, its saves and the threads of its workers; two for each
    server. The workers of a command are not known, and count as those of a config that does not set them.
    """
    trainers = run.command.processes if run.command is not None else (train_gpus(run) or 0) // run.parallel.machines
    threads = 1 if run.audio is None else run.audio.threads
    return 1 + trainers * (2 + run.data.planned_workers * threads) + 2 * server_gpus(run)


def _memory_mib(run: RunSpec, known: KnownRun, *, on_cpu: bool) -> int | None:
    """Memory of the machine for all processes, rounded up to a GiB.

    None if the size of the model is not known. A server takes its weights to the GPU through the page cache, and counts
    as one more process for each GPU.
    """
    if known.parameters is None or known.vocab_size is None or run.prime_rl is not None:
        return None
    if not trains(run):
        total = (2 + server_gpus(run)) * _PROCESS_BYTES + _SERVED_BYTES * known.parameters
        return 1024 * math.ceil(_MEMORY_FACTOR * total / GIB)
    processes = run.parallel.processes_here
    replicas = max(1.0, replicas_of(run) / run.parallel.machines)  # of the sharded state, on one machine
    count = 2 + processes * (1 + run.data.planned_workers) + server_gpus(run)
    each = _STAGED_BYTES + _LOADED_BYTES
    total = count * _PROCESS_BYTES + each * known.parameters * replicas
    if on_cpu:
        positions = 1 if run.audio is not None else run.data.ctx_tokens  # a clip has its classes once
        logits = _LOGIT_BYTES * run.batch.micro_batch * positions * known.vocab_size
        total += _ON_CPU_BYTES * known.parameters * replicas + processes * logits
    return 1024 * math.ceil(_MEMORY_FACTOR * total / GIB)


def _save_s(run: RunSpec, known: KnownRun) -> float:
    """Seconds of one save: the longest measured one, else its size at the speed of a slow file system.

    0 if nothing is saved at a stop, or if little is: the checkpoint of an adapter.
    """
    if not known.saves_on_stop or not trains(run):
        return 0.0
    if known.save_s is not None:
        return known.save_s
    if known.parameters is None or run.model.lora is not None:
        return 0.0
    return _STAGED_BYTES * known.parameters / _SAVE_BYTES_PER_S


def _limit_minutes(run: RunSpec, known: KnownRun, notice_s: int) -> int | None:
    """The time that the remaining steps take, with a start and the notice. None if the time of a step is not known."""
    if known.step_s is None or run.run.max_steps >= ENDLESS_STEPS or not trains(run):
        return None
    left_s = max(0, run.run.max_steps - known.done_steps) * known.step_s
    return math.ceil((_START_S + left_s + notice_s) / 60)


def _refuse_short(limit_minutes: int | None, notice_s: int) -> None:
    if notice_s > _LONGEST_NOTICE_S:
        what = f"the run needs {notice_s:,} s before the time limit to save"
        why = f"Slurm sends its signal at most {_LONGEST_NOTICE_S:,} s before the limit"
        fix = "lower prime_train.stop_grace_s, or save to a faster disk"
        raise UserError(what, "prime_train.stop_grace_s", why, fix)
    if limit_minutes is not None and notice_s >= 60 * limit_minutes:
        what = f"the time limit is {limit_minutes} min, and saving needs the last {notice_s} s"
        fix = f"--time-limit {math.ceil(notice_s / 60) + 10} or more, or a lower prime_train.stop_grace_s"
        raise UserError(what, "--time-limit", "the job would be asked to save before it has trained", fix)
