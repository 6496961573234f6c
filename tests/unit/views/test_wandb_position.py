from __future__ import annotations

from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.events import AlarmRaised, Record
from prime_train.views.wandb_mirror import Mirrored, choose_run_id, load_position, save_position

ALARM = AlarmRaised(1, "gpu", "gpu_lost", "GPU 1", "restart", "hardware", "lost", "XID 79", "power cycle", "", 60)


def test_the_id_survives_a_change_of_machines(tmp_path: Path) -> None:
    task = {"SKYPILOT_TASK_ID": "sky-managed-2026-11-23-03-28-00-000000_nano_3-0"}
    first = choose_run_id(task, "nano")
    assert choose_run_id(task, "nano") == first
    assert choose_run_id(task, "other") != first
    assert choose_run_id({"SKYPILOT_TASK_ID": "another"}, "nano") != first
    assert choose_run_id(task | {"WANDB_RUN_ID": "k3x9"}, "nano") == "k3x9"
    assert choose_run_id(task | {"WANDB_RUN_ID": "../k3x9"}, "nano") == first
    assert choose_run_id({}, "nano") != choose_run_id({}, "nano")
    kept = Mirrored("kept", 5)
    save_position(RunDir(tmp_path), kept)
    assert load_position(RunDir(tmp_path), task) == kept


def test_how_far_it_came_is_kept(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)
    first = load_position(run_dir, {})
    record = Record(1.0, "supervisor", 7, ALARM)
    kept = first.with_records([record], 60)
    save_position(run_dir, kept)
    assert load_position(run_dir, {}) == kept
    assert kept.has(record)
    assert not kept.has(Record(1.0, "supervisor", 8, ALARM))
    assert not kept.has(Record(1.0, "trainer-002-rank0", 0, ALARM))
    (tmp_path / "wandb" / "mirror.json").write_text("{", encoding="utf-8")
    assert load_position(run_dir, {}).run_id != kept.run_id


def test_a_job_gives_the_run_its_id(tmp_path: Path) -> None:
    run_dir, given = RunDir(tmp_path), {"WANDB_RUN_ID": "h100-80gb"}
    assert load_position(run_dir, given).run_id == "h100-80gb"
    save_position(run_dir, Mirrored("kept"))
    assert load_position(run_dir, given).run_id == "kept"
