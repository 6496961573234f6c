"""What the machine gives the run: open files, memory, /dev/shm, cores and clock. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.units import GIB, counted, format_bytes, format_seconds
from prime_train.rules.model.model_sizes import sizes_of
from prime_train.rules.rule import Problems, facts_rule, known, suggest
from prime_train.rules.training.run_needs import anchor, architecture, training_bytes
from prime_train.spec import RunSpec
from prime_train.spec.answers import is_one_process, prime_rl_of, traits_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts
    from prime_train.facts.machine import OpenFiles, Ram

_OPEN_FILES_WANTED = 65536  # sockets between ranks, loader workers and shards add up; 1024 is a login shell's default
_PERMANENTLY = (
    f"LimitNOFILE={_OPEN_FILES_WANTED} in its systemd unit, or docker run "
    f"--ulimit nofile={_OPEN_FILES_WANTED}:{_OPEN_FILES_WANTED}"
)
_RAISE_LIMIT = f"raise the hard limit: as root, ulimit -n {_OPEN_FILES_WANTED}, then start the run; or {_PERMANENTLY}"
_OPEN_FILES_NEEDED = 256  # below it Python, torch and its loader workers fail to start
_SHM_WANTED_BYTES = GIB  # docker gives a container 64 MiB, and NCCL takes some for each pair of ranks
_MOMENTS = {"adamw": 2, "muon": 1, "sgd": 0, "sign_sgd": 0}  # the fewest that each optimizer keeps per weight
_CLOCK_SLACK_S = 3600.0  # the clock of the file server that dated the file may be ahead of this one


@facts_rule("HST001", Severity.WARNING, needs=("open_files",))
def few_open_files(run: RunSpec, facts: Facts) -> Problems:
    """A process should be allowed 65536 open files.

    each rank, loader worker and data shard holds files open: a long run ends with "Too many open files"

    The bundled trainer raises its soft limit to the hard one. Below 256 it is an error, because the trainer does not
    start; a single process has no other ranks, and 256 are enough. prime-rl keeps the soft limit, and with rollouts it
    is an error: runs with 32768 ended at step 15. In this shell: `ulimit -n 65536`; in systemd:
    `LimitNOFILE=65536`; in a container: `docker run --ulimit nofile=65536:65536`.

    Source: setrlimit(2), RLIMIT_NOFILE; operators' runs of prime-rl (step 15 at 32768).

    Bad:
        [facts.open_files]
        soft = 1024
        hard = 4096
        [parallel]
        processes = 2
    Bad (prime-rl 2026-08):
        [facts.open_files]
        soft = 32768
        hard = 1048576
    Good:
        [facts.open_files]
        soft = 1024
        hard = 1048576
    """
    limit = known(facts.open_files)
    if not traits_of(run).raises_open_files_limit:
        yield from _few_for_prime_rl(run, limit)
    elif limit.hard is not None and limit.hard < _most_needed(run.parallel.processes_here):
        yield Problem(
            "parallel.processes",
            f"a process may open {limit.hard} files, and the trainer runs {run.parallel.processes_here} x "
            f"(1 + `data.loader_workers` {run.data.planned_workers}) processes",
            fix=_RAISE_LIMIT,
            severity=Severity.ERROR if limit.hard < _OPEN_FILES_NEEDED else Severity.WARNING,
        )


def _most_needed(processes: int) -> int:
    return _OPEN_FILES_NEEDED if processes == 1 else _OPEN_FILES_WANTED


def _few_for_prime_rl(run: RunSpec, limit: OpenFiles) -> Problems:
    """prime-rl keeps the soft limit, and its orchestrator opens a socket for every rollout."""
    if limit.soft >= _OPEN_FILES_WANTED:
        return
    within = limit.hard is None or limit.hard >= _OPEN_FILES_WANTED
    yield Problem(
        anchor(run),
        f"a process may open {limit.soft} files{'' if within else f', {limit.hard} at most'}, and each rollout in "
        "flight holds sockets and files",
        fix=f"ulimit -n {_OPEN_FILES_WANTED}, in the shell that starts the run; permanently: {_PERMANENTLY}"
        if within
        else _RAISE_LIMIT,
        severity=Severity.WARNING if prime_rl_of(run).rollout is None else Severity.ERROR,
    )


@facts_rule("HST002", Severity.ERROR, needs=("ram", "gpus", "model_folder", "tokenizer_folder"))
def too_little_memory(run: RunSpec, facts: Facts) -> Problems:
    """Training on a CPU must fit into memory.

    the kernel kills a trainer that needs more than there is

    Only the unavoidable is counted: weights, gradients and the two moments of AdamW in fp32, logits and their
    gradient, and 0.5 GiB per process. A need above the free memory but below the total is a warning.

    Source: ZeRO, arXiv 1910.02054, s. 3.1 (16 bytes per parameter in fp32).

    Bad:
        [model]
        layers = 32
        hidden_size = 4096
        heads = 32
        [facts.ram]
        total_bytes = 17179869184
        available_bytes = 17179869184
    Good:
        [model]
        layers = 32
        hidden_size = 4096
        heads = 32
        [facts.ram]
        total_bytes = 549755813888
        available_bytes = 549755813888
    """
    decoder = architecture(run, facts)
    if known(facts.gpus).devices or decoder is None:
        return
    ram = known(facts.ram)
    needed = training_bytes(run, decoder)
    if needed <= ram.available_bytes:
        return
    count = run.parallel.processes_here
    processes = "1 process" if count == 1 else f"{count} processes"
    what, fix = f"{format_bytes(needed)} for {processes}", "a smaller model or `batch.micro_batch`, or a larger machine"
    yield _beyond_memory("model", what, ram, needed <= ram.total_bytes, fix)


def _beyond_memory(at: str, needed: str, ram: Ram, fits: bool, fix: str) -> Problem:
    """`fits`: the need is within the total, so other processes hold the memory."""
    return Problem(
        at,
        f"at least {needed}, and this machine has {format_bytes(ram.available_bytes)} free of "
        f"{format_bytes(ram.total_bytes)}",
        fix="end other processes that hold memory" if fits else fix,
        severity=Severity.WARNING if fits else None,
    )


@facts_rule("HST006", Severity.ERROR, needs=("ram",))
def too_little_memory_for_the_offload(run: RunSpec, facts: Facts) -> Problems:
    """What prime-rl offloads to the CPU must fit into the memory of the machine.

    the kernel kills the trainer when the first step creates the moments, and the trainer leaves no message

    Judged for models in the registry, and only the unavoidable is counted: with optim_cpu_offload, on by default in
    2026-08, the optimizer's moments; with fsdp_cpu_offload also weights and gradients; both for each of the
    dp_replicate copies. A need above the free memory but below the total is a warning.

    Source: prime-rl at 559b447, model.optim_cpu_offload and model.fsdp_cpu_offload; ZeRO, arXiv 1910.02054, s. 3.1.

    Bad (prime-rl 2026-08):
        [facts.ram]
        total_bytes = 8589934592
        available_bytes = 8589934592
    Bad (prime-rl 2026-05):
        [trainer.model]
        fsdp_cpu_offload = true
        [facts.ram]
        total_bytes = 17179869184
        available_bytes = 17179869184
    Good (prime-rl 2026-08):
        [trainer.model]
        optim_cpu_offload = false
        [facts.ram]
        total_bytes = 8589934592
        available_bytes = 8589934592
    Good (prime-rl 2026-05):
        [facts.ram]
        total_bytes = 8589934592
        available_bytes = 8589934592
    """
    parts = prime_rl_of(run)
    trainer, ram = parts.trainer, known(facts.ram)
    sizes = sizes_of(trainer.model_name) if trainer is not None else None
    if trainer is None or sizes is None or trainer.fake_data:
        return
    needed = sizes.parameters * _offloaded_bytes(run) * (trainer.dp_replicate or 1)
    nodes = (parts.deployment.train_nodes if parts.deployment is not None else None) or 1
    if needed <= ram.available_bytes * nodes:
        return
    at = "trainer.fsdp_cpu_offload" if trainer.fsdp_cpu_offload else "trainer.optim_cpu_offload"
    what = f"{format_bytes(needed / nodes)} of {sizes.name} go to the CPU"
    fix = f"a machine with more memory, or `{at}` = false where the GPUs have room"
    yield _beyond_memory(at, what, ram, needed <= ram.total_bytes * nodes, fix)


def _offloaded_bytes(run: RunSpec) -> int:
    """Bytes on the CPU per weight of one copy of the model; those of an adapter are negligible."""
    parts = prime_rl_of(run)
    trainer = parts.trainer
    if trainer is None:
        return 0
    each = 2 if trainer.optimization_dtype == "bfloat16" else 4
    trained = 0 if parts.lora is not None else each
    moments = trained * _MOMENTS.get(trainer.optimizer or "adamw", 0)
    if trainer.fsdp_cpu_offload:
        return each + trained + moments
    return moments if trainer.optim_cpu_offload else 0


@facts_rule("HST003", Severity.WARNING, needs=("shm",))
def little_shared_memory(run: RunSpec, facts: Facts) -> Problems:
    """/dev/shm should have room for the buffers that processes share.

    NCCL and data workers pass buffers through it: if it is full, they end with "Bus error"

    Source: NCCL user guide, troubleshooting, shared memory; docker run, --shm-size.

    Bad:
        [parallel]
        processes = 2
        [facts.shm]
        total_bytes = 67108864
        free_bytes = 67108864
    Bad (prime-rl 2026-08):
        [facts.shm]
        total_bytes = 67108864
        free_bytes = 67108864
    Good:
        [facts.shm]
        total_bytes = 67108864
        free_bytes = 67108864
    """
    shm = known(facts.shm)
    if shm.free_bytes >= _SHM_WANTED_BYTES or is_one_process(run):
        return
    yield Problem(
        anchor(run),
        f"/dev/shm has {format_bytes(shm.free_bytes)} free of {format_bytes(shm.total_bytes)}",
        fix="docker run --shm-size=16g or --ipc=host; else: mount -o remount,size=16g /dev/shm"
        if shm.total_bytes < _SHM_WANTED_BYTES
        else "delete what ended processes left there: ls -l /dev/shm",
    )


@facts_rule("HST005", Severity.WARNING, needs=("clock",))
def clock_behind(run: RunSpec, facts: Facts) -> Problems:
    """The clock must not show a time before this program was installed.

    certificates and signed requests to the hub, to storage and to W&B are refused, and times in logs do not match

    Source: RFC 5280, s. 4.1.2.5 (a certificate has a first day); AWS, signature version 4 (15 minutes).

    Bad:
        [facts.clock]
        unix_s = 1000000000.0
    Good:
        [facts.clock]
        unix_s = 1790000100.0
    """
    clock = known(facts.clock)
    behind_s = clock.not_before_unix_s - clock.unix_s
    if behind_s > _CLOCK_SLACK_S:
        yield Problem(
            anchor(run),
            f"the clock is {format_seconds(behind_s)} behind the time at which {clock.witness} was written",
            fix="timedatectl set-ntp true, on the host where this is a container",
        )


@facts_rule("HST007", Severity.ERROR, needs=("cpu",))
def auto_workers_on_one_core(run: RunSpec, facts: Facts) -> Problems:
    """`loader_workers = "auto"` needs a machine with at least two cores.

    a worker would run on the trainer's only core, so their rates cannot be measured beside each other

    Source: trainer/data/worker_count.py.

    Bad:
        [data]
        loader_workers = "auto"
        [facts.cpu]
        cores = 1
    Good:
        [data]
        loader_workers = "auto"
        [facts.cpu]
        cores = 2
    """
    cores = known(facts.cpu).cores
    if run.data.loader_workers == "auto" and cores < 2:
        yield suggest("data.loader_workers", f'"auto", and there is {counted(cores, "core")}', 1)


@facts_rule("HST004", Severity.NOTE, needs=("cpu",))
def fewer_cores_than_workers(run: RunSpec, facts: Facts) -> Problems:
    """There should be a core for every loader worker, and for each of its threads.

    workers that share cores with the trainer slow down its steps

    Source: trainer/data/loader.py (each worker is a process), trainer/audio/worker_program.py (with its threads).

    Bad:
        [data]
        loader_workers = 32
    Bad (audio):
        [audio]
        threads = 8
        [data]
        loader_workers = 4
    Good:
        [data]
        loader_workers = 2
    """
    if run.data.loader_workers == "auto":
        return
    processes, workers, cores = run.parallel.processes_here, run.data.loader_workers, known(facts.cpu).cores
    threads = 1 if run.audio is None else run.audio.threads
    if processes * workers * threads <= max(cores, processes):
        return
    each = f" with {threads} threads" if threads > 1 else ""
    here = counted(cores, "core")
    what = f"{processes} x {workers} workers{each}, and there are {here}"
    fitting = max(1, (cores // processes - 1) // threads)
    if fitting < workers:
        yield suggest("data.loader_workers", what, fitting)
    else:
        yield suggest("audio.threads", what, max(1, cores // (processes * workers)))
