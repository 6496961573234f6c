"""What `prime-train run` does otherwise for a config of prime-rl, whose own launcher trains. Starts nothing."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from prime_train.backends.prime_rl import ROOTS, PrimeRl, stop_grace_s
from prime_train.backends.prime_rl_settings import has_named_runs, named
from prime_train.document import to_toml
from prime_train.errors import UserError
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise import prime_rl_open, prime_rl_program

if TYPE_CHECKING:
    from prime_train.rules.judge import Verdict

# What the copy of the config cures by itself: a name, checkpoints, no cleaning, a folder that this run has used before.
CURED = ("RUN004", "RES001", "RES002", "RES005", "RES008", "CKP003", "CKP004", "CKP005")

_UNNAMED = "prime-rl"


def is_launchable(verdict: Verdict) -> bool:
    """Whether the file is one that a launcher of prime-rl takes on this machine."""
    return verdict.dialect == "prime-rl" and verdict.root in ROOTS and verdict.run is not None


def refuse(verdict: Verdict, config: str) -> None:
    """Raises UserError for what is started in another way, or would delete what it is to come back to."""
    launch = verdict.run.launch if verdict.run is not None else None
    shown = shlex.quote(config)
    if launch is not None and launch.slurm:
        raise UserError(
            what="it has a [slurm] table",
            where=verdict.path,
            why="prime-rl only submits such a run: its processes are SLURM's, on other machines",
            fix=f"in prime-rl: uv run {verdict.root} @ {shown}; take [slurm] out to run it on this machine",
        )
    if launch is not None and launch.dry_run:
        raise UserError(
            what="dry_run = true",
            where=verdict.path,
            why="prime-rl then writes into output_dir, or deletes there, and trains nothing",
            fix=f"take it out; `prime-train run {shown} --dry-run` shows the plan and writes nothing",
        )


def settled(verdict: Verdict, run_name: str | None) -> tuple[RunSpec, RunDir]:
    """The run with its name and folders fixed, and the directory that prime-train keeps of it."""
    assert verdict.run is not None
    run = named(verdict.run, run_name or _name(verdict.run, verdict.path), Path.cwd())
    grace_s = max(run.prime_train.stop_grace_s, stop_grace_s(run))
    run = replace(run, prime_train=replace(run.prime_train, stop_grace_s=grace_s))
    return run, RunDir((Path(run.run.dir).expanduser() / run.run.name).resolve())


def _name(run: RunSpec, path: str) -> str:
    """The file's own, else that of its folder of output, else the file's."""
    launch = run.launch
    if launch is not None and launch.run_name:
        return launch.run_name
    if launch is not None and launch.output_dir and not has_named_runs(run) and Path(launch.output_dir).name:
        said = Path(launch.output_dir).name
        if said != "outputs":
            return said
    file = Path(path).absolute()
    if not file.exists():  # standard input
        return _UNNAMED
    return file.stem if file.stem not in ROOTS else f"{file.parent.name}-{file.stem}"


def backend(verdict: Verdict, text: str, run_dir: RunDir, *, writes: bool) -> PrimeRl:
    """prime-rl as it is installed here. Raises UserError where it is not. `writes`: the run's id may be kept."""
    assert verdict.run is not None
    python = verdict.run.launch.python if verdict.run.launch is not None else None
    identity = prime_rl_open.run_id if writes else prime_rl_open.known_run_id
    return PrimeRl(
        text=text,
        before=verdict.run,
        root=verdict.root,
        program=prime_rl_program.find(verdict.root, python, os.environ, Path.cwd(), verdict.path),
        run_id=identity(run_dir, os.environ),
        path=os.environ.get("PATH", os.defpath),
        cwd=Path.cwd(),
    )


def notes(run: RunSpec, backend: PrimeRl) -> tuple[str, ...]:
    """What its copy of the config says otherwise, and what prime-rl does not do."""
    settings = (setting for setting in backend.settings(run, 0) if setting.told)
    shrinks = run.prime_train.recovery.on_oom == "shrink"
    return (
        *(f"{setting.key} = {to_toml(setting.value)} for this run: {setting.reason}" for setting in settings),
        f"prime-rl saves nothing when it is stopped: a checkpoint comes every {run.checkpoint.interval_steps} steps",
        *(['prime_train.recovery.on_oom = "shrink" changes nothing: prime-rl has no micro-batch'] if shrinks else []),
    )
