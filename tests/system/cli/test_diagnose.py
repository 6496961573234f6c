"""`prime-train diagnose` as a person and as a program meet it: files, folders, runs, pipes, exit codes."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from pathlib import Path

import pytest

from prime_train.cli.diagnose import diagnose_logs
from prime_train.core.rundir import RunDir
from prime_train.events import AttemptEnded, EventLog, LaunchAsked
from prime_train.views.diagnosis import as_json
from tests.golden import same_as_golden
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train

LOGS = Path(__file__).parents[2] / "corpus" / "logs"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
FULL = "OSError: [Errno 28] No space left on device\n"
FINE = "step 1 | loss: 2.3 | 1.2 s\nstep 2 | loss: 2.2 | 1.2 s\n"


def test_the_cause_is_reported_in_five_lines_and_ends_with_1(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(FINE + OOM)
    done = prime_train("diagnose", "trainer.log", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert lines[0] == "cause[CUDA001] trainer.log:3  oom"
    assert [line.split()[0] for line in lines[1:]] == ["line", "what", "why", "fix"]


def test_what_followed_is_reported_in_one_line_more() -> None:
    found = diagnose_logs([str(LOGS / "vllm_root_above.log")])
    assert found.diagnosis.cause is not None
    assert found.diagnosis.cause.line == 9
    assert {seen.id for seen in found.diagnosis.cascade} == {"VLLM006", "VLLM018"}


def test_a_log_that_only_stops_is_not_called_healthy(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(FINE)
    done = prime_train("diagnose", "trainer.log", cwd=tmp_path)
    assert done.returncode == 4
    first, second = done.stdout.splitlines()
    assert first == "no known failure in 1 log, and no report that the work was completed"
    assert second.split() == ["ends", "trainer.log:2", *FINE.splitlines()[1].split()]
    document = json.loads(prime_train("diagnose", "trainer.log", "--json", cwd=tmp_path).stdout)
    assert (document["cause"], document["healthy"]) == (None, False)
    assert document["ends"] == [{"file": "trainer.log", "line": 2, "text": FINE.splitlines()[1]}]


def test_logs_of_the_same_time_are_reported_as_unordered(tmp_path: Path) -> None:
    for name, text in (("a.log", OOM), ("b.log", FULL)):
        (tmp_path / name).write_text(text)
        os.utime(tmp_path / name, (1.79e9, 1.79e9))
    paths = [str(tmp_path / name) for name in ("a.log", "b.log")]
    there, back = diagnose_logs(paths).diagnosis, diagnose_logs(paths[::-1]).diagnosis
    assert there == back
    assert [seen.id for seen in there.unordered] == ["OS001"]


def test_a_healthy_log_ends_with_0(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(FINE + "Training finished\n")
    done = prime_train("diagnose", "trainer.log", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "no failure found in 1 log\n")
    done = prime_train("diagnose", "trainer.log", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert (done.returncode, document["version"], document["cause"], document["healthy"]) == (0, 1, None, True)


def test_the_document_has_what_programs_were_promised(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text((LOGS / "vllm_root_above.log").read_text(encoding="utf-8"))
    done = prime_train("diagnose", "engine.log", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["healthy"] is False
    cause = document["cause"]
    assert (cause["id"], cause["class"], cause["file"], cause["line"]) == ("VLLM002", "config", "engine.log", 9)
    assert cause["text"].startswith("ValueError: To serve at least one request")
    assert (cause["retry"], bool(cause["what"] and cause["why"] and cause["fix"])) == ("after_fix", True)
    assert {tuple(sorted(seen)) for seen in document["cascade"]} == {("file", "id", "line", "what")}


def test_one_log_that_cannot_be_read_does_not_keep_the_others_from_judgement(tmp_path: Path) -> None:
    (tmp_path / "trainer.log").write_text(OOM)
    done = prime_train("diagnose", "nowhere.log", "trainer.log", cwd=tmp_path)
    assert done.returncode == 1
    assert "cause[CUDA001]" in done.stdout
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["error:", "what", "why", "fix"]
    (tmp_path / "trainer.log").write_text(FINE)
    done = prime_train("diagnose", "nowhere.log", "trainer.log", "--json", cwd=tmp_path)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert (document["healthy"], document["unread"][0]["file"]) == (False, "nowhere.log")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_log_without_the_right_to_read_it(tmp_path: Path) -> None:
    path = tmp_path / "trainer.log"
    path.write_text(OOM)
    path.chmod(0)
    assert [error.where for error in diagnose_logs([str(path)]).unread] == [str(path)]


def test_a_cut_archive_is_reported_and_a_whole_one_read(tmp_path: Path) -> None:
    packed = gzip.compress((FINE + OOM).encode() * 2_000)
    (tmp_path / "whole.log.gz").write_bytes(packed)
    (tmp_path / "cut.log.gz").write_bytes(packed[:-4])
    found = diagnose_logs([str(tmp_path)])
    assert [error.where for error in found.unread] == [str(tmp_path / "cut.log.gz")]
    assert [len(scan.hits) > 0 for scan in found.scans] == [True, True]  # what could be read of it is judged


def test_a_folder_gives_its_logs_and_leaves_the_rest(tmp_path: Path) -> None:
    for name in (
        "a.log",
        "deep/b.out",
        "deep/c.log.1",
        "dmesg",
        "notes.md",
        "metrics.prom",
        "checkpoints/x.log",
        ".git/y.log",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(FINE)
    found = diagnose_logs([str(tmp_path)])
    assert sorted(Path(scan.name).name for scan in found.scans) == ["a.log", "b.out", "c.log.1", "dmesg"]


def test_a_folder_without_a_log_is_an_error(tmp_path: Path) -> None:
    done = prime_train("diagnose", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no log in it" in done.stderr


def test_of_a_run_the_newest_attempt_is_read(tmp_path: Path) -> None:
    for number, text in (("001", FULL), ("002", OOM), ("010", FINE + FULL)):
        attempt = tmp_path / "runs" / "demo" / "attempts" / number
        attempt.mkdir(parents=True)
        (attempt / "trainer.log").write_text(text)
    (tmp_path / "runs" / "demo" / "events").mkdir()
    for name in ("demo", "runs/demo", "runs/demo/attempts"):
        done = prime_train("diagnose", name, "--json", cwd=tmp_path)
        assert json.loads(done.stdout)["cause"]["id"] == "OS001"
    done = prime_train("diagnose", "runs/demo/attempts/002", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["cause"]["id"] == "CUDA001"


@pytest.mark.parametrize("run", sorted(path.parent.name for path in LOGS.glob("*/EXPECT")))
def test_the_folders_of_whole_runs(run: str) -> None:
    expected = (LOGS / run / "EXPECT").read_text(encoding="utf-8").removeprefix("# expect ").split()
    cause = diagnose_logs([str(LOGS / run)]).diagnosis.cause
    assert cause is not None
    assert [cause.id, cause.cause_class] == expected


def test_the_same_log_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    (tmp_path / "latest.log").symlink_to("a.log")
    assert len(diagnose_logs([str(tmp_path), str(tmp_path / "a.log")]).scans) == 1


def test_standard_input(tmp_path: Path) -> None:
    done = subprocess.run(
        [PROGRAM, "diagnose", "-"],
        input=FINE + OOM,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("cause[CUDA001] -:3  oom")


def test_control_characters_of_a_log_do_not_reach_the_terminal(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("OSError: [Errno 28] No space left on device: '\x07\x9b31m\x08'\n")
    done = prime_train("diagnose", "a.log", cwd=tmp_path)
    assert not any(character in done.stdout for character in "\x07\x08\x9b\x1b")


def test_no_log_at_all_is_a_usage_error(tmp_path: Path) -> None:
    assert prime_train("diagnose", cwd=tmp_path).returncode == 2


def test_it_imports_nothing_heavy(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text(OOM)
    code = (
        "import sys; from prime_train.cli.diagnose import diagnose_logs; diagnose_logs(['a.log']);"
        "print(sorted({'torch', 'numpy', 'transformers', 'datasets', 'pydantic', 'rich'} & set(sys.modules)))"
    )
    python = str(PROGRAM.with_name("python"))
    done = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_the_document_is_as_promised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("inference.log", "orchestrator.log", "rl.log", "trainer.log"):
        (tmp_path / name).write_bytes((LOGS / "run_engine_died_first" / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    judged = diagnose_logs(["trainer.log", "rl.log", "orchestrator.log", "inference.log"])
    same_as_golden("diagnose.json", as_json(judged.diagnosis, [scan.name for scan in judged.scans], judged.unread))


def test_a_run_whose_log_is_silent_is_reported_by_its_supervisor(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "quiet")
    run_dir.attempt(1).mkdir(parents=True)
    run_dir.log(1, "trainer").write_text("step 1 loss 5.0\nstep 2 loss 4.9\n")
    log = EventLog(run_dir.events, "supervisor")
    log.append(AttemptEnded(1, -9, "failed", "signal", "killed by signal 9 (SIGKILL)", "somebody sent it", "", "", 0))
    log.close()
    found = prime_train("diagnose", str(run_dir.path), cwd=tmp_path)
    assert found.returncode == 1
    assert "killed by signal 9 (SIGKILL)" in found.stderr


@pytest.mark.parametrize("outcome", ["finished", "stopped"])
def test_a_run_that_its_supervisor_saw_end_well_has_no_failure(tmp_path: Path, outcome: str) -> None:
    run_dir = RunDir(tmp_path / "runs" / "quiet")
    run_dir.attempt(1).mkdir(parents=True)
    run_dir.log(1, "trainer").write_text("tokenising 200 documents\n")
    log = EventLog(run_dir.events, "supervisor")
    log.append(AttemptEnded(1, 0, outcome, "", "", "", "", "", 20))
    found = prime_train("diagnose", str(run_dir.path), cwd=tmp_path)
    assert (found.returncode, found.stdout) == (0, "no failure found in 1 log\n")
    log.append(LaunchAsked(2, 20))  # an attempt that has not ended
    log.close()
    again = prime_train("diagnose", str(run_dir.path), cwd=tmp_path)
    assert (again.returncode, again.stdout.splitlines()[0].endswith("completed")) == (4, True)


def _run_of(tmp_path: Path, log: str, *ends: AttemptEnded, going: bool = False) -> None:
    """A run whose newest attempt has this log. `going`: that attempt has no end."""
    run_dir = RunDir(tmp_path / "runs" / "demo")
    newest = len(ends) + going
    folder = run_dir.path / "attempts" / str(newest)
    folder.mkdir(parents=True)
    (folder / "trainer.log").write_text(log)
    events = EventLog(run_dir.events, "supervisor")
    for number in range(1, newest + 1):
        events.append(LaunchAsked(number, 0))
        if number <= len(ends):
            events.append(ends[number - 1])
    events.close()


def _end(attempt: int, outcome: str, cause_class: str = "", what: str = "") -> AttemptEnded:
    fix = "lower batch.micro_batch" if outcome == "failed" else ""
    return AttemptEnded(attempt, 1 if fix else 0, outcome, cause_class, what, "", fix, "", 0)


def test_what_the_trainer_reported_itself_is_not_unknown(tmp_path: Path) -> None:
    log = (
        FINE
        + 'Traceback (most recent call last):\n  File "t.py", line 3, in f\nprime_train.core.errors.OwnTrouble: x\n'
    )
    _run_of(tmp_path, log, _end(1, "failed", "config", "the corpus has 3 documents and 8 are needed"))
    done = prime_train("diagnose", "demo", "--json", cwd=tmp_path)
    cause = json.loads(done.stdout)["cause"]
    assert done.returncode == 1
    assert (cause["id"], cause["class"], cause["line"]) == ("REPORTED", "config", 5)
    assert cause["what"] == "the corpus has 3 documents and 8 are needed"


def test_a_signature_is_more_than_a_report(tmp_path: Path) -> None:
    _run_of(tmp_path, FINE + OOM, _end(1, "failed", "bug", "it exited with 1"))
    assert json.loads(prime_train("diagnose", "demo", "--json", cwd=tmp_path).stdout)["cause"]["id"] == "CUDA001"


def test_a_run_that_restarted_shows_why(tmp_path: Path) -> None:
    ends = (_end(1, "failed", "oom", "no memory was left"), _end(2, "failed", "hang", "silence"))
    _run_of(tmp_path, FINE, *ends, going=True)
    done = prime_train("diagnose", "demo", cwd=tmp_path)
    assert done.returncode == 1
    assert "before that, 2 attempts failed" in done.stdout
    assert "no memory was left" in done.stdout
    assert "silence" in done.stdout
    document = json.loads(prime_train("diagnose", "demo", "--json", cwd=tmp_path).stdout)
    assert [(one["attempt"], one["class"]) for one in document["attempts"]] == [(1, "oom"), (2, "hang")]


def test_a_run_that_finished_after_a_restart_is_healthy_and_shows_it(tmp_path: Path) -> None:
    _run_of(tmp_path, FINE + OOM + FINE, _end(1, "failed", "oom", "no memory was left"), _end(2, "finished"))
    done = prime_train("diagnose", "demo", cwd=tmp_path)
    assert done.returncode == 0
    assert "before that, 1 attempt failed" in done.stdout


def test_logs_show_why_the_attempt_before_failed(tmp_path: Path) -> None:
    _run_of(tmp_path, FINE, _end(1, "failed", "oom", "no memory was left"), going=True)
    (tmp_path / "runs" / "demo" / "resolved.json").write_text("{}")
    done = prime_train("logs", "demo", cwd=tmp_path)
    assert "no memory was left" in done.stderr


def test_an_archive_that_unpacks_to_far_more_than_a_log_is_read_up_to_a_limit(tmp_path: Path) -> None:
    bomb = tmp_path / "trainer.log.gz"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        file.write(OOM.encode())
        for _ in range(80):
            file.write(b"\n".ljust(2**20, b" "))
    found = diagnose_logs([str(bomb)])
    (error,) = found.unread
    assert error.what == "it unpacks to more than 100 times its size"
    assert error.fix == f"zcat {bomb} | prime-train diagnose -"
    assert found.diagnosis.cause is not None  # what could be read is judged


def test_a_log_that_is_a_pipe_or_a_device_is_named_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.log")
    (tmp_path / "zero.log").symlink_to("/dev/zero")
    for name, kind in (("pipe.log", "a named pipe"), ("zero.log", "a device")):
        (error,) = diagnose_logs([str(tmp_path / name)]).unread
        assert error.what == f"it is {kind}, not a regular file"
    (tmp_path / "trainer.log").write_text(OOM)
    found = diagnose_logs([str(tmp_path)])  # in a folder they are no logs
    assert ([Path(scan.name).name for scan in found.scans], found.unread) == (["trainer.log"], ())
