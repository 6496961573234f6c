"""`ckpt prune` of a run of prime-rl, and of folders that somebody uses: what is shown, what goes, what is told."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from prime_train import spec
from prime_train.checkpoints import in_use, layout, removal
from prime_train.config import detect
from prime_train.core.errors import ExitCode
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointDeleted, SpaceFreed, read
from prime_train.programs.prime_rl.run_directory import find_folder as folder_of
from prime_train.programs.prime_rl.settings import prepare_run
from prime_train.spec.answers import prime_rl_of, replace_parts
from prime_train.supervise.processes.lock import hold_run
from tests.unit.cli.commands import prime_train
from tests.unit.programs.prime_rl.test_layout import write, write_broadcast, write_checkpoint, write_rollouts
from tests.unit.programs.prime_rl.test_program import HEAD

LONG_AGO_S = 3600.0


def write_run(tmp_path: Path, keep_last: int | None = 2) -> tuple[RunDir, Path]:
    """A run of prime-rl that has ended, as the supervisor resolved it; its directory, and that of prime-rl."""
    reading = detect.read(HEAD, "rl.toml")
    assert reading.run is not None
    run = prepare_run(reading.run, "words", tmp_path)
    parts = prime_rl_of(run)
    assert parts.saving is not None
    run = replace_parts(run, saving=parts.saving._replace(keep_last=keep_last))
    run_dir = RunDir(tmp_path / "runs" / "words")
    run_dir.path.mkdir(parents=True)
    run_dir.resolved.write_text(spec.to_json(run))
    root = folder_of(run)
    for step in (10, 20, 30):
        write_checkpoint(root, "2026-08", step)
    write_checkpoint(root, "2026-08", 25, orchestrator=False)
    for step in (12, 20, 31, 32, 33):
        write_broadcast(root, "2026-08", step)
    for step in (29, 30, 31):
        write_rollouts(root, "2026-08", step)
    age(root)
    write_checkpoint(root, "2026-08", 40, trainer=False)
    return run_dir, root


def age(root: Path) -> None:
    then_s = time.time() - LONG_AGO_S
    for path in root.rglob("*"):
        os.utime(path, (then_s, then_s))


def reported(rows: Iterable[str]) -> list[tuple[str, ...]]:
    """kind, step, "keep" or "delete" of each row."""
    return [tuple(row.split()[i] for i in (0, 1, 4)) for row in rows]


def test_the_plan_shows_checkpoints_broadcasts_and_rollouts(tmp_path: Path) -> None:
    _, root = write_run(tmp_path)
    before = sorted(root.rglob("*"))
    shown = prime_train("ckpt", "prune", "words", "--dry-run", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert reported(shown.stdout.splitlines()[1:]) == [
        ("checkpoint", "40", "keep"),
        ("broadcast", "33", "keep"),
        ("broadcast", "32", "keep"),
        ("broadcast", "31", "delete"),
        ("rollouts", "31", "keep"),
        ("checkpoint", "30", "keep"),
        ("rollouts", "30", "keep"),
        ("rollouts", "29", "delete"),
        ("checkpoint", "25", "delete"),
        ("checkpoint", "20", "keep"),
        ("broadcast", "20", "keep"),
        ("broadcast", "12", "delete"),
        ("checkpoint", "10", "delete"),
    ]
    assert "a process may be writing it" in shown.stdout
    assert sorted(root.rglob("*")) == before


def test_what_goes_is_reported_in_events(tmp_path: Path) -> None:
    run_dir, root = write_run(tmp_path)
    done = json.loads(prime_train("ckpt", "prune", "words", "--keep-last", "1", "--json", cwd=tmp_path).stdout)
    gone = [
        ("checkpoint", 10),
        ("broadcast", 12),
        ("checkpoint", 20),
        ("checkpoint", 25),
        ("rollouts", 29),
        ("broadcast", 31),
    ]
    assert [(row["kind"], row["step"]) for row in done["deleted"]] == gone
    assert done["failed"] == []
    assert sorted(path.name for path in (root / "checkpoints").iterdir()) == ["step_30", "step_40"]
    assert sorted(path.name for path in (root / "broadcasts").iterdir()) == ["step_20", "step_32", "step_33"]
    events = [record.event for record in read(run_dir.events)]
    assert [event.step for event in events if isinstance(event, CheckpointDeleted)] == [10, 20, 25]
    assert [Path(event.path).parent.name for event in events if isinstance(event, SpaceFreed)] == [
        "broadcasts",
        "rollouts",
        "broadcasts",
    ]
    again = json.loads(prime_train("ckpt", "prune", "words", "--keep-last", "1", "--json", cwd=tmp_path).stdout)
    assert [(row["kind"], row["step"]) for row in again["deleted"]] == [("broadcast", 20)]  # its checkpoint is gone


def test_without_keep_last_no_whole_checkpoint_goes(tmp_path: Path) -> None:
    write_run(tmp_path, keep_last=None)
    shown = json.loads(prime_train("ckpt", "prune", "words", "--dry-run", "--json", cwd=tmp_path).stdout)
    assert [row["step"] for row in shown["deleted"] if row["kind"] == "checkpoint"] == [25]


def test_what_is_in_use_stays_and_is_reported(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / "small")
    run_dir.events.mkdir(parents=True)
    for step in (10, 20, 30, 40):
        write(run_dir.checkpoint(step) / "0.distcp")
        write(run_dir.checkpoint(step) / ".metadata")
        layout.write_manifest(run_dir.checkpoint(step), step)
    undecided = run_dir.checkpoints / f"{removal.ASIDE}step_5.1"
    write(undecided / layout.MANIFEST)
    with in_use.using(run_dir.checkpoint(10)), open(run_dir.checkpoint(20) / "0.distcp", "rb"):
        shown = prime_train("ckpt", "prune", "small", "--keep-last", "1", cwd=tmp_path)
    assert shown.returncode == ExitCode.FINDINGS
    rows = shown.stdout.splitlines()[1:]
    assert [(row.split()[0], row.split()[3]) for row in rows] == [
        ("40", "keep"),
        ("30", "delete"),
        ("20", "keep"),
        ("10", "keep"),
    ]
    assert f"process {os.getpid()} has 0.distcp open" in rows[2]
    assert f"process {os.getpid()} on" in rows[3]
    assert sorted(path.name for path in run_dir.checkpoints.iterdir()) == ["step_10", "step_20", "step_40", "step_5"]


def test_of_a_run_that_is_alive_it_is_only_shown_what_would_go(tmp_path: Path) -> None:
    run_dir, root = write_run(tmp_path)
    before = sorted(root.rglob("*"))
    with hold_run(run_dir):
        shown = prime_train("ckpt", "prune", "words", "--dry-run", cwd=tmp_path)
        refused = prime_train("ckpt", "prune", "words", cwd=tmp_path)
    assert (shown.returncode, refused.returncode) == (ExitCode.OK, ExitCode.USAGE)
    assert "WOULD" in shown.stdout
    assert f"held by process {os.getpid()}" in refused.stderr
    assert sorted(root.rglob("*")) == before
