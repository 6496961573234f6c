"""`status`, `logs`, `stop`, `report` and `ckpt`, on runs written by hand and on one that lives."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, StopAsked
from prime_train.views.run.status import fold_events
from tests.golden import same_as_golden
from tests.unit.cli.commands import PROGRAM, prime_train, supervised, wait_until
from tests.unit.views.written_runs import WHOLE_LIFE, write_checkpoint, write_metrics, write_run


def test_a_run_that_lives_is_shown_then_stopped(tmp_path: Path) -> None:
    with supervised(tmp_path, "live") as (run_dir, process):
        running = json.loads(prime_train("status", "live", "--json", cwd=tmp_path).stdout)
        assert running["state"] == "running"
        assert running["supervisor"] == {"pid": process.pid, "alive": True, "stopped_by_signal": False}
        assert [child["alive"] for child in running["children"]] == [True]
        assert running["last_progress_s"] < 60

        done = prime_train("stop", "live", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("live stopped at step ")
        assert f"asked process {process.pid} to checkpoint and end" in done.stderr
        assert process.wait(30) == ExitCode.RESUMABLE

        stopped = json.loads(prime_train("status", "live", "--json", cwd=tmp_path).stdout)
        assert (stopped["state"], stopped["resumable"], stopped["exit_code"]) == ("stopped", True, 75)
        assert stopped["supervisor"]["alive"] is False
        again = prime_train("stop", "live", cwd=tmp_path)
        assert again.returncode == 2
        assert "no supervisor runs it" in again.stderr
        assert fold_events(run_dir).reason.startswith("prime-train stop")


def test_stop_gives_up_after_its_timeout_and_reports_it(tmp_path: Path) -> None:
    with supervised(tmp_path, "live") as (run_dir, process):
        live = fold_events(run_dir).live
        assert live is not None
        os.kill(live.children[0].pid, signal.SIGSTOP)  # a trainer that cannot save
        try:
            done = prime_train("stop", "live", "--timeout", "0.3", cwd=tmp_path)
        finally:
            os.kill(live.children[0].pid, signal.SIGCONT)
        assert done.returncode == ExitCode.OUT_OF_REACH
        assert f"process {process.pid} has not ended after 0.3 s" in done.stderr


def test_a_status_that_is_watched_ends_with_the_run(tmp_path: Path) -> None:
    with supervised(tmp_path, "live") as (_, process):
        watching = subprocess.Popen(
            [PROGRAM, "status", "live", "--watch", "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        assert watching.stdout is not None
        assert watching.stdout.readline() == "{\n"
        process.send_signal(signal.SIGINT)
        rest = watching.stdout.read()
        assert watching.wait(60) == 0
    documents = [json.loads("{" + text) for text in rest.replace("\n{\n", "\0").split("\0")]
    assert (documents[0]["state"], documents[-1]["state"]) == ("running", "stopped")


def test_a_run_whose_supervisor_was_killed_is_reported_as_died_and_resumable(tmp_path: Path) -> None:
    with supervised(tmp_path, "live") as (_, process):
        process.kill()
        process.wait(30)
        died = json.loads(prime_train("status", "live", "--json", cwd=tmp_path).stdout)
        assert (died["state"], died["resumable"]) == ("died", True)
        assert "died: its supervisor is gone" in prime_train("status", "live", cwd=tmp_path).stdout


def test_logs_are_followed_until_the_run_is_over(tmp_path: Path) -> None:
    with supervised(tmp_path, "live") as (run_dir, process):
        follower = subprocess.Popen(
            [PROGRAM, "logs", "live", "--raw", "--follow", "--lines", "1"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert follower.stdout is not None
        first = follower.stdout.readline()
        assert first.startswith("attempt 1 step ")
        process.send_signal(signal.SIGINT)
        events = Follower(run_dir.events)
        wait_until(lambda: any(isinstance(record.event, StopAsked) for record in events.poll()))
        assert follower.stderr is not None
        rest, told = follower.stdout.read(), follower.stderr.read()  # communicate drops what readline read ahead
        assert follower.wait(60) == 0, told
        steps = [int(line.split()[-1]) for line in [first, *rest.splitlines()]]
        assert steps == list(range(steps[0], steps[0] + len(steps)))
        assert steps[-1] == int(run_dir.log(1, "trainer").read_text().split()[-1])


def test_the_last_lines_of_an_attempt_go_to_stdout(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    for attempt in (1, 2):
        run_dir.attempt(attempt).mkdir(parents=True)
        run_dir.log(attempt, "trainer").write_text("".join(f"{attempt}.{line}\n" for line in range(5)))
    assert prime_train("logs", "small", "--raw", "-n", "2", cwd=tmp_path).stdout == "2.3\n2.4\n"
    assert prime_train("logs", "small", "--raw", "--attempt", "1", "-n0", cwd=tmp_path).stdout.splitlines()[0] == "1.0"
    unknown = prime_train("logs", "small", "--attempt", "3", cwd=tmp_path)
    assert unknown.returncode == 2
    assert "the attempts of this run are 1 to 2" in unknown.stderr


def test_logs_show_the_steps_of_a_run_beside_the_output_of_its_processes(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    run_dir.attempt(2).mkdir(parents=True)
    run_dir.log(2, "trainer").write_text("a warning\ntorn")
    lines = prime_train("logs", "small", cwd=tmp_path).stdout.splitlines()
    assert lines[:2] == ["trainer | a warning", "trainer | torn"]
    shown = [line.split(maxsplit=3)[3] for line in lines[2:]]
    assert "step 100 of 100, loss 4.5000, 4100 tokens/s" in shown
    assert any(line.startswith("checkpoint of step 100 complete") for line in shown)
    assert not any(line.startswith("attempt 1") for line in shown)
    assert prime_train("logs", "small", "-n", "1", cwd=tmp_path).stdout.splitlines() == ["trainer | torn", lines[-1]]


def test_logs_have_one_document_for_programs(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    run_dir.attempt(2).mkdir(parents=True)
    run_dir.log(2, "trainer").write_text("first\n\x1b[31ma warning\x1b[0m\ntorn")
    done = prime_train("logs", "small", "--json", "-n", "2", cwd=tmp_path, TZ="UTC")
    same_as_golden("logs.json", json.loads(done.stdout))
    assert done.stderr == ""
    raw = json.loads(prime_train("logs", "small", "--raw", "--json", "-n", "0", cwd=tmp_path).stdout)
    assert raw["sources"] == [{"source": "trainer", "lines": ["first", "a warning", "torn"]}]
    refused = prime_train("logs", "small", "--json", "--follow", cwd=tmp_path)
    assert refused.returncode == 2
    assert "--follow never ends it" in refused.stderr


def test_all_runs_are_listed(tmp_path: Path) -> None:
    nothing = prime_train("status", cwd=tmp_path)
    assert (nothing.returncode, nothing.stdout) == (0, "")
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    header, row = prime_train("status", cwd=tmp_path).stdout.splitlines()
    assert header.split() == ["RUN", "STATE", "STEP", "LOSS", "HELD-OUT", "RESTARTS", "TRAINER", "LAST", "ACTIVITY"]
    assert row.split()[:6] == ["small", "finished", "100/100", "4.500", "4.625", "1"]
    document = json.loads(prime_train("status", "--json", cwd=tmp_path).stdout)
    assert [run["run"] for run in document["runs"]] == ["small"]


def test_a_report_is_written_again_and_its_path_printed(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    write_metrics(run_dir, 100)
    done = prime_train("report", "small", cwd=tmp_path)
    assert done.stdout == f"{run_dir.report}\n"
    assert run_dir.report.read_text().startswith("# Run small\n")
    assert (run_dir.plots / "loss.png").stat().st_size > 10_000
    document = json.loads(prime_train("report", "small", "--json", cwd=tmp_path).stdout)
    assert (document["run"], document["report"]) == ("small", str(run_dir.report))
    assert all(Path(plot).is_file() for plot in document["plots"])
    assert len(document["plots"]) == 2
    assert (
        document["status"]["state"]
        == json.loads(prime_train("status", "small", "--json", cwd=tmp_path).stdout)["state"]
    )


def test_checkpoints_are_listed_with_the_one_a_resume_takes(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    for step in (50, 100):
        write_checkpoint(run_dir, step)
    os.truncate(run_dir.checkpoint(100) / "model.distcp", 10)
    document = json.loads(prime_train("ckpt", "list", "small", "--json", cwd=tmp_path).stdout)
    assert document["resume_step"] == 50
    assert document["checkpoints"][0]["problem"] == "model.distcp has 10 of 1000 bytes"
    listed = prime_train("ckpt", "list", "small", cwd=tmp_path).stdout
    assert "complete; used by a resume" in listed.splitlines()[2]


@pytest.mark.parametrize("as_json", [False, True])
def test_verify_ends_with_1_when_bytes_changed(tmp_path: Path, as_json: bool) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    for step in (50, 100):
        write_checkpoint(run_dir, step)
    write_checkpoint(run_dir, 150, complete=False)
    options = ["--json"] if as_json else []
    assert prime_train("ckpt", "verify", "small", *options, cwd=tmp_path).returncode == 0
    damaged = run_dir.checkpoint(50) / "model.distcp"
    damaged.write_bytes(bytes([1]) + damaged.read_bytes()[1:])
    done = prime_train("ckpt", "verify", "small", *options, cwd=tmp_path)
    assert done.returncode == 1
    if as_json:
        states = {found["step"]: found["state"] for found in json.loads(done.stdout)["checkpoints"]}
        assert states == {150: "unfinished", 100: "verified", 50: "broken"}
    else:
        assert "broken      model.distcp does not match its SHA-256" in done.stdout


def test_a_run_without_checkpoints_has_none_to_list_or_verify(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    for command in ("list", "verify"):
        done = prime_train("ckpt", command, "small", cwd=tmp_path)
        assert (done.returncode, done.stdout) == (0, "")
        assert "no checkpoint in" in done.stderr


@pytest.mark.parametrize("command", ["status", "logs", "stop", "report", "ckpt list", "ckpt verify"])
def test_an_unknown_run_is_usage_in_every_command(command: str, tmp_path: Path) -> None:
    RunDir(tmp_path / "runs" / "small").events.mkdir(parents=True)
    done = prime_train(*command.split(), "smal", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean small?" in done.stderr
