"""Plans the start of prime-rl's own launcher, `rl` or `sft`, and knows where its files lie. Starts nothing.

One launch an attempt: the launcher starts inference, environment servers, orchestrator and trainer itself. What it
does not do is worked around here and in supervise/prime_rl.py: it names a run anew at each start, takes the newest
checkpoint folder whether whole or not, refuses a folder that a failed start has left files in, saves nothing when it
is asked to end.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.backends.launch import Launch, Variable
from prime_train.backends.prime_rl_settings import Setting, settings, written
from prime_train.checkpoints import prime_rl_layout
from prime_train.checkpoints.layout import PIN, Checkpoint
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec

ROLE = "prime_rl"
RUN_ID = "prime_rl_run_id"  # a file of the run directory, which no other run has
COPY = "prime_rl.toml"  # of the config, in the folder of an attempt
ROOTS = ("rl", "sft")  # what has a launcher; every other root is one component of a run

_GUARD = Path(__file__).with_name("guard.py")

# The launcher's handler of SIGTERM first joins a thread for each child, 5 s at most, then gives each tree 60 s.
# Source: prime-rl, utils/process.py, cleanup_threads and cleanup_processes.
_JOIN_S = 5.0
_TREE_S = 60.0


@dataclass(frozen=True, slots=True)
class Program:
    """The launcher of an installed prime-rl. `bin_dir` holds the programs that it starts by their bare names."""

    argv: tuple[str, ...]
    bin_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class PrimeRl:
    """prime-rl as the supervisor sees it. `text` is the config as written, `before` the RunSpec that it gives.

    `run_id` is the id that prime-rl and W&B know the run by; it stays over every restart.
    """

    text: str
    before: RunSpec
    root: str
    program: Program
    run_id: str
    path: str = os.defpath  # PATH, as the supervisor has it
    cwd: Path = field(default_factory=Path.cwd)
    name: str = ROLE
    stops_by_file: bool = False
    reports: bool = False  # nothing is known before its first log lines

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        copy = run_dir.attempt(attempt) / COPY
        return (
            Launch(
                role=ROLE,
                argv=(sys.executable, "-I", "-S", str(_GUARD), *self.program.argv, "@", str(copy)),
                cwd=self.cwd,
                log=run_dir.log(attempt, ROLE),
                variables=self._variables(),
                files=((copy, written(self.text, self.settings(run, resume_step))),),
                aside=() if resume_step else _in_the_way(run, attempt),
            ),
        )

    def settings(self, run: RunSpec, resume_step: int) -> tuple[Setting, ...]:
        return settings(self.before, run, self.root, resume_step)

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[Checkpoint]:
        del run_dir
        return checkpoints(run, shards=True)

    def log_folders(self, run: RunSpec) -> tuple[Path, ...]:
        return (folder(run) / "logs", folder(run) / "torchrun")

    def _variables(self) -> tuple[Variable, ...]:
        where = self.program.bin_dir
        path = (
            (Variable("PATH", f"{where}{os.pathsep}{self.path}", "the launcher starts its parts by their bare names"),)
            if where is not None and self.path.split(os.pathsep)[:1] != [str(where)]
            else ()
        )
        active = (Variable("VIRTUAL_ENV", str(where.parent), "as if it were activated"),) if where is not None else ()
        same = "one run in W&B over all restarts"
        never = "the launcher then deletes nothing, whatever the file says"
        return (
            *path,
            *active,
            Variable("PRL_RUN_ID", self.run_id, same),
            Variable("WANDB_SHARED_RUN_ID", self.run_id, f"{same}: its name before 2026-08"),
            Variable("NEVER_CLEAN", "1", never),
            Variable("NEVER_CLEAN_OUTPUT_DIR", "1", f"{never}: its name before 2026-08"),
        )


# --- where prime-rl writes -------------------------------------------------------------------------


def folder(run: RunSpec) -> Path:
    """The folder of a run that `prime_rl_settings.named` has fixed: absolute."""
    assert run.launch is not None
    assert run.launch.output_dir is not None
    return Path(run.launch.output_dir) / (run.launch.run_dir or run.launch.run_name or "")


def checkpoints(run: RunSpec, *, shards: bool = False) -> list[Checkpoint]:
    """Every checkpoint of the run, newest first. Its parts may stand in several folders; `path` is the trainer's.

    `shards`: one with a file that is shorter than its `.metadata` says is not complete.
    """
    saved = _saved(run)
    return [_checkpoint(run, step, saved[step], shards) for step in sorted(saved, reverse=True)]


def parts_of(run: RunSpec, checkpoint: Checkpoint) -> list[Path]:
    """Every folder that holds a part of a checkpoint."""
    return _saved(run).get(checkpoint.step, [])


def _saved(run: RunSpec) -> dict[int, list[Path]]:
    apart = run.saving.output_dir if run.saving is not None else None
    return prime_rl_layout.steps(prime_rl_layout.roots(folder(run), Path(apart) if apart else None).checkpoints)


def _checkpoint(run: RunSpec, step: int, parts: Sequence[Path], shards: bool) -> Checkpoint:
    problem = prime_rl_layout.problem(parts, orchestrated=run.rollout is not None, shards=shards)
    pinned = any((part / PIN).exists() for part in parts)
    return Checkpoint(step, parts[0], sum(_size_bytes(part) for part in parts), problem, pinned)


def _size_bytes(folder: Path) -> int:
    total = 0
    for directory, _, names in os.walk(folder):  # it passes over what vanishes under it
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(directory, name).lstat().st_size
    return total


def processes(run: RunSpec) -> int:
    """Processes that the launcher starts: inference, a server for each environment, orchestrator, trainer, a tail."""
    servers = 0
    if run.environments is not None:
        both = (*(run.environments.train or ()), *(run.environments.evaluate or ()))
        servers = sum(not environment.address for environment in both)
    return servers + (run.inference is not None) + (run.rollout is not None) + 2


def gpus_needed(run: RunSpec) -> int:
    """GPUs that the launcher takes on this machine: it refuses to start with fewer. In 2026-01 roles may share one."""
    deployment = run.deployment
    if deployment is None:
        return 1
    if deployment.train_gpu_ids is not None or deployment.infer_gpu_ids is not None:
        return len({*(deployment.train_gpu_ids or ()), *(deployment.infer_gpu_ids or ())})
    return (deployment.train_gpus or 1) + (deployment.infer_gpus or 0) * (run.inference is not None)


def stop_grace_s(run: RunSpec) -> float:
    """Seconds that the launcher may take between SIGTERM and its end, before its tree is ended by force."""
    return _JOIN_S * processes(run) + _TREE_S


def logs(run: RunSpec, run_dir: RunDir, attempt: int) -> list[Path]:
    """Every log of one attempt: the launcher's, and those of its parts that were written to since it was started."""
    own = run_dir.log(attempt, ROLE)
    copy = run_dir.attempt(attempt) / COPY
    if not copy.exists():
        return []
    since_s = copy.stat().st_mtime  # it is written before anything is started
    found = {own} if own.exists() else set()
    for root in (folder(run) / "logs", folder(run) / "torchrun"):
        for directory, _, names in os.walk(root):  # it does not follow `latest`, which names a folder twice
            for name in names:
                path = Path(directory, name)
                if path.suffix in _LOGS and _changed_s(path) >= since_s:
                    found.add(path)
    return sorted(found)


_LOGS = (".log", ".stdout", ".stderr")


def _changed_s(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _in_the_way(run: RunSpec, attempt: int) -> tuple[Path, ...]:
    """What a start from the beginning may not find: the launcher refuses a folder with files of an earlier start.

    Only what this run has left there itself. Before its first attempt a folder that is in use is the user's business.
    """
    if attempt == 1:
        return ()
    apart = run.saving.output_dir if run.saving is not None else None
    return (folder(run), *((Path(apart) / "checkpoints",) if apart else ()))
