"""Push and pull: what is uploaded, what is skipped, what is repaired, what is refused, and that a pull verifies."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.backups import inventory, pull, push, sync
from prime_train.backups import source as sources
from prime_train.backups.manifest import MANIFEST, MARKER
from prime_train.backups.push import Limiter
from prime_train.backups.settings import PROVIDERS
from prime_train.backups.source import ChangedError
from prime_train.backups.store import Store
from prime_train.checkpoints import in_use, layout, step_folders
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.core.errors import UserError
from tests.unit.backups import scene
from tests.unit.backups.s3_server import set_faults
from tests.unit.checkpoints.packing.test_planes import numbers


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setitem(PROVIDERS, "local", PROVIDERS["local"]._replace(part_bytes=64 * 1024))
    return scene.local_store(tmp_path / "bucket")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    scene.write_step(tmp_path / "here", 40)
    return tmp_path / "here"


def push_step(store: Store, root: Path, step: int = 40) -> push.Pushed:
    upload = scene.upload(store, root)
    return push.push(upload, next(one for one in sources.list_sources(upload.places) if one.step == step))


def only(store: Store) -> inventory.StoredBackup:
    (found,) = scene.list_backups(store)
    return found


def test_a_pushed_checkpoint_comes_back_byte_for_byte(store: Store, root: Path, tmp_path: Path) -> None:
    pushed = push_step(store, root)
    assert (pushed.step, pushed.already) == (40, False)
    stored = only(store)
    assert stored.complete
    assert len([name for name in stored.objects if name.startswith("parts/")]) > 3
    pulled = pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))
    assert pulled is not None
    assert scene.content(pulled.folders[0]) == scene.content(root / "checkpoints" / "step_40")
    assert layout.inspect(pulled.folders[0], hashes=True).complete
    assert sorted(path.name for path in pulled.folders[0].parent.iterdir()) == ["step_40"]


def test_prime_rl_checkpoints_come_back_with_all_their_parts(store: Store, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    scene.write_prime_rl_step(here, 7)
    upload = scene.upload(store, here, scene.prime_rl_places(here))
    (source,) = sources.list_sources(upload.places)
    push.push(upload, source)
    pulled = pull.restore_newest(store, scene.RUN, scene.prime_rl_places(there))
    assert pulled is not None
    (here / "backup" / "hashes.json").unlink()
    assert scene.content(there) == scene.content(here)
    places = scene.prime_rl_places(there)
    assert [one.complete for one in step_folders.checkpoints(places.checkpoints, places.layout)] == [True]
    assert push.push(scene.upload(store, there, places), sources.list_sources(places)[0]).already


def test_weights_that_are_still_being_written_hold_a_prime_rl_checkpoint_back(tmp_path: Path) -> None:
    scene.write_prime_rl_step(tmp_path, 7)
    (tmp_path / "weights" / "step_7" / "STABLE").unlink()
    assert sources.list_sources(scene.prime_rl_places(tmp_path)) == []


def test_only_complete_checkpoints_are_pushed(store: Store, root: Path) -> None:
    source = sources.list_sources(scene.places(root))[0]
    (root / "checkpoints" / "step_40" / layout.MANIFEST).unlink()
    assert sources.list_sources(scene.places(root)) == []
    with pytest.raises(ChangedError, match="did not finish"):
        push.push(scene.upload(store, root), source)
    assert scene.list_backups(store) == []


def test_a_checkpoint_that_is_damaged_on_the_disk_does_not_become_a_backup(store: Store, root: Path) -> None:
    path = root / "checkpoints" / "step_40" / "model.distcp"
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(ChangedError, match="does not match its SHA-256"):
        push_step(store, root)
    assert not only(store).complete


def test_a_link_in_a_checkpoint_is_refused(store: Store, root: Path) -> None:
    (root / "checkpoints" / "step_40" / "link").symlink_to("/etc/passwd")
    with pytest.raises(ChangedError, match="no plain file"):
        push_step(store, root)


def test_a_second_push_sends_nothing(store: Store, root: Path) -> None:
    push_step(store, root)
    again = push_step(store, root)
    assert (again.already, again.sent_bytes) == (True, 0)


def test_a_push_continues_with_what_is_there(store: Store, root: Path) -> None:
    first = push_step(store, root)
    stored = only(store)
    lost = next(name for name in stored.objects if name.startswith("parts/"))
    store.delete([f"{stored.folder}/{lost}"])
    assert "is missing" in only(store).problem
    again = push_step(store, root)
    assert 0 < again.sent_bytes < first.sent_bytes
    assert only(store).complete


@pytest.mark.parametrize("lost", [MARKER, MANIFEST])
def test_without_marker_or_manifest_a_backup_is_not_complete_and_is_repaired(
    store: Store, root: Path, lost: str
) -> None:
    push_step(store, root)
    store.delete([f"{only(store).folder}/{lost}"])
    assert not only(store).complete
    assert pull.restore_newest(store, scene.RUN, scene.places(root.parent / "there")) is None
    assert push_step(store, root).sent_bytes == 0
    assert only(store).complete


def test_a_part_with_another_size_makes_a_backup_incomplete(store: Store, root: Path) -> None:
    push_step(store, root)
    stored = only(store)
    name = next(name for name in stored.objects if name.startswith("parts/"))
    store.write(f"{stored.folder}/{name}", b"short")
    assert "bytes" in only(store).problem
    push_step(store, root)
    assert only(store).complete
    assert sync.verify(store, only(store)) == ""


def test_a_damaged_object_is_found_and_the_backup_before_is_taken(store: Store, root: Path, tmp_path: Path) -> None:
    push_step(store, root)
    scene.write_step(root, 50)
    push_step(store, root, 50)
    newest = scene.list_backups(store)[0]
    name = max(newest.manifest.objects, key=newest.manifest.objects.__getitem__) if newest.manifest else ""
    path = Path(store.root, newest.folder, name)
    path.write_bytes(path.read_bytes()[::-1])
    assert "does not match its SHA-256" in sync.verify(store, newest)
    places = scene.places(tmp_path / "there")
    with pytest.raises(pull.DamagedBackupError):
        pull.pull(store, newest, places)
    assert not (tmp_path / "there" / "checkpoints" / "step_50").exists()
    pulled = pull.restore_newest(store, scene.RUN, places)
    assert pulled is not None
    assert pulled.step == 40


def test_a_run_whose_backups_are_all_damaged_does_not_start_over(store: Store, root: Path, tmp_path: Path) -> None:
    push_step(store, root)
    for path in Path(store.root).rglob("parts/*"):
        path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(pull.DamagedBackupError):
        pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))
    scene.write_step(tmp_path / "there", 30)
    assert pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there")) is None


def test_a_pull_continues_and_corrects_what_is_staged(store: Store, root: Path, tmp_path: Path) -> None:
    push_step(store, root)
    stored, places = only(store), scene.places(tmp_path / "there")
    staged = tmp_path / "there" / "checkpoints" / f"{pull.STAGING}step_40.{stored.id}" / "step_40"
    staged.mkdir(parents=True)
    whole = (root / "checkpoints" / "step_40" / "model.distcp").read_bytes()
    (staged / "model.distcp").write_bytes(whole[:70_000] + b"x" * 200_000)
    (staged / "stranger").write_bytes(b"of nobody")
    (staged / "link").symlink_to("/etc/passwd")
    counted: list[int] = []
    pulled = pull.pull(store, stored, places, counted.append)
    assert scene.content(pulled.folders[0]) == scene.content(root / "checkpoints" / "step_40")
    assert sum(counted) == pulled.size_bytes
    assert not staged.exists()


@pytest.mark.parametrize("below", ["", "step_40", "step_40/rank"])
def test_no_link_in_the_staging_folder_is_followed(store: Store, root: Path, tmp_path: Path, below: str) -> None:
    push_step(store, root)
    stored, places, victim = only(store), scene.places(tmp_path / "there"), tmp_path / "victim"
    (victim / "step_40").mkdir(parents=True)
    (victim / "model.distcp").write_bytes(b"kept")
    linked = tmp_path / "there" / "checkpoints" / f"{pull.STAGING}step_40.{stored.id}" / below
    linked.parent.mkdir(parents=True)
    linked.symlink_to(victim)
    pulled = pull.pull(store, stored, places)
    assert scene.content(pulled.folders[0]) == scene.content(root / "checkpoints" / "step_40")
    assert [path.relative_to(victim).as_posix() for path in sorted(victim.rglob("*"))] == ["model.distcp", "step_40"]
    assert (victim / "model.distcp").read_bytes() == b"kept"


def test_an_incomplete_checkpoint_is_set_aside_and_a_complete_one_stays(
    store: Store, root: Path, tmp_path: Path
) -> None:
    push_step(store, root)
    there = tmp_path / "there"
    half = there / "checkpoints" / "step_40"
    half.mkdir(parents=True)
    (half / "half").write_bytes(b"of a save")
    pulled = pull.restore_newest(store, scene.RUN, scene.places(there))
    assert pulled is not None
    assert [path.name for path in pulled.set_aside] == ["step_40.set_aside.1"]
    assert pull.restore_newest(store, scene.RUN, scene.places(there)) is None


def test_nothing_is_restored_where_the_disk_is_as_new(store: Store, root: Path) -> None:
    push_step(store, root)
    scene.write_step(root, 50)
    assert pull.restore_newest(store, scene.RUN, scene.places(root)) is None


def test_a_backup_for_another_layout_is_refused(store: Store, tmp_path: Path) -> None:
    scene.write_prime_rl_step(tmp_path / "here", 7)
    places = scene.prime_rl_places(tmp_path / "here")
    push.push(scene.upload(store, tmp_path / "here", places), sources.list_sources(places)[0])
    with pytest.raises(UserError, match="has files for the folder"):
        pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))


def test_copies_are_packed_on_request(store: Store, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("backports.zstd")
    folder = root / "checkpoints" / "step_50"
    folder.mkdir()
    (folder / "model.distcp").write_bytes(numbers("f", 40_000))
    (folder / ".metadata").write_bytes(b"")
    layout.write_manifest(folder, 50)
    packed = replace(store, backup=replace(store.backup, compress=True))
    pushed = push_step(packed, root, 50)
    assert pushed.stored_bytes < pushed.size_bytes
    pulled = pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))
    assert pulled is not None
    assert scene.content(pulled.folders[0]) == scene.content(folder)


def test_packing_on_the_disk_does_not_change_the_identity(store: Store, root: Path, tmp_path: Path) -> None:
    pytest.importorskip("backports.zstd")
    folder = root / "checkpoints" / "step_50"
    folder.mkdir()
    (folder / "model.distcp").write_bytes(numbers("f", 40_000))
    (folder / ".metadata").write_bytes(b"")
    layout.write_manifest(folder, 50)
    push_step(store, root, 50)
    archive.compress(folder)
    assert packing_plan.is_packed(folder)
    assert push_step(store, root, 50).already
    store.delete([f"{only(store).folder}/{MARKER}"])
    push_step(store, root, 50)  # as it is on the disk: packed
    pulled = pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))
    assert pulled is not None
    assert layout.inspect(pulled.folders[0], hashes=True).complete
    archive.restore(pulled.folders[0])
    assert (pulled.folders[0] / "model.distcp").read_bytes() == numbers("f", 40_000)


@given(st.binary(max_size=5000))
def test_unpacking_reverses_packing(content: bytes) -> None:
    pytest.importorskip("backports.zstd")
    assert push.unpack(push.pack(content), len(content)) == content


@given(st.binary(max_size=300), st.integers(0, 400))
def test_unpacking_anything_else_is_a_value_error(stored: bytes, size_bytes: int) -> None:
    pytest.importorskip("backports.zstd")
    with contextlib.suppress(ValueError):
        assert len(push.unpack(stored, size_bytes)) == size_bytes


def test_a_checkpoint_in_use_is_left_alone_and_the_mark_of_a_dead_process_is_not(store: Store, root: Path) -> None:
    folder = root / "checkpoints" / "step_40"
    with in_use.using(folder), pytest.raises(ChangedError, match="uses it"):
        push_step(store, root)
    (folder / f"{in_use.MARK}.1").write_text("1:1")
    push_step(store, root)
    assert not list(folder.glob(f"{in_use.MARK}*"))


def test_a_checkpoint_that_vanishes_is_no_backup(store: Store, root: Path) -> None:
    upload = scene.upload(store, root)
    (source,) = sources.list_sources(upload.places)
    shutil.rmtree(source.paths[0])
    with pytest.raises(ChangedError, match="deleted"):
        push.push(upload, source)


def test_without_room_nothing_is_fetched(
    store: Store, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push_step(store, root)
    monkeypatch.setattr(pull, "_SPARE_BYTES", 2**60)
    with pytest.raises(UserError, match="are free"):
        pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))


def test_the_limit_spreads_the_bytes_over_time() -> None:
    now_s, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now_s[0] += seconds

    limiter = Limiter(1000.0, clock=lambda: now_s[0], sleep=sleep)
    for _ in range(5):
        limiter.take(500)
    assert slept == [0.5] * 4
    now_s[0] += 10
    limiter.take(500)
    assert len(slept) == 4


def test_with_a_limit_parts_are_about_a_second_long(tmp_path: Path) -> None:
    root = tmp_path / "here"
    assert scene.upload(scene.local_store(tmp_path / "b", max_upload_mb_per_s=5.0), root).part_bytes == 5_000_000
    assert scene.upload(scene.local_store(tmp_path / "b", max_upload_mb_per_s=0.1), root).part_bytes == 2**20
    assert scene.upload(scene.local_store(tmp_path / "b"), root).part_bytes == 64 * 2**20


def test_push_and_pull_work_on_a_server_that_fails_30_percent_of_calls(
    s3: Store, s3_address: str, root: Path, tmp_path: Path
) -> None:
    set_faults(s3_address, 0.3, seed=9)
    push_step(s3, root)
    assert only(s3).complete
    pulled = pull.restore_newest(s3, scene.RUN, scene.places(tmp_path / "there"))
    assert pulled is not None
    assert scene.content(pulled.folders[0]) == scene.content(root / "checkpoints" / "step_40")
