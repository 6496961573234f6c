"""What prime-train calls of Slurm, and what it makes of answers, refusals, silence and rubbish."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.slurm import commands as slurm
from prime_train.away.slurm.commands import QueuedJob, parse_queue
from prime_train.away.slurm.record import SlurmJob
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from tests.system.away.slurm_commands import Commands, row

JOB = SlurmJob("12", "", 1.0)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}{os.pathsep}{os.environ['PATH']}")
    return found


def test_a_script_is_submitted_and_its_number_is_read(commands: Commands) -> None:
    commands.answer(sbatch=[("12;east\n", "", 0)])
    assert slurm.submit(Path("/w/job.sh"), 5.0) == SlurmJob("12", "east", 5.0)
    assert commands.calls("sbatch") == [["--parsable", "/w/job.sh"]]


@pytest.mark.parametrize("printed", ["", "Submitted batch job 12\n", "12; rm -rf /\n", "-1\n"])
def test_other_text_of_sbatch_is_refused(commands: Commands, printed: str) -> None:
    commands.answer(sbatch=[(printed, "", 0)])
    with pytest.raises(UserError, match="no number of a job") as error:
        slurm.submit(Path("/w/job.sh"), 5.0)
    assert error.value.exit_code == ExitCode.OUT_OF_REACH


def test_a_refusal_is_shown_without_secrets(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k3y-of-a-person")
    text = "sbatch: error: invalid partition \x1b[31mk3y-of-a-person\nsbatch: error: Batch job submission failed\n"
    commands.answer(sbatch=[("", text, 1)])
    with pytest.raises(UserError) as error:
        slurm.submit(Path("/w/job.sh"), 5.0)
    assert "invalid partition" in error.value.what
    assert "k3y-of-a-person" not in str(error.value)
    assert "\x1b" not in error.value.what


def test_a_job_is_looked_up_by_its_number_and_cluster(commands: Commands) -> None:
    commands.answer(squeue=[("CLUSTER: east\n" + row("12", "PENDING", "Priority"), "", 0)])
    found = slurm.look_up(JOB._replace(cluster="east"))
    assert (found.state, found.reason, found.waits, found.active) == ("PENDING", "Priority", True, True)
    assert {"--jobs=12", "--clusters=east"} <= set(commands.calls("squeue")[0])


def test_a_job_that_slurm_has_forgotten_is_gone(commands: Commands) -> None:
    commands.answer(squeue=[("", "slurm_load_jobs error: Invalid job id specified\n", 1)])
    assert slurm.look_up(JOB) == QueuedJob("12", "GONE")
    assert not slurm.look_up(JOB).active


def test_a_controller_that_refuses_is_out_of_reach(commands: Commands) -> None:
    commands.answer(squeue=[("", "slurm_load_jobs error: Unable to contact slurm controller\n", 1)])
    with pytest.raises(UserError, match="Unable to contact") as error:
        slurm.look_up(JOB)
    assert error.value.exit_code == ExitCode.OUT_OF_REACH


def test_a_command_that_hangs_is_ended(commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "_LIMIT_S", 0.5)
    commands.answer(squeue=[("", "", "hang")])
    with pytest.raises(UserError, match="has not answered"):
        slurm.look_up(JOB)


def test_a_machine_without_slurm_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="no sbatch in PATH") as error:
        slurm.submit(tmp_path / "job.sh", 1.0)
    assert error.value.exit_code == ExitCode.OUT_OF_REACH
    assert "--dry-run" in error.value.fix


def test_a_job_that_goes_back_into_the_queue_while_it_ends_is_cancelled(commands: Commands) -> None:
    states = ("RUNNING", "COMPLETING", "PENDING", "CANCELLED")
    commands.answer(squeue=[(row("12", state), "", 0) for state in states])
    assert slurm.wait_for_end(JOB, 60, poll_s=0.01).state == "CANCELLED"
    assert commands.calls("scancel") == [["12"]]


def test_a_job_that_does_not_end_is_returned_as_it_is(commands: Commands) -> None:
    commands.answer(squeue=[(row("12", "RUNNING"), "", 0)])
    assert slurm.wait_for_end(JOB, 0, poll_s=0.01).state == "RUNNING"


@pytest.mark.parametrize("name", ["job-12.log", "job-%j.log"])
def test_a_job_belongs_to_the_run_if_its_output_does(commands: Commands, tmp_path: Path, name: str) -> None:
    run_dir = RunDir(tmp_path / "runs" / "100% of it")
    run_dir.slurm.mkdir(parents=True)
    folder = str(run_dir.slurm).replace("%", "%%") if "%j" in name else str(run_dir.slurm)
    (tmp_path / "link").symlink_to(tmp_path / "runs")
    for path in (folder, folder.replace("/runs/", "/link/")):
        commands.answer(scontrol=[(f"JobId=12 JobName=small\n   StdErr=/x\n   StdOut={path}/{name}\n", "", 0)])
        slurm.refuse_stranger(JOB, run_dir)
    assert commands.calls("scontrol") == [["show", "job", "12"]]


@pytest.mark.parametrize(
    "shown", ["", "   StdOut=/home/other/slurm-12.out\n", "   StdOut={}/job-13.log\n", "   StdOut=job-12.log\n"]
)
def test_a_job_that_writes_elsewhere_is_not_the_runs(commands: Commands, tmp_path: Path, shown: str) -> None:
    run_dir = RunDir(tmp_path)
    commands.answer(scontrol=[(f"JobId=12 JobName=small\n{shown.format(run_dir.slurm)}", "", 0)])
    with pytest.raises(UserError, match="job 12 is not a job of this run") as error:
        slurm.refuse_stranger(JOB, run_dir)
    assert error.value.fix.endswith("scancel 12")


def test_signals_and_requeues_name_the_job_last(commands: Commands) -> None:
    job = JOB._replace(cluster="east")
    slurm.ask_to_save(job)
    slurm.requeue(job)
    assert commands.calls("scancel") == [["--batch", "--signal=TERM", "--clusters=east", "12"]]
    assert commands.calls("scontrol") == [["--clusters=east", "requeue", "12"]]


def test_only_one_command_submits_a_run_at_a_time(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    with (
        slurm.hold_submission(run_dir),
        pytest.raises(UserError, match="another command"),
        slurm.hold_submission(run_dir),
    ):
        pass
    with slurm.hold_submission(run_dir):
        pass


@given(text=st.text(max_size=300) | st.lists(st.text(max_size=20), max_size=9).map("|".join))
def test_any_text_of_squeue_is_a_job_or_none(text: str) -> None:
    found = parse_queue(text, "12")
    assert found.job_id == "12"
    assert found.state == "GONE" or found.state.isupper()


@given(
    others=st.lists(st.sampled_from(["1", "2", "121", "112"]), max_size=5),
    state=st.sampled_from(["RUNNING", "PENDING"]),
)
def test_only_the_line_of_the_job_counts(others: list[str], state: str) -> None:
    lines = [row(other, "FAILED") for other in others] + [row("12", state)]
    assert parse_queue("".join(lines), "12").state == state
