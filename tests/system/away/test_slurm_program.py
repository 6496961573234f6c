"""The program of a job, with stand-ins of Slurm's commands and of the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.away.slurm import record
from prime_train.away.slurm.record import SlurmJob
from prime_train.away.slurm.slurm_program import list_launcher
from prime_train.core.rundir import RunDir
from tests.system.away.slurm_commands import Commands, row

# In place of `prime-train run`: a child that shows its arguments, and waits for SIGTERM if it is asked to.
_RUN = """
import signal, sys
sys.stdout.write(" ".join(sys.argv[1:]) + "\\n")
if "wait" in sys.argv:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # it waits for one that comes before sigwait
    print("ready", flush=True)
    signal.sigwait([signal.SIGTERM])
    sys.exit(75)
sys.exit(int(sys.argv[-1]))
"""
_MAIN = f"""
import sys
from prime_train.away.slurm import slurm_program
slurm_program.RUN = (sys.executable, "-c", {_RUN!r}, "run")
sys.exit(slurm_program.main(sys.argv[1:]))
"""


class Job:
    """A job with number 12 of the run in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.commands = Commands(folder / "bin")
        self.run_dir = RunDir(folder / "run")
        self.state("RUNNING")

    def state(self, state: str) -> None:
        self.commands.answer(squeue=[(row("12", state), "", 0)])

    def start(self, *arguments: str, restarts: int = 0, max_fruitless: int = 3) -> subprocess.Popen[str]:
        path = f"{self.commands.folder}{os.pathsep}{os.environ['PATH']}"
        variables = {"PATH": path, "SLURM_JOB_ID": "12", "SLURM_RESTART_COUNT": str(restarts)}
        return subprocess.Popen(
            [
                sys.executable,
                "-c",
                _MAIN,
                str(self.run_dir.path),
                "--max-fruitless",
                str(max_fruitless),
                "--",
                *arguments,
            ],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(
        self,
        *arguments: str,
        restarts: int = 0,
        max_fruitless: int = 3,
        notice: signal.Signals = signal.SIGTERM,
    ) -> tuple[int, str, str]:
        """Exit code, output and messages; `notice` is sent if the run waits for SIGTERM."""
        with self.start(*arguments, restarts=restarts, max_fruitless=max_fruitless) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            if "wait" in arguments:
                assert process.stdout.readline() == "ready\n"
                process.send_signal(notice)
            rest, messages = process.communicate(timeout=60)
        return process.returncode, first + rest, messages


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


@pytest.mark.parametrize("notice", [signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_of_slurm_reaches_the_run_and_requeues_the_job(job: Job, notice: signal.Signals) -> None:
    code, _, messages = job.ended("wait", "0", notice=notice)
    assert code == 75
    assert job.commands.calls("scontrol") == [["requeue", "12"]]
    assert "is requeued: the time limit is near" in messages
    assert record.read_job(job.run_dir) is not None


@pytest.mark.parametrize("code", [0, 1, 5, 75])
def test_an_end_without_a_signal_is_the_end_of_the_job(job: Job, code: int) -> None:
    assert job.ended(str(code))[0] == code
    assert job.commands.calls("scontrol") == []


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "PREEMPTED", "PENDING"])
def test_a_job_that_slurm_has_ended_is_not_requeued(job: Job, state: str) -> None:
    job.state(state)
    code, _, messages = job.ended("wait", "0")
    assert code == 75
    assert job.commands.calls("scontrol") == []
    assert f"is {state.lower()} and is left to Slurm" in messages


def test_a_requested_stop_ends_the_job(job: Job) -> None:
    record.write_job(job.run_dir, SlurmJob("12", "", 1.0))
    record.request_stop(job.run_dir, SlurmJob("12", "", 1.0))
    code, _, messages = job.ended("wait", "0")
    assert (code, job.commands.calls("scontrol")) == (75, [])
    assert "stopped by request" in messages


def test_a_step_to_resume_from_counts_only_at_the_first_start(job: Job) -> None:
    assert job.ended("run.toml", "--resume", "40", "0")[1] == "run run.toml --resume 40 0\n"
    assert job.ended("run.toml", "--resume", "40", "0", restarts=1)[1] == "run run.toml --resume auto 0\n"


def test_a_job_without_progress_does_not_start_again(job: Job) -> None:
    assert job.ended("wait", "0", max_fruitless=2)[0] == 75
    code, output, messages = job.ended("0", restarts=1, max_fruitless=1)
    assert (code, output) == (6, "")
    assert "no checkpoint beyond the beginning" in messages


def test_a_slurm_that_does_not_answer_leaves_the_exit_code(job: Job) -> None:
    job.commands.answer(squeue=[("", "slurm_load_jobs error: Unable to contact slurm controller", 1)])
    code, _, messages = job.ended("wait", "0")
    assert code == 75
    assert "could not be requeued" in messages


def test_the_program_starts_only_in_a_job(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    command = [
        sys.executable,
        "-m",
        "prime_train.away.slurm.slurm_program",
        str(tmp_path),
        "--max-fruitless",
        "3",
        "--",
        "x",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "SLURM_JOB_ID is not set" in done.stderr


def test_srun_starts_the_run_on_every_node() -> None:
    assert list_launcher({}) == list_launcher({"SLURM_JOB_NUM_NODES": "1"}) == ()
    launcher = list_launcher({"SLURM_JOB_NUM_NODES": "4", "SLURM_CPUS_PER_TASK": "9"})
    assert launcher[0] == "srun"
    assert {"--export=ALL", "--nodes=4", "--ntasks-per-node=1", "--cpus-per-task=9"} < set(launcher)
