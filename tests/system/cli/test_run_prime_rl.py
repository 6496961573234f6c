"""`prime-train run` of prime-rl: a stand-in of its launcher, with real processes that die, hang and end for nothing."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, CheckpointSaved, Event, Follower, LaunchAsked, read
from prime_train.supervise.launch import environment
from tests.fakes.prime_rl_launcher import behaviour, install
from tests.fakes.prime_rl_launcher.config import config
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train, wait_until


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Path]:
    """A folder with a prime-rl in it; what a test leaves running in it is a failure, and is ended."""
    install(tmp_path / "env")
    yield tmp_path
    left = leftovers(tmp_path)
    for process in left:
        process.kill()
    assert left == []


def leftovers(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get(environment.RUN, ""):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def run(folder: Path, kind: str = "rl", ours: str = "", **options: object) -> subprocess.CompletedProcess[str]:
    """`prime-train run` to its end, with a stand-in that behaves as `options` say."""
    (folder / "words.toml").write_text(config(kind, folder / "env" / "bin" / "python", ours=ours))
    return prime_train("run", "words.toml", "--no-validate", cwd=folder, **behaviour(folder / "starts", **options))


def events(folder: Path) -> list[Event]:
    return [record.event for record in read(RunDir(folder / "runs" / "words").events)]


def ends(folder: Path) -> list[AttemptEnded]:
    return [event for event in events(folder) if isinstance(event, AttemptEnded)]


def resumed_from(folder: Path) -> list[int]:
    return [event.resume_step for event in events(folder) if isinstance(event, LaunchAsked)]


def status(folder: Path) -> dict[str, object]:
    told: dict[str, object] = json.loads(prime_train("status", "words", "--json", cwd=folder).stdout)
    return told


# --- the plan --------------------------------------------------------------------------------------


def test_the_plan_is_shown_and_nothing_is_written(there: Path) -> None:
    (there / "words.toml").write_text(config("rl", there / "env" / "bin" / "python"))
    before = sorted(there.rglob("*"))
    done = prime_train("run", "words.toml", "--dry-run", "--no-validate", "--run-name", "other", cwd=there)
    assert done.returncode == 0, done.stderr
    assert f"{there}/env/bin/rl @ {there}/runs/other/attempts/001/prime_rl.toml" in done.stdout
    assert f"{there}/outputs/other" in done.stdout
    assert 'run.name = "other"   # ' in done.stdout
    assert "PRL_RUN_ID=(a fresh one)" in done.stdout
    assert sorted(there.rglob("*")) == before


def test_where_prime_rl_is_not_installed_it_reports_it(tmp_path: Path) -> None:
    (tmp_path / "words.toml").write_text(config("rl", tmp_path / "bin" / "python"))
    done = prime_train("run", "words.toml", "--no-validate", cwd=tmp_path)
    assert done.returncode == 4
    assert "no rl of prime-rl was found" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


def test_the_plan_of_a_run_for_another_machine_is_shown_with_what_this_one_lacks(tmp_path: Path) -> None:
    (tmp_path / "words.toml").write_text(config("rl", tmp_path / "bin" / "python"))
    done = prime_train("run", "words.toml", "--dry-run", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "error[GPU002]" in done.stderr
    assert "not installed" in done.stdout
    assert "no rl of prime-rl was found" in done.stdout
    assert f"rl @ {tmp_path}/runs/words/attempts/001/prime_rl.toml" in done.stdout
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("line", "what"), [("dry_run = true\n", "dry_run = true"), ("[slurm]\n", "[slurm] table")])
def test_what_is_started_otherwise_is_refused(there: Path, line: str, what: str) -> None:
    text = config("rl", there / "env" / "bin" / "python")
    (there / "words.toml").write_text(f"{line}{text}" if "=" in line else f'{text}\n{line}job_name = "words"\n')
    done = prime_train("run", "words.toml", "--no-validate", cwd=there)
    assert done.returncode == 2
    assert what in done.stderr
    assert not (there / "runs").exists()


# --- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rl", "may", "sft"])
def test_a_run_finishes_and_is_found_finished(there: Path, kind: str) -> None:
    done = run(there, kind)
    assert done.returncode == 0, done.stderr
    assert "words finished: step 12 of 12" in done.stdout
    assert resumed_from(there) == [0]
    assert any(isinstance(event, CheckpointSaved) and event.step == 12 for event in events(there))
    assert status(there)["loss"] == pytest.approx(1 / 12, abs=1e-4)
    folder = "words" if kind == "may" else "outputs/words"
    assert f"{folder}/checkpoints/step_12" in done.stdout
    assert "--set max_steps=24" in done.stdout
    again = prime_train("run", "words.toml", "--no-validate", cwd=there)
    assert again.returncode == 0
    assert "words is finished: step 12 of 12" in again.stderr
    assert len(ends(there)) == 1


@pytest.mark.parametrize("kind", ["rl", "may", "sft"])
def test_a_killed_trainer_is_followed_by_one_from_the_newest_whole_checkpoint(there: Path, kind: str) -> None:
    """It dies while it saves step 6: that folder has no .metadata, and prime-rl itself would take it."""
    done = run(there, kind, fault="dies_in_save", at_step=6)
    assert done.returncode == 0, done.stderr
    assert resumed_from(there) == [0, 4]
    assert [end.outcome for end in ends(there)] == ["failed", "finished"]
    assert (ends(there)[0].cause_class, ends(there)[0].newest_complete) == ("signal", 4)
    starts = (there / "starts").read_text().split()
    assert starts[1] == starts[3], "both starts have the id of one run"


def test_ctrl_c_ends_with_75_and_the_same_command_goes_on(there: Path) -> None:
    (there / "words.toml").write_text(config("rl", there / "env" / "bin" / "python", max_steps=40))
    variables = clean_environment() | behaviour(there / "starts", step_s=0.2)
    command = [str(PROGRAM), "run", "words.toml", "--no-validate"]
    with subprocess.Popen(
        command, cwd=there, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        heard = Follower(RunDir(there / "runs" / "words").events)
        wait_until(lambda: any(isinstance(record.event, CheckpointSaved) for record in heard.poll()))
        process.send_signal(signal.SIGINT)
        shown, told = process.communicate(timeout=60)
    assert process.returncode == 75, told
    assert "words stopped: step " in shown
    assert leftovers(there) == []
    newest = ends(there)[0].newest_complete
    assert newest > 0

    done = prime_train("run", "words.toml", "--no-validate", cwd=there, **behaviour(there / "starts"))
    assert done.returncode == 0, done.stderr
    assert resumed_from(there) == [0, newest]


def test_a_killed_supervisor_takes_all_of_prime_rl_with_it(there: Path) -> None:
    (there / "words.toml").write_text(config("rl", there / "env" / "bin" / "python", max_steps=40))
    variables = clean_environment() | behaviour(there / "starts", step_s=0.2)
    with subprocess.Popen(
        [str(PROGRAM), "run", "words.toml", "--no-validate"], cwd=there, env=variables, stderr=subprocess.DEVNULL
    ) as process:
        heard = Follower(RunDir(there / "runs" / "words").events)
        wait_until(lambda: any(isinstance(record.event, CheckpointSaved) for record in heard.poll()))
        process.kill()
    wait_until(lambda: not leftovers(there))
    done = prime_train("run", "words.toml", "--no-validate", cwd=there, **behaviour(there / "starts"))
    assert done.returncode == 0, done.stderr
    assert resumed_from(there)[1] > 0


# --- what goes wrong -------------------------------------------------------------------------------


def test_a_crash_before_the_first_checkpoint_starts_again_and_keeps_what_was_there(there: Path) -> None:
    done = run(there, fault="trainer_raises", at_step=1)
    assert done.returncode == 0, done.stderr
    assert resumed_from(there) == [0, 0]
    assert ends(there)[0].what == "RuntimeError: boom at step 1"
    kept = [path for path in (there / "outputs").iterdir() if path.name != "words"]
    assert len(kept) == 1
    assert "boom" in (kept[0] / "logs" / "attempt_1" / "trainer.log").read_text()


def test_a_server_that_exits_with_0_is_found(there: Path) -> None:
    done = run(there, fault="inference_exits", at_step=5)
    assert done.returncode == 0, done.stderr
    first = ends(there)[0]
    assert (first.outcome, first.cause_id) == ("failed", "service_gone")
    assert "inference has ended" in first.what
    assert resumed_from(there)[1] >= 4


@pytest.mark.parametrize(("fault", "cause_class"), [("out_of_memory", "oom"), ("disk_full", "disk")])
def test_what_would_fail_again_is_not_tried_again(there: Path, fault: str, cause_class: str) -> None:
    done = run(there, fault=fault, at_step=5, times=9)
    assert done.returncode == 5, done.stderr
    (end,) = ends(there)
    assert end.cause_class == cause_class
    assert end.newest_complete == 4


def test_a_trainer_that_hangs_is_ended_and_followed(there: Path) -> None:
    limits = "[prime_train.heartbeat]\nstep_limit_s = 2.0\n"
    done = run(there, fault="hangs", at_step=5, ours=limits)
    assert done.returncode == 0, done.stderr
    assert [end.cause_class for end in ends(there)] == ["hang", ""]
    assert resumed_from(there)[1] >= 4
