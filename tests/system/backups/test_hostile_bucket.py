"""A bucket that others write to: each strange object is one broken backup with a name, and the one before is taken."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from prime_train.backups import inventory, listing, pull, sync
from prime_train.backups.listing import Listed
from prime_train.backups.store import Store, open_store
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointRestored, read
from prime_train.spec import Backup
from tests import fork_server
from tests.system.backups import hostile_objects
from tests.system.backups.hostile_objects import CONTENTS, HOSTILE, MARKERS, SPECIAL, STEP, TEXTS, Hostile, Objects
from tests.unit.backups import s3_server, scene
from tests.unit.cli import small
from tests.unit.cli.commands import prime_train

WHOLE = (20, 30)


@pytest.fixture(autouse=True)
def _fast_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No power is cut here, and a disk takes most of the time of a hundred small buckets."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A bucket with two whole backups."""
    found: Store = scene.local_store(tmp_path / "bucket") if request.param == "local" else request.getfixturevalue("s3")
    push_whole(found, tmp_path / "here")
    return found


def push_whole(store: Store, root: Path) -> None:
    for step in WHOLE:
        scene.write_step(root, step, 5000)
    list(sync.run_round(scene.upload(store, root), None))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return hostile_objects.write_whole(tmp_path_factory.mktemp("whole"))


def check_each_command(store: Store, root: Path, folder: str, expected: Hostile) -> None:
    """List, verify, push, restore and prune with one hostile backup in the bucket."""
    found = scene.list_backups(store)
    assert [one.step for one in found if one.complete and one.folder != folder] == [30, 20]
    (hostile,) = [one for one in found if one.folder == folder]
    assert hostile.complete is (not expected.problem)
    assert re.search(expected.problem, hostile.problem), hostile.problem
    assert len(hostile.problem) < 300
    if hostile.complete:
        assert sync.verify(store, hostile)

    scene.write_step(root, 40, 5000)
    done = [(one.did, one.step) for one in sync.run_round(scene.upload(store, root), None)]
    assert ("pushed", 40) in done

    skipped: list[str] = []
    there = scene.places(root.with_name("there"))
    pulled = pull.restore_newest(store, scene.RUN, there, on_skip=lambda one, _: skipped.append(one.folder))
    assert pulled is not None
    assert pulled.step == 40
    assert skipped == ([folder] if hostile.broken or hostile.complete else [])
    assert scene.content(pulled.folders[0]) == scene.content(root / "checkpoints" / "step_40")

    backups = sync.prove_newest(store, scene.list_backups(store))
    for planned in sync.plan(backups, 1, None, sync.read_now_s(store, backups)):
        sync.delete(store, planned.stored)
    assert 40 in [one.step for one in scene.list_backups(store) if one.complete]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_one_hostile_object_is_one_broken_backup(
    store: Store, tmp_path: Path, whole: Objects, hostile: Hostile
) -> None:
    folder = hostile_objects.plant(store, whole, 1, hostile)
    check_each_command(store, tmp_path / "here", folder, hostile)


@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_no_file_is_one_broken_backup(tmp_path: Path, whole: Objects, name: str) -> None:
    store = scene.local_store(tmp_path / "bucket")
    push_whole(store, tmp_path / "here")
    problem, make = SPECIAL[name]
    hostile = Hostile(name, problem, lambda _: None)
    folder = hostile_objects.plant(store, whole, 1, hostile)
    make(Path(store.root, folder))
    check_each_command(store, tmp_path / "here", folder, hostile)


def test_a_whole_backup_is_taken(store: Store, tmp_path: Path, whole: Objects) -> None:
    """The table changes a backup that would be restored otherwise."""
    hostile_objects.plant(store, whole, 1, Hostile("none", "", lambda _: None))
    pulled = pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))
    assert pulled is not None
    assert pulled.step == STEP


def plant_all(store: Store, whole: Objects) -> None:
    for number, hostile in enumerate(HOSTILE, 1):
        hostile_objects.plant(store, whole, number, hostile)
    if store.backup.provider == "local":
        for number, (_, make) in enumerate(SPECIAL.values(), len(HOSTILE) + 1):
            make(Path(store.root, hostile_objects.plant(store, whole, number, Hostile("", "", lambda _: None))))


def test_every_command_works_in_a_bucket_with_all_of_them(
    store: Store, tmp_path: Path, whole: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a person uses them, in processes of their own."""
    plant_all(store, whole)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    place, settings = tmp_path / "place", replace(store.backup, keep_last=2)
    write_run(place, settings, 40)
    variables = s3_server.CREDENTIALS

    def command(*arguments: str, code: int = ExitCode.OK) -> dict[str, Any]:
        done = prime_train("backup", *arguments, "--json", cwd=place, **variables)
        assert done.returncode == code, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    status = command("status", scene.RUN)
    assert len(status["backups"]) >= len(HOSTILE) + 2
    pushed = command("push", scene.RUN)
    assert [(row["step"], row["did"]) for row in pushed["steps"]] == [(40, "pushed")]
    rows = command("verify", scene.RUN, code=ExitCode.FINDINGS)["steps"]
    assert [row["step"] for row in rows if row["did"] == "verified" and row["step"] != STEP] == [40, 30, 20]
    assert sum(row["did"] == "damaged" for row in rows) >= len(HOSTILE) - 4
    write_run(tmp_path / "other", settings)
    place = tmp_path / "other"
    pulled = command("pull", scene.RUN)["steps"]
    assert [(row["step"], row["did"]) for row in pulled if row["did"] != "skipped"] == [(40, "pulled")]
    assert len(pulled) > len(HOSTILE) - len(hostile_objects.MARKERS)
    planned = command("prune", scene.RUN, "--dry-run")["steps"]
    assert [row["step"] for row in planned if row["step"] != STEP] == [20]
    command("prune", scene.RUN)
    shutil.rmtree(place / "runs" / scene.RUN / "checkpoints")
    assert command("pull", scene.RUN)["steps"][-1]["step"] == 40


def write_run(folder: Path, backup: Backup, *steps: int) -> None:
    from prime_train import spec

    run_dir = RunDir(folder / "runs" / scene.RUN)
    run_dir.path.mkdir(parents=True)
    for step in steps:
        scene.write_step(run_dir.path, step, 5000)
    run = spec.RunSpec(
        run=spec.Run(name=scene.RUN, max_steps=100),
        data=spec.Data(sources=()),
        prime_train=spec.PrimeTrain(backup=backup),
    )
    run_dir.resolved.write_text(spec.to_json(run))


CONFIG = """
[prime_train.backup]
provider = "local"
bucket = "{bucket}"
"""


def test_a_run_resumes_on_another_machine_from_the_newest_whole_one(
    tmp_path: Path, whole: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    bucket = tmp_path / "bucket"
    bucket.mkdir()

    def run(machine: str, last_step: int) -> str:
        folder = tmp_path / machine
        folder.mkdir()
        small.write(folder)
        (folder / "run.toml").write_text(small.CONFIG + CONFIG.format(bucket=bucket))
        options = ("--no-validate", "--set", f"run.max_steps={last_step}")
        done = prime_train("run", "run.toml", *options, cwd=folder, **fork_server.variables())
        assert done.returncode == ExitCode.OK, done.stderr
        return done.stderr

    run("first", 8)
    (made,) = bucket.glob("small/step_8.*")
    monkeypatch.setattr(scene, "RUN", "small")
    changed = {name: content.replace(b'"small-run"', b'"small"') for name, content in whole.items()}
    store = open_store(Backup(provider="local", bucket=str(bucket)))
    plant_all(store, changed)
    assert "the backup of step 50 is not used" in run("second", 12)
    events = read(RunDir(tmp_path / "second" / "runs" / "small").events)
    assert [record.event.step for record in events if isinstance(record.event, CheckpointRestored)] == [8]
    assert made.is_dir()


def test_a_bucket_of_broken_backups_does_not_start_a_run_over(tmp_path: Path, whole: Objects) -> None:
    store = scene.local_store(tmp_path / "bucket")
    for number, hostile in enumerate(HOSTILE, 1):
        hostile_objects.plant(store, whole, number, hostile)
    with pytest.raises(pull.DamagedBackupError):
        pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there"))


def test_an_upload_that_did_not_finish_is_no_backup(tmp_path: Path, whole: Objects) -> None:
    store = scene.local_store(tmp_path / "bucket")
    hostile_objects.plant(store, whole, 1, hostile_objects.MARKERS[0])
    assert pull.restore_newest(store, scene.RUN, scene.places(tmp_path / "there")) is None


def test_what_may_not_be_read_is_not_deleted(tmp_path: Path, whole: Objects, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be whole: the budget of one listing ended before it."""
    store = scene.local_store(tmp_path / "bucket")
    push_whole(store, tmp_path / "here")
    hostile_objects.plant(store, whole, 1, Hostile("", "", lambda _: None))
    monkeypatch.setattr(inventory, "_MOST_READ_BYTES", 2 * inventory._REQUEST_BYTES + 8000)
    found = scene.list_backups(store)
    assert [(one.step, one.judged) for one in found] == [(STEP, True), (30, True), (20, False)]
    assert "not judged" in found[-1].problem
    assert [one.stored.step for one in sync.plan(found, 1, None, time.time() + 10 * sync.QUIET_S)] == [30]


def test_damaged_newer_backups_do_not_make_a_whole_one_go(store: Store, tmp_path: Path, whole: Objects) -> None:
    """They look complete, so the retention alone would keep them and delete the whole ones."""
    damaged = [one for one in CONTENTS if not one.problem]
    for number, hostile in enumerate(damaged, 1):
        hostile_objects.plant(store, whole, number, hostile)
    upload = scene.upload(replace(store, backup=replace(store.backup, keep_last=1)), tmp_path / "here")
    assert {one.stored.step for one in sync.plan(scene.list_backups(store), 1, None, 0.0)} >= {20, 30}
    gone = [one.step for one in sync.run_round(upload, None) if one.did == "pruned"]
    assert gone == [20]
    assert 30 in [one.step for one in scene.list_backups(store) if one.complete]


def test_the_clock_of_this_machine_does_not_make_an_upload_old(
    store: Store, tmp_path: Path, whole: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile_objects.plant(store, whole, 1, hostile_objects.MARKERS[0])
    monkeypatch.setattr(time, "time", lambda: 4e9)
    backups = scene.list_backups(store)
    assert sync.plan(backups, 5, None, sync.read_now_s(store, backups)) == ()
    done = list(sync.run_round(scene.upload(store, tmp_path / "here"), None))
    assert [one for one in done if one.did == "pruned"] == []


def test_hundreds_of_hostile_backups_take_few_requests(
    s3: Store, tmp_path: Path, whole: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing asks for each page and for two objects of each folder, and nothing twice."""
    push_whole(s3, tmp_path / "here")
    for number in range(300):
        # Without their parts, which no listing reads.
        texts = {name: content for name, content in whole.items() if "/" not in name}
        hostile_objects.plant(s3, texts, number, (*MARKERS, *TEXTS)[number % len((*MARKERS, *TEXTS))])
    asked: list[str] = []
    for name in ("call_s3", "cat_file"):
        real = getattr(s3.fs, name)
        monkeypatch.setattr(s3.fs, name, partial(_count, asked, name, real))
    found = scene.list_backups(s3)
    assert len(found) == 302
    assert [one.step for one in found if one.complete] == [30, 20]
    pages = asked.count("call_s3") - 1  # one asks for the bucket
    assert pages == 1
    assert asked.count("cat_file") <= 2 * len(found)
    # A minute is enough for it with a server that takes 0.3 s for an answer, and the deadline ends it with any other.
    assert (pages + asked.count("cat_file") / s3.provider.workers) * 0.3 < 60
    assert inventory._DEADLINE_S < 60


def _count(asked: list[str], name: str, real: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    asked.append(name)
    return real(*arguments, **options)


def test_a_bucket_that_is_slow_is_listed_in_bounded_time(
    tmp_path: Path, whole: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not read in time may be whole: it is named, and neither restored nor deleted."""
    store = scene.local_store(tmp_path / "bucket")
    push_whole(store, tmp_path / "here")
    for number in range(9):
        hostile_objects.plant(store, whole, number, Hostile("", "", lambda _: None))
    seconds, asked = iter(range(100)), list[str]()
    monkeypatch.setattr(inventory, "_DEADLINE_S", 5.0)
    monkeypatch.setattr("prime_train.backups.inventory.time.monotonic", lambda: float(next(seconds)))
    monkeypatch.setattr(outside, "read_bytes", partial(_count, asked, "read", outside.read_bytes))
    found = scene.list_backups(store)
    assert len(asked) == 2 * 5
    late = [one for one in found if not one.judged]
    assert len(late) == len(found) - 5
    assert {one.problem for one in late} == {"not judged: the manifests of this run could not be read within 5 s"}
    assert not {one.folder for one in late} & {one.stored.folder for one in sync.plan(found, 1, None, 4e9)}


class EndlessServer:
    """An S3 server whose listing has another page for ever."""

    def __init__(self, names: Callable[[int], Iterator[str]]) -> None:
        self._names, self.pages = names, 0

    def call_s3(self, _: str, **__: object) -> dict[str, Any]:
        self.pages += 1
        contents = [{"Key": f"team/run/{name}", "Size": 1} for name in self._names(self.pages)]
        return {"Contents": contents, "IsTruncated": True, "NextContinuationToken": str(self.pages)}


@pytest.mark.parametrize("per_page", [0, 1, 500])
def test_a_listing_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch, per_page: int) -> None:
    monkeypatch.setattr(listing, "_MOST_PAGES", 50)
    monkeypatch.setattr(listing, "MOST_OBJECTS", 10_000)
    server = EndlessServer(lambda page: (f"{page}-{number}" for number in range(per_page)))
    store = Store(Backup(provider="s3", bucket="bucket", prefix="team"), "bucket/team", server)
    with pytest.raises(UserError, match="cannot be listed"):
        store.list("run")
    assert server.pages <= 50


def test_a_folder_without_end_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_OBJECTS", 100)
    store = scene.local_store(tmp_path / "bucket")
    folder = Path(store.root, scene.RUN, "many")
    folder.mkdir(parents=True)
    for number in range(101):
        (folder / str(number)).touch()
    with pytest.raises(UserError, match="cannot be listed"):
        store.list(scene.RUN)


def test_no_link_in_a_folder_is_followed(tmp_path: Path) -> None:
    store = scene.local_store(tmp_path / "bucket")
    store.write("run/a", b"one")
    (Path(store.root) / "run" / "circle").symlink_to(Path(store.root))
    (tmp_path / "victim").mkdir()
    (Path(store.root) / "run" / "out").symlink_to(tmp_path / "victim")
    found = store.list("run")
    assert set(found) == {"a", "circle", "out"}
    assert found["a"] == Listed(3, found["a"].changed_s)
    with pytest.raises(UserError, match="symbolic link"):
        store.write("run/out/b", b"two")
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_key_that_looks_like_a_pattern_deletes_only_itself(s3: Store) -> None:
    for name in ("run/*", "run/a", "run/[ab]", "run/?"):
        s3.write(name, b"x")
    s3.delete(["run/*", "run/[ab]"])
    assert set(s3.list("run")) == {"a", "?"}
