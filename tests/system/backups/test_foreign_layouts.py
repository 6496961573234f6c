"""Checkpoints of other trainers come back from a bucket byte for byte, under their own names, and whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prime_train.backups import inventory, pull, push, sync
from prime_train.backups import source as sources
from prime_train.backups.manifest import Manifest
from prime_train.backups.push import Upload
from prime_train.backups.store import Store
from prime_train.checkpoints import step_folders
from prime_train.checkpoints.step_folders import StepPlaces
from tests.unit.backups import scene
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.test_layouts import find_layout
from tests.unit.checkpoints.written_saves import EARLIER, SAVES, STEP


def places_in(folder: Path, name: str) -> StepPlaces:
    whole = SAVES[name](STEP)
    return StepPlaces(folder / "runs" / "a", (folder / "out",), find_layout(whole.layout, whole.ranks))


def written(folder: Path, name: str) -> StepPlaces:
    for step in (EARLIER, STEP):
        saves.write_whole(folder / "out", SAVES[name](step))
    (folder / "out" / "notes.txt").write_text("not a checkpoint")
    return places_in(folder, name)


def upload_of(store: Store, places: StepPlaces) -> Upload:
    return scene.upload(store, places.root, places)


def complete(places: StepPlaces) -> set[int]:
    return {one.step for one in step_folders.checkpoints(places.checkpoints, places.layout) if one.complete}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return scene.local_store(tmp_path / "bucket")


@pytest.mark.parametrize("name", sorted(SAVES))
def test_a_checkpoint_comes_back_under_its_own_names(name: str, store: Store, tmp_path: Path) -> None:
    here = written(tmp_path / "here", name)
    assert STEP in complete(here)
    upload = upload_of(store, here)
    newest = sources.list_sources(here)[0]
    assert newest.step == STEP
    pushed = push.push(upload, newest)
    assert pushed.size_bytes == sum(len(content) for content in content_of(newest).values())
    assert pushed.size_bytes > 0
    there = places_in(tmp_path / "there", name)
    pulled = pull.restore_newest(store, scene.RUN, there)
    assert pulled is not None
    assert complete(there) == {STEP}
    restored = next(one for one in sources.list_sources(there) if one.step == STEP)
    assert content_of(restored) == content_of(newest)
    assert push.push(upload_of(store, there), restored).already
    left = [path.name for path in (tmp_path / "there" / "out").iterdir()]
    assert not any(one.startswith(".") or one == "notes.txt" for one in left)


def content_of(source: sources.BackupSource) -> dict[tuple[str, str], bytes]:
    return {key: source.locate(*key).read_bytes() for key in sources.list_files(source)}


@pytest.mark.parametrize("name", ["hf", "lightning", "nanochat", "openrlhf, with rewards"])
def test_what_is_broken_on_the_disk_is_set_aside_and_the_tracker_follows(
    name: str, store: Store, tmp_path: Path
) -> None:
    places = written(tmp_path / "here", name)
    newest = sources.list_sources(places)[0]
    push.push(upload_of(store, places), newest)
    first = min(sources.list_files(newest))
    newest.locate(*first).write_bytes(b"")
    assert complete(places) == {EARLIER}
    assert pull.restore_newest(store, scene.RUN, places) is not None
    assert complete(places) == {EARLIER, STEP}
    assert any((tmp_path / "here" / "out").rglob("incomplete-0/*"))


def test_a_checkpoint_of_one_file_is_freed_only_when_its_backup_has_it(store: Store, tmp_path: Path) -> None:
    places = written(tmp_path / "here", "lightning")
    upload = upload_of(store, places)
    local = sources.list_sources(places)
    for source in local:
        push.push(upload, source)
    backups = inventory.list_backups(store, scene.RUN, places)
    assert [one.complete for one in backups] == [True, True]
    ((source, stored),) = sync.list_offloadable(local, backups, 1)
    content = source.paths[0].read_bytes()
    source.paths[0].write_bytes(content + b"more")
    assert sync.offload(store, places, source, stored, upload.hashes).problem
    assert source.paths[0].exists()
    source.paths[0].write_bytes(content)
    assert sync.offload(store, places, source, stored, upload.hashes).problem == ""
    assert not source.paths[0].exists()


@pytest.mark.parametrize(
    "name", ["train.py", "other/checkpoint-20/a", "checkpoint-10/a", "incomplete-0/checkpoint-20/a"]
)
def test_a_manifest_with_a_file_of_no_step_is_not_restored(name: str, store: Store, tmp_path: Path) -> None:
    places = written(tmp_path / "here", "hf")
    push.push(upload_of(store, places), sources.list_sources(places)[0])
    (stored,) = inventory.list_backups(store, scene.RUN, places)
    found = stored.manifest
    assert isinstance(found, Manifest)
    strange = replace(found, files=(*found.files, replace(found.files[0], name=name)))
    assert "no file of a checkpoint" in inventory._find_misfit(strange, places)
