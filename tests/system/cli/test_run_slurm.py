"""`run --slurm`, and `status`, `logs` and `stop` of its job, with stand-ins of Slurm's commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train.away.slurm import record
from prime_train.away.slurm.record import SlurmJob
from prime_train.core.rundir import RunDir
from tests.system.away.slurm_commands import Commands, row
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, supervised


@pytest.fixture
def slurm(here: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    found = Commands(here / "bin")
    monkeypatch.setenv("PATH", f"{found.folder}{os.pathsep}{os.environ['PATH']}")
    found.answer(sbatch=[("12\n", "", 0)], squeue=[(row("12", "PENDING", "Priority"), "", 0)])
    return found


def _run_dir(here: Path) -> RunDir:
    return RunDir((here / "runs" / "small").resolve())


SUBMIT = ("run", "run.toml", "--slurm", "--time-limit", "4:00:00")


def test_a_dry_run_prints_the_script_and_writes_nothing(slurm: Commands, here: Path) -> None:
    done = prime_train(*SUBMIT, "--dry-run", "--partition", "gpu", "--set", "run.max_steps=50", cwd=here)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "#!/bin/bash"
    assert {"#SBATCH --partition=gpu", "#SBATCH --gres=gpu:1", "#SBATCH --time=0-04:00:00", "#SBATCH --requeue"} <= set(
        lines
    )
    assert lines[-1].startswith(
        f"exec {sys.executable} -P -m prime_train.away.slurm.slurm_program {_run_dir(here).path} "
    )
    assert f"-- {here.resolve()}/run.toml --set run.max_steps=50 --resume auto" in lines[-1]
    assert "nothing was submitted" in done.stderr
    assert slurm.calls("sbatch") == []
    assert not (here / "runs").exists()


def test_a_dry_run_as_json_has_the_script_and_its_resources(slurm: Commands, here: Path) -> None:
    done = prime_train(*SUBMIT, "--dry-run", "--json", cwd=here)
    found = json.loads(done.stdout)
    assert (found["version"], found["run"], found["job_id"]) == (1, "small", None)
    assert found["resources"] | {"memory_mib": 0} == {
        "gpus": 1,
        "cpus": 3,
        "memory_mib": 0,
        "limit_minutes": 240,
        "notice_s": 90,
    }
    assert found["script"].startswith("#!/bin/bash\n")
    assert slurm.calls("sbatch") == []


PARTITIONS = """\
PartitionName=cpu AllocNodes=ALL Default=YES DefMemPerCPU=100 MaxMemPerCPU=UNLIMITED MaxMemPerNode=UNLIMITED
PartitionName=gpu AllocNodes=ALL Default=NO DefMemPerCPU=100 MaxMemPerCPU=512 State=UP
"""


@pytest.mark.parametrize(
    ("words", "is_raised", "note"),
    [
        (("--partition", "gpu"), True, "MaxMemPerCPU of the partition gpu gives 512 MiB"),
        ((), False, ""),  # the default partition has no limit
        (("--sbatch", "mem-per-cpu=256M"), True, "--sbatch mem-per-cpu gives 256 MiB"),
        (("--partition", "gpu", "--sbatch", "cpus-per-task=2"), False, ""),
        (("--partition", "gpu", "--sbatch", "mem=1G"), False, ""),
    ],
)
def test_a_job_asks_for_the_cores_that_its_memory_needs(
    slurm: Commands, here: Path, words: tuple[str, ...], is_raised: bool, note: str
) -> None:
    slurm.answer(scontrol=[(PARTITIONS, "", 0)])
    done = prime_train(*SUBMIT, "--dry-run", "--json", *words, cwd=here)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["resources"]["cpus"] > 3) == is_raised
    assert note in done.stderr
    assert found["script"].count("#SBATCH --mem") == 1


def test_a_script_can_be_written_without_slurm(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(here))
    done = prime_train(*SUBMIT, "--dry-run", "--output", "job.sh", cwd=here)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "--signal=B:TERM@90" in (here / "job.sh").read_text()
    assert _run_dir(here).slurm.is_dir()  # Slurm does not make the folder of the output
    missing = prime_train(*SUBMIT, cwd=here)
    assert missing.returncode == 4
    assert "no sbatch in PATH" in missing.stderr


def test_a_job_is_submitted_shown_and_cancelled(slurm: Commands, here: Path) -> None:
    done = prime_train(*SUBMIT, cwd=here)
    assert done.returncode == 0, done.stderr
    assert "job 12 was submitted" in done.stdout
    assert slurm.calls("sbatch") == [["--parsable", str(_run_dir(here).slurm / "job.sh")]]
    shown = json.loads(prime_train("status", "small", "--json", cwd=here).stdout)
    assert (shown["state"], shown["resumable"], shown["slurm"]["reason"]) == ("queued", True, "Priority")
    assert "queued: job 12 is pending (Priority)" in prime_train("status", "small", cwd=here).stdout
    queue = [(row("12", "PENDING"), "", 0)] * 2 + [(row("12", "CANCELLED"), "", 0)]
    slurm.answer(squeue=queue, scontrol=[("   StdOut=/home/other/slurm-12.out\n", "", 0)])
    refused = prime_train("stop", "small", cwd=here)
    assert (refused.returncode, slurm.calls("scancel")) == (2, [])
    assert "job 12 is not a job of this run: its output is /home/other/slurm-12.out" in refused.stderr
    assert not (_run_dir(here).slurm / "stop_requested").exists()
    slurm.answer(squeue=queue, scontrol=[(f"   StdOut={_run_dir(here).slurm}/job-12.log\n", "", 0)])
    stopped = prime_train("stop", "small", cwd=here)
    assert stopped.returncode == 0, stopped.stderr
    assert ["12"] in slurm.calls("scancel")


def test_a_run_is_not_submitted_twice(slurm: Commands, here: Path) -> None:
    assert prime_train(*SUBMIT, cwd=here).returncode == 0
    again = prime_train(*SUBMIT, cwd=here)
    assert again.returncode == 2
    assert "job 12 is pending" in again.stderr
    assert len(slurm.calls("sbatch")) == 1
    slurm.answer(sbatch=[("13\n", "", 0)], squeue=[(row("12", "FAILED"), "", 0)])
    assert prime_train(*SUBMIT, cwd=here).returncode == 0


def test_a_job_whose_state_is_not_known_is_not_submitted_again(slurm: Commands, here: Path) -> None:
    assert prime_train(*SUBMIT, cwd=here).returncode == 0
    slurm.answer(sbatch=[("13\n", "", 0)], squeue=[("", "Unable to contact slurm controller", 1)])
    again = prime_train(*SUBMIT, cwd=here)
    assert (again.returncode, slurm.calls("sbatch")) == (4, [])
    shown = prime_train("status", "small", "--json", cwd=here)
    assert shown.returncode == 0
    assert json.loads(shown.stdout)["slurm"]["state"] == "UNKNOWN"


def test_a_refused_job_leaves_no_record(slurm: Commands, here: Path) -> None:
    slurm.answer(sbatch=[("", "sbatch: error: invalid partition specified: gpu\n", 1)])
    done = prime_train(*SUBMIT, "--partition", "gpu", cwd=here)
    assert done.returncode == 4
    assert "invalid partition specified: gpu" in done.stderr
    assert not (_run_dir(here).slurm / "job.json").exists()


def test_a_config_from_standard_input_is_kept_for_the_job(slurm: Commands, here: Path) -> None:
    command = [str(PROGRAM), "run", "-", "--slurm", "--time-limit", "60", "--set", "run.max_steps=7"]
    done = subprocess.run(
        command,
        cwd=here,
        input=(here / "run.toml").read_bytes(),
        env=clean_environment(),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    kept = _run_dir(here).slurm / "config.toml"
    assert "max_steps = 7" in kept.read_text()
    assert f"-- {kept} --resume auto" in (_run_dir(here).slurm / "job.sh").read_text()
    assert len(slurm.calls("sbatch")) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "shown"),
    [
        (("run", "run.toml", "--partition", "gpu"), 2, "--partition is an option of a job on Slurm"),
        (("run", "run.toml", "--slurm", "--spot", "--yes"), 2, "--slurm and --spot"),
        (("run", "run.toml", "--spot", "--time-limit", "60", "--dry-run"), 2, "--time-limit and --spot"),
        (("run", "run.toml", "--output", "x.sh"), 2, "--output is an option of a job on Slurm"),
        ((*SUBMIT, "--sbatch", "array=1-3"), 2, "array cannot be changed"),
        (("run", "run.toml", "--slurm", "--time-limit", "1"), 2, "saving needs the last 90 s"),
        ((*SUBMIT, "--set", "train.lr=1"), 1, "train"),
        ((*SUBMIT, "--set", "data.ctx_tokens=4"), 1, "ctx_tokens"),
        ((*SUBMIT, "--slurm-gpus", "8xh1000"), 2, "h1000"),
        ((*SUBMIT, "--set", "eval.prompts=['s3cret-of-a-person']"), 2, "contains a secret"),
    ],
)
def test_what_cannot_work_is_not_submitted(
    slurm: Commands, here: Path, arguments: tuple[str, ...], code: int, shown: str
) -> None:
    done = prime_train(*arguments, cwd=here, WANDB_API_KEY="s3cret-of-a-person")
    assert done.returncode == code, done.stderr
    assert shown in done.stderr
    assert "s3cret-of-a-person" not in done.stdout
    assert slurm.calls("sbatch") == []


def test_secrets_go_to_the_job_by_name(slurm: Commands, here: Path) -> None:
    secret = {"HF_TOKEN": "hf_abcdefghijklmnopqrst", "WANDB_API_KEY": "0123456789abcdef"}
    done = prime_train(*SUBMIT, cwd=here, **secret)
    assert done.returncode == 0, done.stderr
    text = (_run_dir(here).slurm / "job.sh").read_text()
    assert {"HF_TOKEN", "WANDB_API_KEY"} <= set(text.partition("--export=")[2].partition("\n")[0].split(","))
    written = [file.read_text() for file in (here / "runs").rglob("*") if file.is_file()]
    assert not any(value in one for value in secret.values() for one in [*written, done.stdout, done.stderr])
    assert not any(value in word for value in secret.values() for call in slurm.calls("sbatch") for word in call)


def test_the_output_of_a_job_is_its_log_before_the_first_attempt(slurm: Commands, here: Path) -> None:
    assert prime_train(*SUBMIT, cwd=here).returncode == 0
    (_run_dir(here).slurm / "job-12.log").write_text("one\ntwo\nthree\n")
    assert prime_train("logs", "small", "-n", "2", cwd=here).stdout == "two\nthree\n"
    slurm.answer(squeue=[(row("12", "FAILED"), "", 0)])
    followed = prime_train("logs", "small", "--follow", cwd=here)
    assert (followed.returncode, followed.stdout) == (0, "one\ntwo\nthree\n")


def test_a_run_that_was_continued_here_is_stopped_without_slurm(slurm: Commands, here: Path) -> None:
    slurm.answer(squeue=[("", "Unable to contact slurm controller", 1)])
    with supervised(here, "small") as (run_dir, process):
        record.write_job(run_dir, SlurmJob("12", "", 1.0))
        done = prime_train("stop", "small", cwd=here)
        assert done.returncode == 0, done.stderr
        assert process.wait(60) == 75
    refused = prime_train("stop", "small", cwd=here)
    assert refused.returncode == 4
    assert "Unable to contact" in refused.stderr


def test_the_estimate_gives_the_time_limit(slurm: Commands, here: Path) -> None:
    options = ("run", "run.toml", "--slurm", "--dry-run", "--json", "--set", "run.max_steps=100000")
    without = json.loads(prime_train(*options, cwd=here).stdout)
    found = json.loads(prime_train(*options, "--slurm-gpus", "h100-80gb", cwd=here).stdout)
    assert without["resources"]["limit_minutes"] is None
    assert found["resources"]["limit_minutes"] > 16
    assert slurm.calls("sbatch") == []
