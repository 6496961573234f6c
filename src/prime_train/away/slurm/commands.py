"""Runs the commands of Slurm: sbatch, squeue, scancel, scontrol. Each has a deadline; none goes through a shell."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from prime_train.away.slurm import record, script
from prime_train.away.slurm.record import SlurmJob
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir, make_folder
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import ProbeOutput, run_probe
from prime_train.supervise.processes.lock import unwritable_error
from prime_train.views.text import sanitize

_LIMIT_S = 30.0  # slurmctld answers within its MessageTimeout, 10 s by default
_LONGEST_BYTES = 256 * 1024
_LONGEST_MESSAGE = 400  # characters
_LONGEST_NUMBER = 12  # digits

_FORMAT = "%A|%T|%M|%l|%N|%r"  # squeue(1), --format
_OUTPUT = re.compile(r"\s*StdOut=(.*)")  # a line of `scontrol show job`
_FIELD = re.compile(r"[^\x00-\x1f\x7f]{0,200}")
_WAITS = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
_RUNS = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
)


class QueuedJob(NamedTuple):
    """A job as squeue shows it. `state`: a word of squeue, or "GONE" if Slurm has forgotten the job."""

    job_id: str
    state: str
    elapsed: str = ""
    limit: str = ""
    nodes: str = ""
    reason: str = ""

    @property
    def waits(self) -> bool:
        """Whether it will start, or start again."""
        return self.state in _WAITS

    @property
    def runs(self) -> bool:
        return self.state in _RUNS

    @property
    def active(self) -> bool:
        return self.waits or self.runs

    def text(self) -> str:
        reason = f" ({self.reason})" if self.reason not in ("", "None") else ""
        where = f" on {self.nodes}" if self.nodes else ""
        time_used = f", {self.elapsed} of {self.limit}" if self.runs and self.elapsed else ""
        return f"job {self.job_id} is {self.state.lower()}{reason}{where}{time_used}"


def parse_queue(text: str, job_id: str) -> QueuedJob:
    """The job in what squeue prints; lines of other jobs and of other forms are ignored."""
    for line in text.splitlines():
        fields = [field.strip() for field in line.split("|", 5)]
        if len(fields) == 6 and fields[0] == job_id and all(map(_FIELD.fullmatch, fields)) and fields[1].isupper():
            return QueuedJob(*fields)
    return QueuedJob(job_id, "GONE")


def look_up(job: SlurmJob) -> QueuedJob:
    """The job in the queue. Raises UserError with exit code 4 if Slurm does not answer."""
    argv = ["squeue", "--noheader", "--states=all", f"--jobs={job.job_id}", f"--format={_FORMAT}", *_cluster(job)]
    done = _run(argv)
    if done.code != 0 and "Invalid job id" not in done.err:  # Slurm forgets a job minutes after its end
        raise _failed(argv, done)
    return parse_queue(done.out if done.code == 0 else "", job.job_id)


def find_core_memory(partition: str | None) -> tuple[int, str] | None:
    """(MiB, name of the partition) that Slurm gives at most for one core; None without a limit, or if it is not known.

    Without `partition` it is that of the default one. Source: scontrol(1), MaxMemPerCPU in megabytes or UNLIMITED.
    """
    try:
        done = _run(["scontrol", "--oneliner", "show", "partition", *([partition] if partition else [])])
    except UserError:
        return None  # the script can be written where Slurm is not installed
    for line in done.out.splitlines() if done.code == 0 else ():
        fields = dict(word.partition("=")[::2] for word in line.split())
        is_meant = fields.get("PartitionName") == partition if partition else fields.get("Default") == "YES"
        if is_meant and (limit := fields.get("MaxMemPerCPU", "")).isdecimal() and 0 < len(limit) < _LONGEST_NUMBER:
            return (int(limit), fields["PartitionName"]) if int(limit) else None
    return None


def refuse_stranger(job: SlurmJob, run_dir: RunDir) -> None:
    """Raise UserError unless the job writes its output into the run directory, as every job of the run does.

    A run directory may be a copy, or be edited, so the number in it may be that of another job.
    """
    done = _command(["scontrol", *_cluster(job), "show", "job", job.job_id])
    output = next((found[1] for line in done.out.splitlines() if (found := _OUTPUT.fullmatch(line))), "")
    folder, _, name = output.rpartition("/")
    expected = record.output_file(run_dir, job)
    if name == script.OUTPUT:  # some versions of Slurm show the pattern of the script
        folder, name = folder.replace("%%", "%"), expected.name
    if name == expected.name and os.path.realpath(folder) == os.path.realpath(expected.parent):
        return
    what = f"job {job.job_id} is not a job of this run: its output is {_shorten(output) or 'not known'}"
    why = f"a job of this run writes to {expected}; the run directory was copied, moved or edited"
    fix = f"if it is yours and should end: scancel {' '.join((*_cluster(job), job.job_id))}"
    raise UserError(what, str(run_dir.slurm / "job.json"), why, fix)


def submit(file: Path, now_s: float) -> SlurmJob:
    """Submit a script. Raises UserError with exit code 4 if Slurm refuses it."""
    done = _command(["sbatch", "--parsable", str(file)])
    lines = done.out.strip().splitlines()
    job = record.parse_submitted(lines[-1], now_s) if lines else None
    if job is None:
        what = f"sbatch printed no number of a job: {_shorten(done.out)}"
        why = "status, logs and stop find the job by its number"
        raise UserError(what, str(file), why, "look for the job with squeue --me", ExitCode.OUT_OF_REACH)
    return job


def cancel(job: SlurmJob) -> None:
    """Take a job that waits out of the queue. Raises UserError."""
    _command(["scancel", *_cluster(job), job.job_id])


def ask_to_save(job: SlurmJob) -> None:
    """Send SIGTERM to the program of a job, which passes it on to the run. Raises UserError."""
    _command(["scancel", "--batch", "--signal=TERM", *_cluster(job), job.job_id])


def requeue(job: SlurmJob) -> None:
    """Put a running job back into the queue; Slurm then ends its processes. Raises UserError."""
    _command(["scontrol", *_cluster(job), "requeue", job.job_id])


@contextlib.contextmanager
def hold_submission(run_dir: RunDir) -> Iterator[None]:
    """Hold the lock of submissions, so that two commands at once do not submit a run twice. Raises UserError."""
    try:
        make_folder(run_dir.slurm)
        fd = os.open(run_dir.slurm / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise unwritable_error(error, run_dir) from None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        why = "two jobs would start two supervisors of the same run"
        fix = f"look at it with `prime-train status {run_dir.path.name}`"
        raise UserError("another command submits this run at the moment", str(run_dir.slurm), why, fix) from None
    finally:
        os.close(fd)


def _cluster(job: SlurmJob) -> list[str]:
    return [f"--clusters={job.cluster}"] if job.cluster else []


def _command(argv: list[str]) -> ProbeOutput:
    """One command that must succeed. Raises UserError."""
    done = _run(argv)
    if done.code != 0:
        raise _failed(argv, done)
    return done


def _run(argv: list[str]) -> ProbeOutput:
    """One command to its end. Raises UserError if it is not installed or does not answer."""
    program = shutil.which(argv[0])
    if program is None:
        what = f"there is no {argv[0]} in PATH"
        why = "prime-train reaches Slurm through its commands"
        fix = "run it on a login node of the cluster; --dry-run --output FILE writes the script without Slurm"
        raise UserError(what, "--slurm" if argv[0] == "sbatch" else argv[0], why, fix, ExitCode.OUT_OF_REACH)
    answer = run_probe([program, *argv[1:]], _LIMIT_S)
    if isinstance(answer, NotKnown):
        what = f"{argv[0]} has not answered within {_LIMIT_S:.0f} s"
        fix = "try again; `sinfo` shows whether Slurm answers"
        raise UserError(what, argv[0], "the controller of Slurm is down or busy", fix, ExitCode.OUT_OF_REACH)
    return replace(answer, out=answer.out[:_LONGEST_BYTES], err=answer.err[:_LONGEST_BYTES])


def _failed(argv: list[str], done: ProbeOutput) -> UserError:
    printed = redact(_shorten(done.err or done.out), own_secrets())
    fix = "squeue --me lists your jobs"
    if argv[0] == "sbatch":
        fix = "sinfo lists partitions and limits; --partition, --time-limit and --sbatch KEY=VALUE change the job"
    what = f"{argv[0]} failed: {printed or f'exit code {done.code}'}"
    return UserError(what, argv[-1] if argv[0] == "sbatch" else argv[0], "Slurm refused it", fix, ExitCode.OUT_OF_REACH)


def _shorten(text: str) -> str:
    lines = (sanitize(line).strip() for line in text.splitlines())
    return "; ".join(line for line in lines if line)[:_LONGEST_MESSAGE]


def wait_for_end(job: SlurmJob, timeout_s: float, poll_s: float = 2.0) -> QueuedJob:
    """The job after its end, or as it is after `timeout_s`. A job that went back into the queue is cancelled."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        found = look_up(job)
        if found.waits:
            cancel(job)
        if not found.active or time.monotonic() > give_up_s:
            return found
        time.sleep(poll_s)
