"""A run of a trainer by its command line: what would defeat its supervision. Pure."""

from __future__ import annotations

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, rule
from prime_train.spec import RunSpec

_RESTARTS = ("max_restarts", "max-restarts")


@rule("CMD001", Severity.WARNING)
def second_restarter(run: RunSpec) -> Problems:
    """Only one program may restart the trainer.

    torchrun restarts its workers without a look at their progress or their checkpoints, and each of its restarts hides
    the cause from the supervisor, which counts one attempt; a queue that starts the job again counts none

    Source: torch 2.13, torch/distributed/run.py (--max-restarts, default 0); sbatch(1) of Slurm 24.11, --requeue.

    Bad (command):
        [command]
        argv = ["torchrun", "--max-restarts=3", "--nproc-per-node=2", "train.py"]
        processes = 2
    Good (command):
        [command]
        argv = ["torchrun", "--nproc-per-node=2", "train.py"]
        processes = 2
    """
    if run.command is None:
        return
    from prime_train.config.command_start import read_words  # here, because most configs have no command

    start = read_words(run.command.argv)
    restarts = next((start.launcher_flags[name] for name in _RESTARTS if name in start.launcher_flags), 0)
    if isinstance(restarts, int) and restarts > 0:
        what = f"the launcher restarts the trainer {restarts} times by itself"
        yield Problem("command.argv", what, "take --max-restarts out")
    elif "--requeue" in run.command.argv:
        yield Problem("command.argv", "the queue starts the job again by itself", "take --requeue out")


@rule("CMD002", Severity.NOTE)
def unknown_checkpoints(run: RunSpec) -> Problems:
    """A trainer without a profile should name the folder and the layout of its checkpoints.

    without them no checkpoint counts as complete: a restart begins as the command does, progress between two failures
    is not seen, and three failures in a row end the run

    Source: docs/supervision.md.

    Bad (command):
        [command]
        argv = ["python", "train.py"]
        [command.checkpoints]
        dir = ""
        layout = ""
    Good (command):
        [command.checkpoints]
        dir = "out"
        layout = "dcp"
    """
    if run.command is None or run.command.trainer:
        return
    saved = run.command.checkpoints
    missing = [name for name in ("dir", "layout") if not getattr(saved, name)]
    if missing:
        keys = " and ".join(f"command.checkpoints.{name}" for name in missing)
        what = f"{keys} {'is' if len(missing) == 1 else 'are'} not set, and no profile is named"
        yield Problem(f"command.checkpoints.{missing[0]}", what, "set them, or call prime_train.live in the script")


@rule("CMD003", Severity.NOTE)
def checkpoints_through_tmpdir(run: RunSpec) -> Problems:
    """Lightning needs a TMPDIR on the disk of its checkpoints.

    it writes each checkpoint into TMPDIR and renames it: on another disk that is a copy, which a kill can cut, and a
    full /tmp fails the save; a kill leaves a file of the size of a checkpoint there

    Source: pytorch-lightning 2.6.6, lightning/fabric/utilities/cloud_io.py.

    Bad (command):
        [command]
        trainer = "lightning"
    Good (command):
        [command]
        trainer = "lightning"
        env = ["TMPDIR=/data/out"]
    """
    if run.command is None or run.command.trainer != "lightning":
        return
    if not any(given.startswith("TMPDIR=") for given in run.command.env):
        what = "command.env sets no TMPDIR, through which Lightning saves"
        yield Problem("command.env", what, 'env = ["TMPDIR=FOLDER"], on the disk of command.checkpoints.dir')


@rule("CMD004", Severity.ERROR)
def way_without_its_value(run: RunSpec) -> Problems:
    """A way to resume or to stop needs its value.

    without it the trainer would be asked for nothing, and each restart would begin at step 0

    Source: docs/supervision.md.

    Bad (command):
        [command.resume]
        how = "argument"
    Bad (command):
        [command.resume]
        how = "variable"
        template = "{path}"
    Bad (command):
        [command.stop]
        how = "file"
    Good (command):
        [command.resume]
        how = "argument"
        template = "--resume={path}"
    """
    if run.command is None:
        return
    resume, stop = run.command.resume, run.command.stop
    if resume.how == "argument" and not resume.template and not run.command.trainer:
        what = 'command.resume.how = "argument" has no template'
        yield Problem("command.resume.template", what, 'template = "--resume={path}"')
    if resume.how == "variable" and not resume.template.partition("=")[1]:
        what = 'command.resume.how = "variable" has no template with a name'
        yield Problem("command.resume.template", what, 'template = "RESUME_FROM={path}"')
    if stop.how == "file" and not stop.file and not run.command.trainer:
        yield Problem("command.stop.file", 'command.stop.how = "file" names no file', 'file = "STOP"')
