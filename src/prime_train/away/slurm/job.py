"""A run as a job on Slurm. What its commands print is read in commands.py; what is kept of it is in record.py."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.away.job import JobState, Printer, QueueWatch, Stage
from prime_train.away.slurm import commands, record
from prime_train.away.slurm.commands import QueuedJob
from prime_train.away.slurm.record import SlurmJob
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.redaction import own_secrets
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.supervise.processes.lock import check_folders, find_holder, unwritable_error
from prime_train.views.run import logs

_POLL_S = 0.25
_EXIT_CODES = {"COMPLETED": ExitCode.OK, "CANCELLED": ExitCode.RESUMABLE}


class Submission(NamedTuple):
    """The script of a job and the file that gets it; the text of a config from standard input, which is kept."""

    file: Path
    script: str
    config: str | None = None


@dataclass
class SlurmRun:
    """The latest job of a run directory, or the one that `submission` describes. `job`: once it is submitted."""

    run_dir: RunDir
    submission: Submission | None = None
    job: SlurmJob | None = None

    @property
    def run(self) -> str:
        return self.run_dir.path.name

    def submit(self) -> None:
        """Submit the script, unless a supervisor or a job has the run already."""
        assert self.submission is not None, "a job that was found is submitted already"
        self._refuse_held()
        with commands.hold_submission(self.run_dir):
            earlier = record.read_job(self.run_dir)
            queued = None if earlier is None else commands.look_up(earlier)
            if queued is not None and queued.active:
                why = "a second job would wait for the run directory of the first one and fail"
                fix = f"prime-train stop {self.run} ends it; another --run-name starts another run"
                raise UserError(queued.text(), str(self.run_dir.slurm), why, fix)
            self.write()
            record.withdraw_stop(self.run_dir)
            self.job = commands.submit(self.submission.file, time.time())
            record.write_job(self.run_dir, self.job)

    def write(self) -> None:
        """Write the script, and the folder for the output: Slurm does not create it. Raises UserError."""
        assert self.submission is not None, "a job that was found has its script already"
        check_folders(self.run_dir)
        try:
            self.run_dir.path.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self.run_dir.slurm)
            self.submission.file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self.submission.file, self.submission.script)
            if self.submission.config is not None:
                write_atomic(kept_config(self.run_dir), self.submission.config)
        except OSError as error:
            raise unwritable_error(error, self.run_dir) from None

    def look_up(self, problem: UserError | None = None) -> JobState:
        job = self._submitted()
        if problem is None:
            try:
                return self._describe(commands.look_up(job), None)
            except UserError as error:
                problem = error
        return self._describe(QueuedJob(job.job_id, "UNKNOWN", reason=problem.what), problem)

    def cancel(self, limit_s: float, printer: Printer) -> str | None:
        """Cancel a job that waits, let one that runs save a checkpoint, and wait for its end."""
        job = self._submitted()
        try:
            found = commands.look_up(job)
        except UserError:
            held = find_holder(self.run_dir)
            if held is not None and held.here:  # a run that was continued on this machine, which needs no Slurm
                return None
            raise
        if not found.active:
            return None
        commands.refuse_stranger(job, self.run_dir)
        record.request_stop(self.run_dir, job)  # first, so that the job is not requeued
        if found.state == "RUNNING":
            commands.ask_to_save(job)
            printer.note(f"asked job {job.job_id} on {found.nodes} to checkpoint and end")
        elif found.waits:
            commands.cancel(job)
            printer.note(f"{found.text()}: cancelled")
        ended = commands.wait_for_end(job, limit_s)
        if ended.active:
            raise self._still_active(ended, job, limit_s)
        return ended.text()

    def logs(self, lines: int, printer: Printer, *, follow: bool) -> int:
        """Print the output of the job, in which all its starts append."""
        tail = logs.Tail(record.output_file(self.run_dir, self._submitted()))
        printer.note(f"==> {tail.path}")
        tail.skip_to_last(lines)
        printable, queue = logs.Printable(own_secrets()), QueueWatch(self, printer)
        while True:
            is_last = not follow or not queue.active  # before the log, so that its last lines are printed
            for chunk in tail.more():
                printer.write(printable.feed(chunk))
            if is_last:
                printer.write(printable.flush())
            if is_last or logs.attempts(self.run_dir):
                return ExitCode.OK
            time.sleep(_POLL_S)

    def _submitted(self) -> SlurmJob:
        assert self.job is not None, "the job was found, or is submitted"
        return self.job

    def _describe(self, job: QueuedJob, problem: UserError | None) -> JobState:
        stage: Stage = "runs" if job.runs else "waits"
        if problem is not None:
            stage = "unknown"
        elif not (job.runs or job.waits):
            stage = "over"
        starts = self._count_starts(job.job_id)
        text = f"job {job.job_id} has left the queue" if job.state == "GONE" else job.text()
        line = f"{text}, started {starts} times" if starts > 1 else text
        fields = {name: value or None for name, value in job._asdict().items()}
        output = str(record.output_file(self.run_dir, self._submitted()))
        document: dict[str, Any] = {"slurm": {**fields, "starts": starts, "output": output}}
        code = _EXIT_CODES.get(job.state, ExitCode.RUN_FAILED) if stage == "over" and job.state != "GONE" else None
        return JobState(stage, text, (("slurm", line),), document, exit_code=code, problem=problem)

    def _count_starts(self, job_id: str) -> int:
        progress = record.read_progress(self.run_dir)
        return progress.restarts + 1 if progress is not None and progress.job_id == job_id else 0

    def _refuse_held(self) -> None:
        held = find_holder(self.run_dir)
        if held is None or not held.here:  # a holder on another host may have died with its node; its job is looked up
            return
        why = "two supervisors would start two trainers on the same checkpoints"
        fix = f"prime-train stop {self.run}, then submit it"
        raise UserError(f"the run is held by {held}", str(self.run_dir.lock), why, fix)

    def _still_active(self, found: QueuedJob, job: SlurmJob, limit_s: float) -> UserError:
        cluster = f"--clusters={job.cluster} " if job.cluster else ""
        what = f"{found.text()} {limit_s:g} s after the request to end"
        why = "it received the request and is still ending, or it hangs"
        fix = f"wait for longer: prime-train stop {self.run}; or lose the checkpoint: scancel {cluster}{job.job_id}"
        return UserError(what, str(self.run_dir.path), why, fix, ExitCode.OUT_OF_REACH)


def find_run(run_dir: RunDir) -> SlurmRun | None:
    """The job that a run directory names; None if the run never was on Slurm, or the record cannot be read."""
    job = record.read_job(run_dir)
    return None if job is None else SlurmRun(RunDir(run_dir.path.resolve()), job=job)


def kept_config(run_dir: RunDir) -> Path:
    """The config of a run that was submitted from standard input, which cannot be read again."""
    return run_dir.slurm / "config.toml"
