"""The program of a Slurm job: `python -m prime_train.away.slurm.slurm_program RUN_DIR --max-fruitless N -- ARGS`.

Starts `prime-train run ARGUMENTS`, passes stop requests on to it as SIGTERM, and requeues the job if that is worth it.
It replaces the shell of the script, so that Slurm's signal reaches it. It never trains and never kills the run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from prime_train.away.slurm import commands, record
from prime_train.away.slurm.record import SlurmJob
from prime_train.away.slurm.requeue import RequeueDecision, RunEnd, StartProgress, at_end, at_start, refuses_start
from prime_train.core.errors import UserError
from prime_train.core.machine_secret import create_secret
from prime_train.core.python_child import own_command
from prime_train.core.rundir import RunDir
from prime_train.programs import recorded
from prime_train.supervise.launch.run_directory import find_newest_complete
from prime_train.supervise.processes.requests import STOP_SIGNALS

RUN = own_command("run")


def main(arguments: Sequence[str]) -> int:
    """The exit code of the job. `arguments`: see the head of this module."""
    directory, option, number, separator, *run_arguments = arguments
    assert (option, separator) == ("--max-fruitless", "--"), "the script is written by prime-train"
    run_dir, max_fruitless = RunDir(Path(directory)), int(number)
    job = _own_job(os.environ)
    child = _Child()  # from here on a stop request is kept for the run
    progress = _record_start(run_dir, job, _restarts(os.environ))
    decision = refuses_start(progress, max_fruitless)
    if decision is None:
        _report(f"job {job.job_id}, start {progress.restarts + 1}")
        launcher = list_launcher(os.environ)
        if (
            launcher
        ):  # here and not at the submission, because Slurm may keep the environment of a job, but not of a step
            create_secret(os.environ)
        code = child.run([*launcher, *RUN, *_resumed(run_arguments, progress.restarts)])
        stop = record.stop_requested(run_dir, job.job_id)
        end = RunEnd(code, child.signalled, stop)
        decision = at_end(progress, end, _newest_step(run_dir), max_fruitless)
    return _carry_out(decision, job)


class _Child:
    """`prime-train run` as a child. A SIGTERM that comes before it exists reaches it as soon as it does."""

    def __init__(self) -> None:
        self.signalled = False
        self._process: subprocess.Popen[bytes] | None = None
        for number in STOP_SIGNALS:  # `#SBATCH --signal` may name another one than SIGTERM
            signal.signal(number, self._pass_on)

    def run(self, argv: Sequence[str]) -> int:
        """Its exit code, or minus the signal that killed it."""
        self._process = subprocess.Popen(argv)
        if self.signalled:
            self._process.terminate()
        return self._process.wait()

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        self.signalled = True
        if self._process is not None:
            self._process.terminate()  # does nothing after its end


def list_launcher(environment: Mapping[str, str]) -> tuple[str, ...]:
    """What starts the run on each node of the job; nothing on a single node.

    srun hands a signal on to its tasks, and exits with the highest of their codes. Since Slurm 22.05 it does not read
    the cores of a task from the job. Without --export=ALL it hands on only what --export of the job names, which the
    secret of the machines is not. Source: srun(1).
    """
    nodes = environment.get("SLURM_JOB_NUM_NODES", "1")
    if not nodes.isdecimal() or int(nodes) < 2:
        return ()
    cores = environment.get("SLURM_CPUS_PER_TASK")
    each = (f"--cpus-per-task={cores}",) if cores else ()
    tasks = (f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1")
    return ("srun", "--export=ALL", *tasks, *each, "--kill-on-bad-exit=0")


def _own_job(environment: Mapping[str, str]) -> SlurmJob:
    """The job of this process. Slurm sets SLURM_JOB_ID; Source: sbatch(1), output environment variables."""
    job_id = environment.get("SLURM_JOB_ID", "")
    if not record.is_job_id(job_id):
        why = "this program is started by a job on Slurm"
        fix = "prime-train run CONFIG --slurm, or sbatch with the script that --output wrote"
        raise UserError("SLURM_JOB_ID is not set", "prime_train.away.slurm.slurm_program", why, fix)
    return SlurmJob(job_id, "", time.time())


def _restarts(environment: Mapping[str, str]) -> int:
    """How often Slurm has started this job before. Slurm does not set the variable at the first start."""
    number = environment.get("SLURM_RESTART_COUNT", "0")
    return int(number) if number.isascii() and number.isdecimal() else 0


def _record_start(run_dir: RunDir, job: SlurmJob, restarts: int) -> StartProgress:
    """Write what this start found. A job that was submitted by hand is recorded here for the first time."""
    known = record.read_job(run_dir)
    if known is None or known.job_id != job.job_id:
        record.write_job(run_dir, job)
    progress = at_start(record.read_progress(run_dir), job.job_id, restarts, _newest_step(run_dir))
    record.write_progress(run_dir, progress)
    return progress


def _newest_step(run_dir: RunDir) -> int:
    """The newest complete checkpoint of the run; 0 without one."""
    program, run = recorded(run_dir, strict=False)
    newest = find_newest_complete(program.checkpoints(run, run_dir))
    return newest.step if newest is not None else 0


def _resumed(arguments: Sequence[str], restarts: int) -> list[str]:
    """The arguments of the run. --resume of the command counts only once; a requeued job continues."""
    kept = list(arguments)
    if restarts and "--resume" in kept:
        kept[kept.index("--resume") + 1] = "auto"
    return kept


def _carry_out(decision: RequeueDecision, job: SlurmJob) -> int:
    if not decision.requeue:
        _report(f"job {job.job_id} ends: {decision.why}")
        return decision.exit_code
    try:
        found = commands.look_up(job)
        if found.state != "RUNNING":  # cancelled by a person, or Slurm requeues a pre-empted job by itself
            _report(f"job {job.job_id} is {found.state.lower()} and is left to Slurm: {decision.why}")
            return decision.exit_code
        _report(f"job {job.job_id} is requeued: {decision.why}")
        commands.requeue(job)
    except UserError as error:
        _report(f"job {job.job_id} could not be requeued: {error}")
    return decision.exit_code


def _report(line: str) -> None:
    print(f"prime-train: {line}", file=sys.stderr, flush=True)  # noqa: T201 - the output of the job


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UserError as error:
        _report(str(error))
        sys.exit(error.exit_code)
