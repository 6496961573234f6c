"""`prime-train backup` as a person uses it: every command once, its JSON, and what it refuses."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import BackupFlushBegun, CheckpointBackedUp, CheckpointRestored, SpaceFreed, read
from prime_train.spec import Backup, Data, PrimeTrain, Run, RunSpec
from prime_train.views.run.status import fold_events
from tests import fork_server
from tests.unit.backups import s3_server, scene
from tests.unit.cli import small
from tests.unit.cli.commands import PROGRAM, clean_environment, prime_train


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run of three checkpoints, whose config names a folder as bucket."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "bucket").mkdir()
    backup = Backup(provider="local", bucket=str(tmp_path / "bucket"), keep_last=2)
    write_run(tmp_path, backup)
    return tmp_path


def write_run(folder: Path, backup: Backup) -> None:
    run_dir = RunDir(folder / "runs" / "words")
    for step in (10, 20, 30):
        scene.write_step(run_dir.path, step)
    run = RunSpec(run=Run(name="words", max_steps=100), data=Data(sources=()), prime_train=PrimeTrain(backup=backup))
    run_dir.resolved.write_text(spec.to_json(run))


def backup(folder: Path, *arguments: str, code: int = ExitCode.OK) -> str:
    done = prime_train("backup", *arguments, cwd=folder)
    assert done.returncode == code, done.stderr
    return done.stdout


def document(folder: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(backup(folder, *arguments, "--json"))
    return found


def test_push_status_verify_prune_and_pull(place: Path) -> None:
    planned = document(place, "push", "words", "--dry-run")
    assert [(row["step"], row["did"]) for row in planned["steps"]] == [(30, "would push"), (20, "would push")]
    assert document(place, "status", "words")["backups"] == []
    pushed = document(place, "push", "words")
    assert [(row["step"], row["did"]) for row in pushed["steps"]] == [(30, "pushed"), (20, "pushed")]
    assert document(place, "push", "words")["steps"] == []
    status = document(place, "status", "words")
    assert (status["version"], status["newest_complete_step"]) == (1, 30)
    assert [(row["step"], row["complete"], row["on_this_disk"]) for row in status["backups"]] == [
        (30, True, True),
        (20, True, True),
    ]
    assert "verified" in backup(place, "verify", "words")
    assert [row["step"] for row in document(place, "prune", "words", "--keep-last", "1", "--dry-run")["steps"]] == [20]
    assert len(document(place, "status", "words")["backups"]) == 2
    backup(place, "prune", "words", "--keep-last", "1")
    assert [row["step"] for row in document(place, "status", "words")["backups"]] == [30]
    assert document(place, "pull", "words")["steps"][0]["did"] == "was there"
    before = scene.content(place / "runs" / "words" / "checkpoints" / "step_30")
    layout.mark_damaged(place / "runs" / "words" / "checkpoints" / "step_30", "by the test")
    assert document(place, "pull", "words", "--dry-run")["steps"][0]["did"] == "would pull"
    assert document(place, "pull", "words")["steps"][0]["did"] == "pulled"
    assert scene.content(place / "runs" / "words" / "checkpoints" / "step_30") == before


def test_a_damaged_backup_is_a_finding(place: Path) -> None:
    backup(place, "push", "words", "--step", "30")
    path = max((place / "bucket").rglob("parts/*"), key=lambda one: one.stat().st_size)
    path.write_bytes(path.read_bytes()[::-1])
    assert "does not match its SHA-256" in backup(place, "verify", "words", code=ExitCode.FINDINGS)
    layout.mark_damaged(place / "runs" / "words" / "checkpoints" / "step_30", "by the test")
    done = prime_train("backup", "pull", "words", cwd=place)
    assert done.returncode == ExitCode.OUT_OF_REACH
    assert "the backup is not what was uploaded" in done.stderr


def test_what_is_not_there_is_named(place: Path) -> None:
    done = prime_train("backup", "push", "words", "--step", "11", cwd=place)
    assert done.returncode == ExitCode.USAGE
    assert "complete steps: 10, 20, 30" in done.stderr
    done = prime_train("backup", "pull", "words", cwd=place)
    assert "complete steps: none" in done.stderr
    (place / "bucket").rename(place / "gone")
    done = prime_train("backup", "status", "words", cwd=place)
    assert done.returncode == ExitCode.OUT_OF_REACH
    assert "the bucket cannot be read" in done.stderr


def test_a_run_that_only_the_bucket_has_is_pulled_with_the_defaults(place: Path) -> None:
    backup(place, "push", "words")
    other = place / "other"
    other.mkdir()
    done = prime_train("backup", "pull", "words", cwd=other)
    assert done.returncode == ExitCode.USAGE
    assert "no backup is configured" in done.stderr
    backup(other, "configure", "--provider", "local", "--bucket", str(place / "bucket"))
    backup(other, "pull", "words")
    assert layout.inspect(other / "runs" / "words" / "checkpoints" / "step_30", hashes=True).complete


def test_configure_writes_nothing_before_a_round_trip(place: Path) -> None:
    done = prime_train("backup", "configure", "--provider", "local", "--bucket", "/nowhere/at/all", cwd=place)
    assert done.returncode == ExitCode.OUT_OF_REACH
    assert not (place / "config").exists()
    done = prime_train("backup", "configure", "--provider", "ftp", "--bucket", "x", cwd=place)
    assert done.returncode == ExitCode.USAGE
    assert prime_train("backup", "configure", "--check", cwd=place).returncode == ExitCode.USAGE


def test_configure_keeps_the_whole_path_of_a_folder(place: Path) -> None:
    (place / "copies").mkdir()
    backup(place, "configure", "--provider", "local", "--bucket", "copies")
    (place / "elsewhere").mkdir()
    done = prime_train("backup", "configure", "--check", cwd=place / "elsewhere")
    assert (done.returncode, str(place / "copies") in done.stderr) == (0, True), done.stderr


def test_configure_names_the_value_that_is_wrong(place: Path) -> None:
    done = prime_train("backup", "configure", "--provider", "s4", "--bucket", "x", cwd=place)
    assert done.returncode == ExitCode.USAGE
    assert "provider = 's4'" in done.stderr
    assert "no provider and no bucket" in prime_train("backup", "configure", cwd=place).stderr


def test_configure_asks_on_a_terminal(place: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [PROGRAM, "backup", "configure"],
        cwd=place,
        env=clean_environment(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    os.write(ours, f"local\n{place / 'bucket'}\nteam\n50\n4\n".encode())
    _, errors = process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == ExitCode.OK, errors.decode()
    saved = (place / "config" / "prime-train" / "backup.toml").read_text().splitlines()[1:]
    assert set(saved) == {
        'provider = "local"',
        f'bucket = "{place / "bucket"}"',
        'prefix = "team"',
        "interval_steps = 50",
        "keep_last = 4",
    }
    assert list((place / "bucket").iterdir()) == []
    backup(place, "configure", "--check")


@pytest.fixture(scope="module")
def s3_address() -> Iterator[str]:
    pytest.importorskip("moto.server")
    pytest.importorskip("s3fs")
    with s3_server.serving() as address:
        yield address


def test_s3_by_the_command_line_and_no_secret_anywhere(place: Path, s3_address: str) -> None:
    """The address comes from the environment, as for every program that uses S3."""
    boto3 = pytest.importorskip("boto3")
    keys = s3_server.CREDENTIALS
    boto3.client(
        "s3",
        endpoint_url=s3_address,
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        region_name=keys["AWS_DEFAULT_REGION"],
    ).create_bucket(Bucket="command-line")
    write_run(place / "s3", Backup(provider="s3", bucket="command-line", prefix="a/b", max_upload_mb_per_s=50.0))
    variables = s3_server.CREDENTIALS | {"AWS_ENDPOINT_URL": s3_address}
    assert prime_train("backup", "push", "words", cwd=place / "s3", **variables).returncode == ExitCode.OK
    assert "30" in prime_train("backup", "status", "words", cwd=place / "s3", **variables).stdout
    done = prime_train(
        "backup", "status", "words", cwd=place / "s3", **(variables | {"AWS_ENDPOINT_URL": "http://x:1"})
    )
    assert done.returncode == ExitCode.OUT_OF_REACH
    for path in (place / "s3").rglob("*"):
        assert path.is_dir() or keys["AWS_SECRET_ACCESS_KEY"].encode() not in path.read_bytes()
    assert keys["AWS_SECRET_ACCESS_KEY"] not in done.stderr


CONFIG = """
[prime_train.backup]
provider = "local"
bucket = "{bucket}"
keep_last = 2
delete_after_upload = true
"""


def start_run(folder: Path, bucket: Path, *options: str) -> subprocess.CompletedProcess[str]:
    if not folder.exists():
        folder.mkdir()
        small.write(folder)
        (folder / "run.toml").write_text(small.CONFIG + CONFIG.format(bucket=bucket))
    return prime_train("run", "run.toml", "--no-validate", *options, cwd=folder, **fork_server.variables())


def test_a_run_goes_on_on_another_machine_and_its_disk_stays_small(place: Path) -> None:
    for last_step in (8, 12):  # at its end a run waits for its upload, so both steps are in the bucket
        ends_only = ("--set", "checkpoint.interval_steps=12")  # an upload leaves out what a newer step supersedes
        first = start_run(place / "first", place / "bucket", "--set", f"run.max_steps={last_step}", *ends_only)
        assert first.returncode == ExitCode.OK, first.stderr
    run_dir = RunDir(place / "first" / "runs" / "small")
    found = [record.event for record in read(run_dir.events)]
    assert 12 in [event.step for event in found if isinstance(event, CheckpointBackedUp) and not event.problem]
    assert any(isinstance(event, SpaceFreed) for event in found)
    assert [one.step for one in layout.scan(run_dir.checkpoints)] == [12]
    status = document(place / "first", "status", "small")
    assert [row["step"] for row in status["backups"]] == [12, 8]
    assert "backed up" in (run_dir.report).read_text()

    second = start_run(place / "second", place / "bucket", "--set", "run.max_steps=16", *ends_only)
    assert second.returncode == ExitCode.OK, second.stderr
    there = RunDir(place / "second" / "runs" / "small")
    assert [record.event.step for record in read(there.events) if isinstance(record.event, CheckpointRestored)] == [12]
    state = fold_events(there)
    assert state.attempt is not None
    assert state.attempt.resume_step == 12
    assert [row["step"] for row in document(place / "second", "status", "small")["backups"]] == [16, 12]

    # As if the supervisor had been killed before the last copy: the same command copies what the bucket has not.
    (newest,) = (place / "bucket" / "small").glob("step_16.*")
    shutil.rmtree(newest)
    for words in ("checkpoint of step 16 backed up", ""):
        again = start_run(place / "second", place / "bucket", "--set", "run.max_steps=16", *ends_only)
        assert again.returncode == ExitCode.OK, again.stderr
        assert words in again.stderr
        assert newest.is_dir()
    assert "backed up" not in again.stderr


def test_without_the_bucket_a_new_machine_does_not_start_over(place: Path) -> None:
    gone = place / "unmounted"
    first = start_run(place / "first", gone)
    assert first.returncode == ExitCode.OUT_OF_REACH
    assert "would start from the beginning" in first.stderr
    again = start_run(place / "first", gone, "--resume", "never", "--set", "prime_train.backup.flush_limit_s=60")
    assert again.returncode == ExitCode.OK, again.stderr
    found = [record.event for record in read(RunDir(place / "first" / "runs" / "small").events)]
    assert any(isinstance(event, BackupFlushBegun) for event in found)
    assert any(isinstance(event, CheckpointBackedUp) and event.problem for event in found)
    third = start_run(place / "first", gone, "--set", "run.max_steps=14")
    assert third.returncode == ExitCode.OK
    assert "the run continues from step 12 on this disk" in third.stderr
