"""The trainer of this package as a `Program`, and the vLLM server beside it. Starts nothing.

Everything that the trainer needs beyond the command line is in resolved.json. torchrun's `--standalone` serves a store
on every interface and unpickles what it receives, so the ranks on a machine meet over a file in the attempt's folder,
and rank 0 serves a store on 127.0.0.1. A request to stop is a file, because a file reaches every rank through any
launcher.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.machines import INTERFACE, LOOPBACK
from prime_train.core.python_child import own_module
from prime_train.core.rundir import RunDir
from prime_train.programs.base import RunTomlProgram
from prime_train.spec import RunSpec
from prime_train.spec.answers import launched_server
from prime_train.supervise.launch.environment import (
    ALLOCATOR,
    between_machines,
    flight_recorder,
    gpu_order,
    loopback,
    python,
    safe_path,
)
from prime_train.supervise.launch.program import Host, Launch, Needs, Role, Variable
from prime_train.supervise.watches.watch import Watch

ROLE = "trainer"
_TRAINER = "prime_train.trainer"
_REPLICAS = "prime_train.trainer.replicas.launcher"
_RELAY = "prime_train.supervise.machines.relay"


@dataclass(frozen=True, slots=True)
class Bundled(RunTomlProgram):
    """The trainer of this package, and before it the vLLM server of a run that has one."""

    name: str = "bundled"
    stops_by_file: bool = True
    saves_by_file: bool = True
    reports: bool = True
    shrinks: bool = True
    keeps_hashes: bool = True

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        from prime_train.programs.vllm import program as vllm  # lazy, as below: it takes a tenth of a `ckpt list`

        server = launched_server(run)
        served = (Role(vllm.ROLE, vllm.count_gpus(server), serves=True),) if server is not None else ()
        layout = run.parallel
        least = min(layout.min_replicas, layout.replicas_here) * layout.group_processes if layout.replicas else None
        return (Role(ROLE, layout.processes_here, least_gpus=least), *served)

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        from prime_train.programs.vllm import program as vllm

        served = (vllm.plan(run, run_dir, attempt),) if launched_server(run) is not None else ()
        others = (plan_relay(run, run_dir, attempt, resume_step),) if run.parallel.machines > 1 else ()
        return (*served, plan(run, run_dir, attempt, resume_step), *others)

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        from prime_train.programs.vllm import program as vllm
        from prime_train.supervise.machines import protocol

        if role == vllm.ROLE:
            return vllm.plan_environment(run, host)
        if role == protocol.ROLE:
            return Needs(python())
        return needs(run, run_dir, attempt, host)

    def watches(self, run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
        from prime_train.programs.vllm import program as vllm

        return vllm.create_watches(run, run_dir)


PROGRAM = Bundled()


def plan(run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Launch:
    """One process started directly, several by torchrun, which gives each its rank, or the launcher of replicas."""
    arguments = (str(run_dir.path), "--attempt", str(attempt), "--resume-step", str(resume_step))
    processes = 1 if run.parallel.replicas else run.parallel.processes_here
    launcher = _list_launcher(processes, run_dir.rendezvous(attempt))
    module = _REPLICAS if run.parallel.replicas else _TRAINER
    return Launch(
        role=ROLE,
        argv=(sys.executable, *launcher, "-m", module, *arguments),
        cwd=Path.cwd(),
        log=run_dir.log(attempt, ROLE),
    )


def plan_relay(run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Launch:
    """The process that stands for the trainers of the other machines. It is planned on machine 0 alone."""
    from prime_train.supervise.machines import protocol

    values = {
        "--attempt": attempt,
        "--resume-step": resume_step,
        "--micro-batch": run.batch.micro_batch,
        "--processes": run.parallel.processes_here,
        "--join-limit-s": run.prime_train.heartbeat.join_limit_s,
        "--replicas": run.parallel.replicas_here,
        "--min-replicas": run.parallel.min_replicas,
    }
    options = (text for name, value in values.items() for text in (name, str(value)))
    return Launch(
        role=protocol.ROLE,
        argv=tuple(own_module(_RELAY, str(run_dir.path), *options)),
        cwd=Path.cwd(),
        log=run_dir.log(attempt, protocol.ROLE),
    )


def _list_launcher(processes: int, rendezvous: Path) -> tuple[str, ...]:
    """torchrun never restarts by itself, because the supervisor chooses the checkpoint to resume from.

    Its processes meet over a file. `--standalone` would listen on every interface of the machine, and unpickle
    what it receives there (torch 2.13, elastic/rendezvous/dynamic_rendezvous.py).
    """
    if processes == 1:
        return ()
    return (
        *("-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(processes), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(rendezvous), "--rdzv-conf"),
        *("store_type=file", "--local-addr", LOOPBACK),
    )


_NO_SHARED_STORE = Variable(
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", "torchrun's store listens on every interface; rank 0 has its own"
)


def needs(run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
    """The environment of the trainer's processes, which share the cores of this machine."""
    processes = run.parallel.processes_here
    # A server on a CPU computes at the same time, and more busy OpenMP threads than cores slow down both.
    sharing = processes + (launched_server(run) is not None)
    threads = str(max(1, host.cores // sharing))
    reason = "fragments of segments then waste less memory"
    several: tuple[Variable, ...] = ()
    if run.parallel.processes > 1:
        network = loopback() if run.parallel.machines == 1 else between_machines(host.given.get(INTERFACE, ""))
        several = (*network, _NO_SHARED_STORE, *flight_recorder(run_dir, attempt))
    return Needs(
        (
            *python(),
            safe_path(),
            Variable("OMP_NUM_THREADS", threads, f"{host.cores} cores over {sharing} processes"),
            gpu_order(),
            *(Variable(name, "expandable_segments:True", reason) for name in ALLOCATOR),
            *several,
        )
    )
