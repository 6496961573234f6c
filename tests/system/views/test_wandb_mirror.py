"""A real W&B, offline: steps that never fall over restarts, counts, alerts, no secret, one id."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.core.installation import install_command
from prime_train.core.rundir import RunDir
from prime_train.events import (
    AlarmRaised,
    AlertSent,
    AttemptEnded,
    CheckpointDeleted,
    Evaluated,
    LaunchAsked,
    RunClosed,
    RunOpened,
    SpaceFreed,
    TasksEvaluated,
)
from prime_train.supervise.processes.beside import hold_alone
from prime_train.views import wandb_mirror, wandb_rows
from prime_train.views.wandb_mirror import choose_run_id, load_position
from tests.fakes.wandb_server import WandbServer
from tests.planted import KINDS, draw, in_text
from tests.system.views import wandb_files
from tests.unit.views.written_runs import (
    DEATH,
    END,
    FIRST_ATTEMPT,
    GONE,
    SECOND_ATTEMPT,
    Timeline,
    write_metrics,
    write_run,
)

ALARM = AlarmRaised(1, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "lost", "XID 79", "power cycle", "", 60)
FAILED = AttemptEnded(1, -9, "failed", "signal", "killed", "from outside", "", "", 50)


def _lines(*steps: int) -> list[bytes]:
    return [json.dumps({"step": step, "loss": 5.0 - step / 100, "mfu": None}).encode() for step in steps]


# --- what is logged ------------------------------------------------------------------------------------


def test_a_step_is_logged_once_and_steps_never_fall() -> None:
    first = wandb_rows.merge(wandb_rows.of_metrics(_lines(1, 2, 3, 4, 5, 6)), [], 0)
    again = wandb_rows.merge(
        wandb_rows.of_metrics(_lines(5, 6, 7)), [wandb_rows.WandbRow(6, {"run/restarts": 1})], first[-1].step
    )
    assert [row.step for row in (*first, *again)] == [1, 2, 3, 4, 5, 6, 6, 7]
    assert again[0].values == {"run/restarts": 1}


def test_a_row_ahead_of_the_metrics_waits_for_no_step() -> None:
    (row,) = wandb_rows.merge(wandb_rows.of_metrics(_lines(3)), [wandb_rows.WandbRow(9, {"eval/loss": 1.0})], 0)
    assert row == wandb_rows.WandbRow(3, {"train/loss": 4.97, "eval/loss": 1.0})
    assert wandb_rows.merge([], [wandb_rows.WandbRow(9, {"eval/loss": 1.0})], 4) == [
        wandb_rows.WandbRow(4, {"eval/loss": 1.0})
    ]


def test_what_is_no_line_of_metrics_is_left_out() -> None:
    lines = [b"{", b"[]", b'{"loss": 1}', b'{"step": "x"}', b'{"step": 3, "loss": 2.5, "note": "x"}', b"\xff"]
    assert wandb_rows.of_metrics(lines) == [wandb_rows.WandbRow(3, {"train/loss": 2.5})]


def test_events_are_counted_and_failures_sent_as_alerts() -> None:
    counts = wandb_rows.Counts()
    results = []
    for event in (
        *(LaunchAsked(1, 0), ALARM, FAILED, LaunchAsked(2, 50), ALARM),
        *(CheckpointDeleted(2, 40, "superseded"), SpaceFreed(2, "/x", 2**30, "broadcast")),
        *(SpaceFreed(2, "/y", 2**30, "broadcast", failed="busy"), Evaluated(2, 50, 4.5, 100)),
        RunClosed("failed", 6, "three in a row"),
        *(AlertSent("webhook", "gpu"), AlertSent("webhook", "gpu", failed="timed out")),
    ):
        counts, row, note = wandb_rows.of_event(event, counts, 60)
        results.append((row, note))
    assert counts == wandb_rows.Counts(1, 1, 2, (("gpu/gpu_lost", 2),), 2, 1.0, (("signal", 1),), 1, 1)
    assert results[0] == (None, None)
    assert results[2][0] == wandb_rows.WandbRow(60, {"run/failures": 1, "failures/signal": 1})
    assert results[-1][0] == wandb_rows.WandbRow(60, {"alerts/sent": 1, "alerts/failed": 1})
    assert results[4][0] == wandb_rows.WandbRow(60, {"alarms/all": 2, "alarms/gpu/gpu_lost": 2})
    assert results[6][0] == wandb_rows.WandbRow(60, {"cleanup/deleted": 2, "cleanup/freed_gib": 1.0})
    assert results[7] == (None, None)
    assert results[8][0] == wandb_rows.WandbRow(50, {"eval/loss": 4.5, "eval/tokens": 100, "eval/step": 50})
    notes = [note for _, note in results if note]
    assert [note.level for note in notes] == ["ERROR", "ERROR", "ERROR", "ERROR"]
    assert "fix: power cycle" in notes[0].text
    assert wandb_rows.of_event(ALARM, counts, 1)[2] is not None


def test_a_resume_from_a_checkpoint_of_another_machine_is_a_restart() -> None:
    assert wandb_rows.of_event(LaunchAsked(1, 0), wandb_rows.Counts(), 0)[1] is None
    found = wandb_rows.of_event(LaunchAsked(1, 50), wandb_rows.Counts(restarts=3), 50)[1]
    assert found == wandb_rows.WandbRow(50, {"run/restarts": 4, "run/resume_step": 50})


def test_the_totals_of_an_earlier_machine_go_on() -> None:
    counts = wandb_rows.Counts(1, 2, 3, (("gpu/gpu_lost", 2), ("host/x", 1)), 5, 1.5, (("signal", 2),), 7, 1)
    summary: dict[str, object] = {"train/loss": 1.0, "run/cause": "killed", "_step": 50}
    for field, name in wandb_rows._TOTALS.items():
        summary[name] = getattr(counts, field)
    summary |= {f"alarms/{name}": count for name, count in counts.alarms_by_name}
    summary |= {f"failures/{name}": count for name, count in counts.failures_by_class}
    assert wandb_rows.read_counts(summary) == counts
    assert wandb_rows.read_counts({}) == wandb_rows.Counts()


def test_the_summary_has_the_latest_cause_and_the_end() -> None:
    assert wandb_rows.describe(FAILED) == {"run/cause_class": "signal", "run/cause_id": "", "run/cause": "killed"}
    assert wandb_rows.describe(RunClosed("stopped", 75, "SIGTERM")) == {"run/state": "stopped", "run/reason": "SIGTERM"}
    assert wandb_rows.describe(RunOpened("a", 1, 10, "0"))["run/exit_code"] is None
    assert wandb_rows.describe(ALARM) == {}
    assert wandb_rows.describe_end(75) == {"run/exit_code": 75}
    assert wandb_rows.describe_end(255) == {"run/exit_code": 255, "run/state": "died"}


def test_rewards_on_held_out_tasks_are_rows_of_their_environment() -> None:
    event = TasksEvaluated(1, 40, "sort-digits", 0.75, 62, 2, 5.5)
    values = {"reward": 0.75, "failed": 2, "answer_tokens": 5.5}
    expected = wandb_rows.WandbRow(40, {f"eval/sort-digits/{name}": value for name, value in values.items()})
    assert wandb_rows.of_event(event, wandb_rows.Counts(), 60) == (wandb_rows.Counts(), expected, None)


def test_no_secret_of_the_config_goes_out() -> None:
    text = json.dumps({"run": {"name": "x"}, "env": {"A": "hf_secretsecret"}, "list": ["tok-1234 hf_secretsecret"]})
    found = json.dumps(wandb_rows.config(text, ("tok-1234", "hf_secretsecret")))
    assert "secret" not in found
    assert "tok-1234" not in found
    assert wandb_rows.config("{", ()) == {}


# --- the process ---------------------------------------------------------------------------------------


_CHANCE = random.Random(13)
PLANTED = [draw(_CHANCE, kind) for kind in KINDS]
RESOLVED = {
    "run": {"name": "small"},
    "prime_train": {"wandb": {"project": "tests", "mode": "offline"}},
    "note": "tok-very-secret",
    "notes": [text for _, text in PLANTED],
}


def _write_run_dir(path: Path, timeline: Timeline, steps: int) -> RunDir:
    """Writes the run directory up to some point of the timeline."""
    run_dir = RunDir(path)
    shutil.rmtree(run_dir.events, ignore_errors=True)
    write_run(path, timeline)
    write_metrics(run_dir, steps)
    run_dir.resolved.write_text(json.dumps(RESOLVED), encoding="utf-8")
    return run_dir


def _run(run_dir: RunDir, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    return subprocess.run(
        [sys.executable, "-m", wandb_mirror.__name__, str(run_dir.path), *more],
        env=environment | {"WANDB_SILENT": "true", "MY_TOKEN": "tok-very-secret"} | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_run_and_its_restart_by_another_supervisor_are_one_run_there(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    reason = "\n".join(("three in a row", *(text for _, text in PLANTED)))
    failed = (12.5, "supervisor", RunClosed("failed", 6, reason))
    run_dir = _write_run_dir(tmp_path, (*FIRST_ATTEMPT, *DEATH, failed), 60)
    assert _run(run_dir).returncode == 0
    first = load_position(run_dir, {})
    assert first.last_step == 60
    opened = (12.6, "supervisor", RunOpened("small", GONE, 100, "0.1.0"))
    run_dir = _write_run_dir(tmp_path, (*FIRST_ATTEMPT, *DEATH, failed, opened, *SECOND_ATTEMPT, *END), 100)
    done = _run(run_dir)
    assert done.returncode == 0, done.stderr
    second = load_position(run_dir, {})
    assert (second.run_id, second.last_step) == (first.run_id, 100)
    history = wandb_files.history(tmp_path)
    steps = [row["_step"] for row in history]
    assert steps == sorted(steps)
    assert [row["_step"] for row in history if "train/loss" in row] == list(range(1, 101))
    assert next(row for row in history if row["_step"] == 100)["eval/loss"] == 4.625
    assert [row["run/restarts"] for row in history if "run/restarts" in row] == [1]
    assert [row["run/failures"] for row in history if "run/failures" in row] == [1]
    kinds = [record.WhichOneof("record_type") for record in wandb_files.records(tmp_path)]
    assert kinds.count("alert") == 3
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "wandb" in path.parts)
    assert b"tok-very-secret" not in everything
    assert [secret for secret, _ in PLANTED if in_text(everything.decode("latin-1"), secret)] == []


def test_a_job_that_is_recovered_on_another_machine_is_one_run_there(tmp_path: Path) -> None:
    """The first machine is gone at step 60; the second one has the checkpoint of step 50 and nothing else."""
    pytest.importorskip("wandb")
    task = {"SKYPILOT_TASK_ID": "sky-managed-2026-11-23-03-28-00-000000_nano_3-0", "HOME": str(tmp_path)}
    opened = (0.0, "supervisor", RunOpened("small", GONE, 100, "0.1.0"))
    stopped = (12.5, "supervisor", RunClosed("stopped", 75, "AWS takes this machine away"))
    with WandbServer().serving() as server:
        first = _write_run_dir(tmp_path / "first" / "small", (*FIRST_ATTEMPT, *DEATH, stopped), 60)
        done = _run(first, **server.variables, **task)
        assert done.returncode == 0, done.stderr
        second = RunDir(tmp_path / "second" / "small")
        events = ((0.1, "supervisor", LaunchAsked(1, 50)), (9.0, "supervisor", RunClosed("finished", 0, "")))
        write_run(second.path, (opened, *events))
        lines = [json.dumps({"step": step, "loss": 2.0}) + "\n" for step in range(51, 101)]
        second.metrics.write_text("".join(lines), encoding="utf-8")
        second.resolved.write_text(json.dumps(RESOLVED), encoding="utf-8")
        done = _run(second, **server.variables, **task)
        assert done.returncode == 0, done.stderr
        ((run_id, sent),) = server.store.runs.items()
    assert run_id == choose_run_id(task, "small")
    assert [row["_step"] for row in sent.history if "train/loss" in row] == list(range(1, 101))
    assert [row["run/restarts"] for row in sent.history if "run/restarts" in row] == [1]
    assert (sent.summary["run/failures"], sent.summary["run/cause_class"]) == (1, "signal")
    assert (sent.summary["run/state"], sent.summary["run/exit_code"]) == ("finished", 0)
    assert sent.exit_codes == [75, 0]


def test_without_a_login_it_is_kept_for_later(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir = _write_run_dir(tmp_path, (*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT, *END), 100)
    done = _run(run_dir, WANDB_MODE="online", WANDB_BASE_URL="http://127.0.0.1:9", HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "W&B (online)" in done.stderr
    assert len(wandb_files.history(tmp_path)) == 100


def test_it_goes_on_by_itself(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    run_dir = _write_run_dir(tmp_path, (*FIRST_ATTEMPT, *DEATH, *SECOND_ATTEMPT, *END), 100)
    wandb_mirror.start(run_dir)
    give_up_s = time.monotonic() + 60
    while load_position(run_dir, {}).last_step < 100:
        assert time.monotonic() < give_up_s, (run_dir.wandb / "mirror.log").read_text(encoding="utf-8")
        time.sleep(0.1)
    with hold_alone(run_dir.wandb / "mirror.lock", 150.0) as is_alone:  # the mirror has ended
        assert is_alone


def test_without_the_package_the_error_has_the_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb_mirror, "find_spec", lambda _name: None)
    with pytest.raises(UserError) as raised:
        wandb_mirror.start(RunDir(tmp_path))
    assert install_command("wandb") in raised.value.fix
    assert not (tmp_path / "wandb").exists()
