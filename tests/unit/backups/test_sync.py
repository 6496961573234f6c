"""What is due, what is pruned, and which local checkpoints may go: pure plans, and whole rounds in a folder."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.backups import source as sources
from prime_train.backups import sync
from prime_train.backups.inventory import StoredBackup
from prime_train.backups.manifest import MARKER, PINNED
from prime_train.backups.source import BackupSource
from prime_train.checkpoints import in_use, layout, removal
from prime_train.core.errors import UserError
from tests.unit.backups import scene

NOW_S = 1e9


def stored(
    step: int, *, complete: bool = True, pinned: bool = False, saved_s: float = 0.0, id: str = ""
) -> StoredBackup:
    identity = id or f"{step:016x}"
    problem = "" if complete else "no marker"
    return StoredBackup(
        step, identity, f"run/step_{step}.{identity}", 1, saved_s or NOW_S, (MARKER,), problem, None, pinned
    )


def local(step: int, *, pinned: bool = False) -> BackupSource:
    return BackupSource(step, (("checkpoints", Path(f"/nowhere/step_{step}")),), 1, pinned)


def newest_first(*steps: int) -> list[BackupSource]:
    return [local(step) for step in sorted(steps, reverse=True)]


def steps(found: list[BackupSource]) -> list[int]:
    return [one.step for one in found]


def test_what_the_retention_would_keep_is_due_newest_first() -> None:
    assert steps(sync.list_due(newest_first(10, 20, 30, 40), [], 3, None)) == [40, 30, 20]
    assert steps(sync.list_due(newest_first(10, 20, 30, 40), [stored(40), stored(30)], 3, None)) == [20]
    assert steps(sync.list_due(newest_first(10, 20), [stored(20, complete=False)], 3, None)) == [20, 10]


def test_an_interval_leaves_steps_out() -> None:
    assert steps(sync.list_due(newest_first(10, 20, 30, 40, 50), [stored(10)], 9, 20)) == [50, 30]
    assert steps(sync.list_due(newest_first(10, 20, 30, 40), [], 9, 25)) == [40, 10]
    assert steps(sync.list_due(newest_first(11), [stored(10)], 9, 20)) == []


def test_what_would_be_pruned_at_once_is_not_pushed() -> None:
    assert steps(sync.list_due(newest_first(5), [stored(10), stored(20)], 2, None)) == []
    assert steps(sync.list_due([local(5, pinned=True)], [stored(10), stored(20)], 2, None)) == [5]


@given(st.sets(st.integers(1, 40)), st.sets(st.integers(1, 40)), st.integers(1, 5), st.integers(1, 10) | st.none())
def test_pushing_what_is_due_comes_to_an_end(
    here: set[int], there: set[int], keep_last: int, interval_steps: int | None
) -> None:
    """Rounds of push and prune reach a state in which nothing is due and nothing superseded."""
    backups = {step: stored(step) for step in there}
    for _ in range(200):
        listed = sorted(backups.values(), key=lambda one: -one.step)
        due = sync.list_due(newest_first(*here), listed, keep_last, interval_steps)
        if not due:
            break
        backups[due[0].step] = stored(due[0].step)
        listed = sorted(backups.values(), key=lambda one: -one.step)
        for one in sync.plan(listed, keep_last, None, NOW_S):
            del backups[one.stored.step]
    else:
        raise AssertionError("it does not end")
    if there or here:
        assert max(backups) >= max(there, default=0)


@given(st.sets(st.tuples(st.integers(1, 30), st.booleans(), st.booleans())), st.integers(1, 5))
def test_pruning_keeps_the_newest_complete_and_the_pinned(found: set[tuple[int, bool, bool]], keep_last: int) -> None:
    by_step = {step: stored(step, complete=complete, pinned=pinned) for step, complete, pinned in found}
    backups = sorted(by_step.values(), key=lambda one: -one.step)
    gone = {one.stored.step for one in sync.plan(backups, keep_last, None, NOW_S)}
    complete = [one.step for one in backups if one.complete]
    assert not gone & set(complete[:keep_last])
    assert not gone & {one.step for one in backups if one.pinned}


def test_a_step_that_was_saved_again_has_one_backup() -> None:
    old, new = stored(40, id="a" * 16, saved_s=NOW_S - 5), stored(40, id="b" * 16)
    (one,) = sync.plan([new, old], 3, None, NOW_S)
    assert (one.stored.id, one.reason) == ("a" * 16, "step 40 was saved again")


def test_an_unfinished_upload_of_another_machine_is_left_for_a_day() -> None:
    half = stored(50, complete=False)
    assert sync.plan([half, stored(40)], 3, None, NOW_S) == ()
    assert len(sync.plan([half, stored(40)], 3, None, NOW_S + sync.QUIET_S + 1)) == 1
    assert len(sync.plan([stored(60), half], 3, None, NOW_S)) == 1


def test_local_keep_is_never_below_one() -> None:
    found = sync.list_offloadable(newest_first(10, 20, 30), [stored(30), stored(20), stored(10)], 0)
    assert [one.step for one, _ in found] == [10, 20]
    assert sync.list_offloadable(newest_first(10, 20), [stored(10, complete=False)], 1) == []


def test_a_round_pushes_prunes_and_frees(tmp_path: Path) -> None:
    store = scene.local_store(tmp_path / "bucket", keep_last=2, delete_after_upload=True)
    root = tmp_path / "here"
    for step in (10, 20, 30):
        scene.write_step(root, step)
    upload = scene.upload(store, root)
    done = [(one.did, one.step) for one in sync.run_round(upload, None)]
    assert done == [("pushed", 30), ("pushed", 20), ("freed", 20)]
    scene.write_step(root, 40)
    done = [(one.did, one.step) for one in sync.run_round(upload, None)]
    assert done == [("pushed", 40), ("pruned", 20), ("freed", 30)]
    assert [one.step for one in scene.list_backups(store)] == [40, 30]
    assert list(sync.run_round(upload, None)) == []
    assert not list(Path(store.root).rglob("step_20*"))


def test_the_last_round_pushes_the_newest_at_any_interval(tmp_path: Path) -> None:
    store, root = scene.local_store(tmp_path / "bucket", interval_steps=100), tmp_path / "here"
    for step in (10, 20, 30):
        scene.write_step(root, step)
    upload = scene.upload(store, root)
    assert [one.step for one in sync.run_round(upload, None)] == [10]
    assert [one.step for one in sync.run_round(upload, None, is_final=True)] == [30]


def test_a_damaged_checkpoint_is_reported_and_the_others_are_pushed(tmp_path: Path) -> None:
    store, root = scene.local_store(tmp_path / "bucket"), tmp_path / "here"
    scene.write_step(root, 10)
    (scene.write_step(root, 20) / "model.distcp").write_bytes(bytes(200_000))
    results = list(sync.run_round(scene.upload(store, root), None))
    assert [(one.did, one.step) for one in results] == [("failed", 20), ("pushed", 10)]


def test_later_steps_in_the_bucket_are_reported(tmp_path: Path) -> None:
    store, root = scene.local_store(tmp_path / "bucket", keep_last=1), tmp_path / "here"
    scene.write_step(tmp_path / "before", 90)
    list(sync.run_round(scene.upload(store, tmp_path / "before"), None))
    scene.write_step(root, 10)
    (result,) = sync.run_round(scene.upload(store, root), None)
    assert "later steps (90)" in result.problem


def offload(tmp_path: Path) -> tuple[sync.FreedCheckpoint, Path]:
    """Free step 10, which was pushed before step 20 was saved."""
    store, root = scene.local_store(tmp_path / "bucket"), tmp_path / "here"
    upload = scene.upload(store, root)
    backups = scene.list_backups(store)
    ((source, found),) = sync.list_offloadable(sources.list_sources(upload.places), backups, 1)
    return sync.offload(store, upload.places, source, found, upload.hashes), source.paths[0]


@pytest.fixture
def pushed(tmp_path: Path) -> Path:
    store, root = scene.local_store(tmp_path / "bucket"), tmp_path / "here"
    folder = scene.write_step(root, 10)
    list(sync.run_round(scene.upload(store, root), None))
    scene.write_step(root, 20)
    return folder


def test_a_checkpoint_whose_backup_is_proved_is_deleted(pushed: Path, tmp_path: Path) -> None:
    freed, path = offload(tmp_path)
    assert freed.problem == ""
    assert path == pushed
    assert not pushed.exists()


def test_a_backup_that_is_damaged_frees_nothing(pushed: Path, tmp_path: Path) -> None:
    damaged = max((tmp_path / "bucket").rglob("parts/*"), key=lambda path: path.stat().st_size)
    damaged.write_bytes(damaged.read_bytes()[::-1])
    freed, _ = offload(tmp_path)
    assert "does not match its SHA-256" in freed.problem
    assert layout.inspect(pushed).complete


def test_a_backup_of_another_content_frees_nothing(pushed: Path, tmp_path: Path) -> None:
    (pushed / "model.distcp").write_bytes(b"saved again")
    layout.write_manifest(pushed, 10)
    freed, _ = offload(tmp_path)
    assert freed.problem == "its backup has another content"
    assert layout.inspect(pushed).complete


def test_a_checkpoint_that_is_used_is_not_deleted(pushed: Path, tmp_path: Path) -> None:
    with in_use.using(pushed):
        freed, _ = offload(tmp_path)
    assert "uses it" in freed.problem
    with open(pushed / "model.distcp", "rb"):
        assert layout.inspect(pushed).complete


def test_a_deletion_that_was_not_decided_is_undone(pushed: Path, tmp_path: Path) -> None:
    aside = pushed.with_name(f"{removal.ASIDE}step_10.1")
    pushed.rename(aside)
    sync.put_back(scene.places(tmp_path / "here"))
    assert layout.inspect(pushed).complete


def test_a_pin_goes_with_the_backup(tmp_path: Path) -> None:
    store, root = scene.local_store(tmp_path / "bucket", keep_last=1), tmp_path / "here"
    (scene.write_step(root, 10) / layout.PIN).touch()
    list(sync.run_round(scene.upload(store, root), None))
    scene.write_step(root, 20)
    list(sync.run_round(scene.upload(store, root), None))
    found = scene.list_backups(store)
    assert [(one.step, one.pinned) for one in found] == [(20, False), (10, True)]
    assert PINNED in found[1].objects


def test_one_process_at_a_time_backs_a_run_up(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with sync.hold(folder), pytest.raises(UserError, match="another process"), sync.hold(folder):
        pass
    with sync.hold(tmp_path / "backup"):
        pass


def test_what_others_put_into_the_bucket_is_no_backup(tmp_path: Path) -> None:
    store, root = scene.local_store(tmp_path / "bucket"), tmp_path / "here"
    scene.write_step(root, 10)
    list(sync.run_round(scene.upload(store, root), None))
    store.write(f"{scene.RUN}/notes.txt", b"by a person")
    store.write(f"{scene.RUN}/step_99.0123456789abcdef/{MARKER}", b"{}")
    store.write(f"{scene.RUN}/step_99.0123456789abcdef/manifest.json", b"[" * 100_000)
    found = scene.list_backups(store)
    assert [(one.step, one.complete) for one in found] == [(99, False), (10, True)]
    assert sync.plan(found, 1, None, time.time()) == ()
