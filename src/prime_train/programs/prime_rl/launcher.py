"""Plans the start of prime-rl's own launcher, `rl` or `sft`. Starts nothing.

There is one launch for each attempt: the launcher itself starts inference, environment servers, orchestrator and
trainer. This package works around its limits: it gives a run a new name at each start, takes the newest checkpoint
folder even if incomplete, refuses a folder with files of a failed start, and saves nothing when it gets SIGTERM.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.prime_rl.run_directory import COPY, ROLE, find_folder
from prime_train.programs.prime_rl.settings import CopiedSetting, settings, write_settings
from prime_train.spec import RunSpec
from prime_train.spec.answers import prime_rl_of
from prime_train.supervise.launch.environment import (
    ALLOCATOR,
    V1,
    explain_v1,
    flight_recorder,
    gpu_order,
    list_engine_variables,
    python,
)
from prime_train.supervise.launch.program import EnvNote, Host, Launch, Needs, Variable, add_guard

# The launcher's handler of SIGTERM first joins a thread for each child, 5 s at most, then gives each tree 60 s.
# Source: prime-rl, utils/process.py, cleanup_threads and cleanup_processes.
_JOIN_S = 5.0
_TREE_S = 60.0


@dataclass(frozen=True, slots=True)
class Launcher:
    """The launcher of one run. `text` is the config as written, `before` its RunSpec.

    `run_id` is the id that prime-rl and W&B use for the run; it stays the same over restarts. `missing`: why it is not
    installed, for a plan that is only shown; else "".
    """

    text: str
    before: RunSpec
    root: str
    installed: Path  # beside the programs that it starts by name
    run_id: str
    path: str = os.defpath  # PATH of the supervisor
    cwd: Path = field(default_factory=Path.cwd)
    missing: str = ""

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        copy = run_dir.attempt(attempt) / COPY
        return (
            Launch(
                role=ROLE,
                argv=add_guard((str(self.installed), "@", str(copy))),
                cwd=self.cwd,
                log=run_dir.log(attempt, ROLE),
                variables=self._list_variables(),
                files=((copy, write_settings(self.text, self.settings(run, resume_step))),),
                aside=() if resume_step else _list_obstacles(run, attempt),
            ),
        )

    def settings(self, run: RunSpec, resume_step: int) -> tuple[CopiedSetting, ...]:
        """The differences of the copy of the config from the file."""
        return settings(self.before, run, self.root, resume_step)

    def _list_variables(self) -> tuple[Variable, ...]:
        where = self.installed.parent
        active = []
        if not self.missing and self.path.split(os.pathsep)[0] != str(where):
            path = f"{where}{os.pathsep}{self.path}"
            active.append(Variable("PATH", path, "the launcher starts its parts by name"))
        same = "one run in W&B over all restarts"
        never = "the launcher then deletes nothing, even if the file requests it"
        return (
            *active,
            Variable("VIRTUAL_ENV", str(where.parent), "as if it were activated"),
            Variable("PRL_RUN_ID", self.run_id, same),
            Variable("WANDB_SHARED_RUN_ID", self.run_id, f"{same}: its name before 2026-08"),
            Variable("NEVER_CLEAN", "1", never),
            Variable("NEVER_CLEAN_OUTPUT_DIR", "1", f"{never}: its name before 2026-08"),
        )


def count_processes(run: RunSpec) -> int:
    """Processes that the launcher starts: inference, a server for each environment, orchestrator, trainer, a tail."""
    parts = prime_rl_of(run)
    servers = 0
    if parts.environments is not None:
        both = (*(parts.environments.train or ()), *(parts.environments.evaluate or ()))
        servers = sum(not environment.address for environment in both)
    return servers + (run.inference is not None) + (parts.rollout is not None) + 2


def count_gpus(run: RunSpec) -> int:
    """GPUs that the launcher needs on this machine: it does not start with fewer. In 2026-01 roles may share one."""
    deployment = prime_rl_of(run).deployment
    if deployment is None:
        return 1
    if deployment.train_gpu_ids is not None or deployment.infer_gpu_ids is not None:
        return len({*(deployment.train_gpu_ids or ()), *(deployment.infer_gpu_ids or ())})
    return (deployment.train_gpus or 1) + (deployment.infer_gpus or 0) * (run.inference is not None)


def compute_stop_grace_s(run: RunSpec) -> float:
    """Seconds that the launcher may take to end after SIGTERM, before its tree is killed."""
    return _JOIN_S * count_processes(run) + _TREE_S


def _list_obstacles(run: RunSpec, attempt: int) -> tuple[Path, ...]:
    """Folders to rename before a start from the beginning, because the launcher refuses files of an earlier start.

    Only folders of this run. Before its first attempt, the user must decide about a folder in use.
    """
    parts = prime_rl_of(run)
    if attempt == 1:
        return ()
    apart = parts.saving.output_dir if parts.saving is not None else None
    return (find_folder(run), *((Path(apart) / "checkpoints",) if apart else ()))


def needs(run_dir: RunDir, attempt: int, host: Host, vllm: str | None = None) -> Needs:
    """The environment of the launcher, which sets most variables of its parts itself.

    `vllm`: the version of the vLLM that it starts; None if the run has no inference server.
    """
    sets = "prime-rl's launcher sets it for each of its parts in any case"
    shadowed = f"torch reads {ALLOCATOR[1]} first, which prime-rl sets for each of its parts"
    reasons = ((ALLOCATOR[1], sets), ("OMP_NUM_THREADS", sets), (ALLOCATOR[0], shadowed))
    given = host.given
    engine = () if vllm is None else list_engine_variables(vllm)
    return Needs(
        (*python(), gpu_order(), *flight_recorder(run_dir, attempt), *engine),
        left_out=(
            *(_leave_out(name, given, reason) for name, reason in reasons),
            *(() if vllm is None else explain_v1(given.get(V1), vllm)),
        ),
    )


def _leave_out(name: str, given: Mapping[str, str], reason: str) -> EnvNote:
    return EnvNote("ignored", name, given[name], reason) if name in given else EnvNote("left out", name, "", reason)


_HEAD_BYTES = 4096


def find_launcher(root: str, python: str | None, environment: Mapping[str, str], cwd: Path, shown: str) -> Path:
    """`rl` or `sft` beside the interpreter that the config names; else on PATH, else in a .venv of this project.

    A program of another project is skipped: Debian has an `rl` that shuffles lines.
    Raises UserError if there is none. `shown` is the config, for the message.
    """
    looked: list[str] = []
    for candidate in _list_candidates(root, python, environment, cwd):
        if _is_prime_rl(candidate):
            return candidate
        looked.append(f"{candidate}: {'not prime-rl' if candidate.exists() else 'not there'}")
    where = looked[-1].partition(":")[0] if python else "PATH and .venv/bin of this folder and those above it"
    raise UserError(
        what=f"no {root} of prime-rl was found: {'; '.join(looked[-3:]) or 'PATH has no program of that name'}",
        where=where,
        why=f"{shown} is a config of prime-rl; prime-rl's own launcher trains it under prime-train's supervision",
        fix=_advise(root, python),
        exit_code=ExitCode.OUT_OF_REACH,
    )


def _advise(root: str, python: str | None) -> str:
    if python is None:
        named = '[prime_train] python = "PATH/TO/prime-rl/.venv/bin/python"'
        return f"{named} in the config, or start this inside its .venv"
    again = shlex.join([python, "-c", "import prime_rl; print(prime_rl.__file__)"])
    return f"name the interpreter of the environment that has {root}; `{again}` must print a path"


def _list_candidates(root: str, python: str | None, environment: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    if python is not None:
        named = Path(python).expanduser()
        yield (cwd / named).parent / root  # not resolved, because in a venv the interpreter is a link
        return
    for listed in environment.get("PATH", os.defpath).split(os.pathsep):
        found = Path(listed or ".", root).absolute()
        if found.is_file() and os.access(found, os.X_OK):
            yield found
    for place in (environment.get("VIRTUAL_ENV"), *(str(above / ".venv") for above in (cwd, *cwd.parents))):
        if place and (found := Path(place, "bin", root)).is_file():
            yield found


def _is_prime_rl(program: Path) -> bool:
    """Whether an installer wrote the script for an entry point of prime_rl."""
    try:
        with open(program, "rb") as file:
            return b"prime_rl" in file.read(_HEAD_BYTES)
    except OSError:
        return False
