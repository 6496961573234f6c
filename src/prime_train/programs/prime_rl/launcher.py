"""Plans the start of prime-rl's own launcher, `rl` or `sft`. Starts nothing.

One launch an attempt: the launcher starts inference, environment servers, orchestrator and trainer itself. This
package works around what the launcher does not do: it names a run anew at each start, takes the newest
checkpoint folder whether whole or not, refuses a folder that a failed start has left files in, saves nothing when it
is asked to end.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.prime_rl.layout import COPY, ROLE, folder
from prime_train.programs.prime_rl.settings import Setting, settings, written
from prime_train.spec import RunSpec
from prime_train.supervise.launch.environment import ALLOCATOR, EnvNote, Host, Needs, flight_recorder, gpu_order, python
from prime_train.supervise.launch.launch import Launch, Variable, add_guard

# The launcher's handler of SIGTERM first joins a thread for each child, 5 s at most, then gives each tree 60 s.
# Source: prime-rl, utils/process.py, cleanup_threads and cleanup_processes.
_JOIN_S = 5.0
_TREE_S = 60.0


@dataclass(frozen=True, slots=True)
class Installed:
    """The launcher of an installed prime-rl. `bin_dir` holds the programs that it starts by their bare names."""

    argv: tuple[str, ...]
    bin_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class Launcher:
    """The launcher of one run. `text` is the config as written, `before` the RunSpec that it gives.

    `run_id` is the id that prime-rl and W&B know the run by; it stays over every restart.
    """

    text: str
    before: RunSpec
    root: str
    installed: Installed
    run_id: str
    path: str = os.defpath  # PATH, as the supervisor has it
    cwd: Path = field(default_factory=Path.cwd)

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        copy = run_dir.attempt(attempt) / COPY
        return (
            Launch(
                role=ROLE,
                argv=add_guard((*self.installed.argv, "@", str(copy))),
                cwd=self.cwd,
                log=run_dir.log(attempt, ROLE),
                variables=self._variables(),
                files=((copy, written(self.text, self.settings(run, resume_step))),),
                aside=() if resume_step else _in_the_way(run, attempt),
            ),
        )

    def settings(self, run: RunSpec, resume_step: int) -> tuple[Setting, ...]:
        """What the copy of the config says otherwise than the file."""
        return settings(self.before, run, self.root, resume_step)

    def _variables(self) -> tuple[Variable, ...]:
        where = self.installed.bin_dir
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


def _in_the_way(run: RunSpec, attempt: int) -> tuple[Path, ...]:
    """What a start from the beginning may not find: the launcher refuses a folder with files of an earlier start.

    Only what this run has left there itself. Before its first attempt a folder that is in use is the user's business.
    """
    if attempt == 1:
        return ()
    apart = run.saving.output_dir if run.saving is not None else None
    return (folder(run), *((Path(apart) / "checkpoints",) if apart else ()))


def needs(run_dir: RunDir, attempt: int, host: Host) -> Needs:
    """The launcher sets most variables of its parts itself."""
    sets = "prime-rl's launcher sets it for each of its parts, whatever it finds"
    shadowed = f"{ALLOCATOR[1]}, which prime-rl sets for each of its parts, is read before it"
    reasons = ((ALLOCATOR[1], sets), ("OMP_NUM_THREADS", sets), (ALLOCATOR[0], shadowed))
    given = host.given
    return Needs(
        (*python(), gpu_order(), *flight_recorder(run_dir, attempt)),
        left_out=tuple(_not_set(name, given, reason) for name, reason in reasons),
    )


def _not_set(name: str, given: Mapping[str, str], reason: str) -> EnvNote:
    return EnvNote("ignored", name, given[name], reason) if name in given else EnvNote("left out", name, "", reason)


_HEAD_BYTES = 4096


def find(root: str, python: str | None, environment: Mapping[str, str], cwd: Path, shown: str) -> Installed:
    """`rl` or `sft` beside the interpreter that the config names; else on PATH, else in a .venv of the project at hand.

    A program of that name that is not prime-rl's counts for nothing: Debian has an `rl` that shuffles lines.
    Raises UserError where there is none. `shown` is the config, for the message.
    """
    looked: list[str] = []
    for candidate in _candidates(root, python, environment, cwd):
        if _is_prime_rl(candidate):
            return Installed((str(candidate),), candidate.parent)
        looked.append(f"{candidate}: {'not prime-rl' if candidate.exists() else 'not there'}")
    where = looked[-1].partition(":")[0] if python else "PATH and .venv/bin of this folder and those above it"
    raise UserError(
        what=f"no {root} of prime-rl was found: {'; '.join(looked[-3:]) or 'PATH has no program of that name'}",
        where=where,
        why=f"{shown} is a config of prime-rl, whose own launcher trains it; prime-train supervises that",
        fix=_fix(root, python),
        exit_code=ExitCode.OUT_OF_REACH,
    )


def _fix(root: str, python: str | None) -> str:
    if python is None:
        return (
            '[prime_train] python = "PATH/TO/prime-rl/.venv/bin/python" in the config, or start this inside its .venv'
        )
    again = shlex.join([python, "-c", "import prime_rl; print(prime_rl.__file__)"])
    return f"name the interpreter of the environment that has {root}; `{again}` must answer with a path"


def _candidates(root: str, python: str | None, environment: Mapping[str, str], cwd: Path) -> Iterator[Path]:
    if python is not None:
        named = Path(python).expanduser()
        yield (named if named.is_absolute() else cwd / named).parent / root  # not resolved: a venv is a link's folder
        return
    for listed in environment.get("PATH", os.defpath).split(os.pathsep):
        found = Path(listed or ".", root).absolute()
        if found.is_file() and os.access(found, os.X_OK):
            yield found
    for place in (environment.get("VIRTUAL_ENV"), *(str(above / ".venv") for above in (cwd, *cwd.parents))):
        if place and (found := Path(place, "bin", root)).is_file():
            yield found


def _is_prime_rl(program: Path) -> bool:
    """Whether a script was written by an installer for an entry point of prime_rl."""
    try:
        with open(program, "rb") as file:
            return b"prime_rl" in file.read(_HEAD_BYTES)
    except OSError:
        return False
