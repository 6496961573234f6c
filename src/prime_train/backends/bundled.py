"""Plans the start of the bundled trainer. Pure: it starts nothing and looks at nothing."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from prime_train.backends import vllm
from prime_train.backends.launch import Launch
from prime_train.checkpoints import layout
from prime_train.checkpoints.layout import Checkpoint
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec

_TRAINER = "prime_train.trainer"
LOOPBACK = "127.0.0.1"


def plan(run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> Launch:
    """One process started directly, or several through torchrun, which gives each its rank."""
    arguments = (str(run_dir.path), "--attempt", str(attempt), "--resume-step", str(resume_step))
    return Launch(
        role="trainer",
        argv=(sys.executable, *_launcher(run.parallel.processes, run_dir.attempt(attempt)), "-m", _TRAINER, *arguments),
        cwd=Path.cwd(),
        log=run_dir.log(attempt, "trainer"),
    )


def _launcher(processes: int, attempt_dir: Path) -> tuple[str, ...]:
    """torchrun never restarts by itself: which checkpoint to resume from is the supervisor's to say.

    It meets over a file. `--standalone` would listen on every interface of the machine, and unpickle what
    it is sent there (torch 2.13, elastic/rendezvous/dynamic_rendezvous.py).
    """
    if processes == 1:
        return ()
    return (
        *("-m", "torch.distributed.run", "--nnodes", "1", "--nproc-per-node", str(processes), "--max-restarts", "0"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", str(attempt_dir / "rendezvous"), "--rdzv-conf"),
        *("store_type=file", "--local-addr", LOOPBACK),
    )


@dataclass(frozen=True, slots=True)
class Bundled:
    """The trainer of this package."""

    name: str = "bundled"
    stops_by_file: bool = True
    reports: bool = True

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        """The trainer; before it the server of a run that has one."""
        server = (vllm.plan(run, run_dir, attempt),) if run.server is not None else ()
        return (*server, plan(run, run_dir, attempt, resume_step))

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        del run
        return ()

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[Checkpoint]:
        del run
        return layout.scan(run_dir.checkpoints)


BACKEND = Bundled()
