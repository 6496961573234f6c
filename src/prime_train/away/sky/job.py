"""A run as a managed job of SkyPilot. Rents machines only in `submit`, after its question was answered."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from prime_train.away.job import JobState, Printer
from prime_train.away.sky import commands
from prime_train.away.sky.commands import INSTALL, Sky, Unreachable
from prime_train.away.sky.follow import JobProgress, JobView, as_lines, describe_job, read_progress, report
from prime_train.away.sky.queue import ManagedJob, find_job
from prime_train.away.sky.record import JobRecord, find_record, job_name, write_record
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machine_secret import create_secret, refuse_weak
from prime_train.core.machines import SECRET

_EXIT_CODES = {"SUCCEEDED": ExitCode.OK, "CANCELLED": ExitCode.RESUMABLE}


@dataclass
class SkyRun:
    """The job of a record.

    For a submission: `folder` gets the record, `secrets` are names of variables. `confirm` asks the user before
    machines are rented, and raises an error for a no.
    """

    record: JobRecord
    folder: Path
    secrets: tuple[str, ...] = ()
    confirm: Callable[[], None] = lambda: None
    run_dir: None = None
    _seen: JobView = field(default_factory=JobView)

    @property
    def run(self) -> str:
        return self.record.run

    @cached_property
    def _sky(self) -> Sky:
        """The installed `sky`. Raises Unreachable."""
        return commands.find_sky(os.environ)

    def submit(self) -> None:
        """Submit the task file of the record, unless a job of its name is live."""
        if SECRET in self.secrets:  # each job has one of its own, which no file keeps
            create_secret(os.environ)
            refuse_weak(os.environ[SECRET])  # here, because its machines would refuse it when they are paid for
        try:
            sky = self._sky
            self._require_secrets()
            _refuse_live(find_job(commands.list_jobs(sky), self.run))
            self.confirm()
            write_record(self.folder, self.record)  # before the launch, because one that times out may have arrived
            commands.launch(sky, self.run, Path(self.record.task), self.secrets)
            found = find_job(commands.list_jobs(sky), self.run)
        except Unreachable as error:
            file = os.path.relpath(self.record.task)
            command = commands.show_launch(self.run, Path(file), self.secrets)
            why = f"SkyPilot rents the machines; the job is written to {file}"
            fix = f"{INSTALL}\nthen: {command}"
            raise UserError(str(error), "sky", why, fix, ExitCode.OUT_OF_REACH) from None
        self.record = self.record._replace(job_id=None if found is None else found.id)
        write_record(self.folder, self.record)

    def look_up(self, problem: UserError | None = None) -> JobState:
        """The job in the queue, with the progress that its output shows while it runs."""
        try:
            if problem is not None:
                raise problem
            job = self._read()
            log = commands.read_log(self._sky, job.id) if job.state == "RUNNING" else ""
        except UserError as error:
            return JobState("unknown", error.what, problem=error)
        record = self.record
        self._seen, changes = report(self._seen, job, read_progress(log), record.candidates, record.max_steps)
        document = describe_job(job, JobProgress(self._seen.step, self._seen.saved_step), record)
        lines = tuple(as_lines(document))
        text = f"managed job {job.id} is {job.state.lower()}"
        if not job.is_over:
            return JobState("runs" if job.state == "RUNNING" else "waits", text, lines, document, changes)
        code = _EXIT_CODES.get(job.state, ExitCode.RUN_FAILED)
        return JobState("over", text, lines, document, changes, code)

    def cancel(self, limit_s: float, printer: Printer) -> str:
        """Cancel the job. Its machine ends at once, and its bucket stays."""
        job = self._read()
        if job.is_over:
            return f"{self.run} is over: {job.state.lower()}"
        commands.cancel(self._sky, job.id)
        bucket = self.record.bucket
        kept = f"; its checkpoints stay in the bucket {bucket}" if bucket else ""
        return f"managed job {job.id} is cancelled{kept}"

    def logs(self, lines: int, printer: Printer, *, follow: bool) -> int:
        """Print the output as `sky jobs logs` shows it, which is all of it. Returns the exit code of `sky`."""
        return commands.show_log(self._sky, self._read().id, printer.write, follow=follow)

    def _read(self) -> ManagedJob:
        """The job of the record in the queue. Raises UserError if it is not there."""
        try:
            jobs = commands.list_jobs(self._sky)
        except Unreachable as error:
            why = "the run is a managed job, and only SkyPilot knows its state"
            raise UserError(str(error), "sky", why, INSTALL, ExitCode.OUT_OF_REACH) from None
        known = next((job for job in jobs if job.id == self.record.job_id), None)
        found = known if known is not None and not known.is_over else find_job(jobs, self.run) or known
        if found is None:
            why = "it was never submitted, or SkyPilot has another user or workspace than at its submission"
            fix = f"sky jobs launch -n {self.run} {self.record.task}"
            raise UserError(f"no managed job {self.run}", "sky jobs queue", why, fix, ExitCode.OUT_OF_REACH)
        return found

    def _require_secrets(self) -> None:
        missing = [name for name in self.secrets if not os.environ.get(name)]
        if missing:
            what = f"{', '.join(missing)} is not set"
            why = "the job needs it, and `sky` reads it from here"
            raise UserError(what, "the environment", why, f"export {missing[0]}=...", ExitCode.OUT_OF_REACH)


def find_run(run: str, folder: Path) -> SkyRun | None:
    """The job of a run by its record in the folder of runs; None if it has no record there."""
    record = find_record(folder, run) or find_record(folder, job_name(run))
    return None if record is None else SkyRun(record, folder)


def _refuse_live(found: ManagedJob | None) -> None:
    if found is not None and not found.is_over:
        what = f"managed job {found.id} of this name is {found.state.lower()}"
        why = "two jobs would write to the same checkpoints, and both cost money"
        fix = f"prime-train status {found.name}, prime-train stop {found.name}; or another --run-name"
        raise UserError(what, f"sky jobs queue, {found.name}", why, fix)
