"""A checkpoint of another trainer is packed and unpacked: each byte and mode is back, also after a kill at any call."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers.trainer_utils import get_last_checkpoint

from prime_train.checkpoints import step_folders
from prime_train.checkpoints.packing import archive, foreign, foreign_archive
from prime_train.checkpoints.packing.foreign import FoundStep
from prime_train.checkpoints.packing.packing_plan import Sizes
from prime_train.checkpoints.step_folders import StepPlaces
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.packing.test_planes import numbers
from tests.unit.checkpoints.test_layouts import find_layout
from tests.unit.checkpoints.written_saves import SAVES

SMALL = Sizes(segment_bytes=40_000, piece_bytes=2**14, pieces_together=1, smallest_bytes=1)
STEPS = (10, 20, 30, 40)
PACKED = [name for name in SAVES if find_layout(SAVES[name](10).layout).packs]
Described = dict[str, tuple[bytes, int, int]]  # name -> content, mode, time in ns


def write_steps(folder: Path, name: str) -> StepPlaces:
    for step in STEPS:
        saves.write_whole(folder, SAVES[name](step))
    written = SAVES[name](STEPS[0])
    return StepPlaces(folder / "run", (folder,), find_layout(written.layout, written.ranks))


def describe(folder: Path) -> Described:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): _describe(path) for path in files}


def _describe(path: Path) -> tuple[bytes, int, int]:
    return path.read_bytes(), stat.S_IMODE(path.stat().st_mode), path.stat().st_mtime_ns


def free(places: StepPlaces) -> list[FoundStep]:
    return [one for one in foreign.find_steps(places) if not one.obstacle]


@pytest.mark.parametrize("name", PACKED)
def test_each_byte_mode_and_time_comes_back(name: str, tmp_path: Path) -> None:
    places = write_steps(tmp_path, name)
    odd = next(path for path in sorted(tmp_path.rglob("*")) if path.is_file() and "10" in str(path))
    odd.chmod(0o640)
    os.utime(odd, ns=(5, 123_456_789))
    before = describe(tmp_path)
    assert [one.step for one in free(places)] == [20, 10]
    for one in free(places):
        foreign_archive.pack(places, one, sizes=SMALL)
    assert [one.step for one in foreign.list_packed(places, hashes=True) if one.complete] == [20, 10]
    assert {one.step for one in step_folders.checkpoints(places.checkpoints, places.layout)} == {40, 30}
    assert all(".planes." in path.name for path in (tmp_path / foreign.FOLDER).rglob("*.zip*"))
    for step in (10, 20):
        foreign_archive.unpack(places, step)
    assert describe(tmp_path) == before
    assert not (tmp_path / foreign.FOLDER).exists()


def test_the_trainer_does_not_find_a_packed_one(tmp_path: Path) -> None:
    """Its newest two stay; should they be lost, it begins with what it can load."""
    places = write_steps(tmp_path, "hf")
    foreign_archive.pack(places, free(places)[0], sizes=SMALL)
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-40")
    for step in (30, 40):
        shutil.rmtree(tmp_path / f"checkpoint-{step}")
    assert get_last_checkpoint(str(tmp_path)) == str(tmp_path / "checkpoint-10")


HARMS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pinned": (lambda folder: (folder / "PINNED").touch(), "it is pinned"),
    "a link": (lambda folder: (folder / "notes").symlink_to("config.json"), "no regular file with one name"),
    "a file with two names": (
        lambda folder: os.link(folder / "optimizer.pt", folder.parent / "checkpoint-20-optimizer.pt"),
        "no regular file with one name",
    ),
    "a pipe": (lambda folder: os.mkfifo(folder / "pipe"), "no regular file with one name"),
    "a strange name": (lambda folder: (folder / "a\0b".replace("\0", "\n")).touch(), ""),
}


@pytest.mark.parametrize("name", HARMS)
def test_what_could_be_lost_or_shared_stays(name: str, tmp_path: Path) -> None:
    places = write_steps(tmp_path, "hf")
    harm, why = HARMS[name]
    harm(tmp_path / "checkpoint-20")
    found = {one.step: one.obstacle for one in foreign.find_steps(places)}
    assert found[40] == found[30] == "the newest 2 complete ones stay"
    assert why in found.get(20, why)
    assert bool(found.get(20)) == bool(why)
    assert found[10] == ""


def test_the_best_and_what_the_tracker_names_stay(tmp_path: Path) -> None:
    places = write_steps(tmp_path, "megatron-lm")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("20")
    assert {one.step: one.obstacle for one in foreign.find_steps(places)}[20].endswith("names it")
    assert [one.step for one in free(places)] == [10]


def test_an_open_file_keeps_a_checkpoint_in_its_place(tmp_path: Path) -> None:
    places = write_steps(tmp_path, "hf")
    [one, _] = free(places)
    before = describe(tmp_path)
    code = "import sys; file = open(sys.argv[1], 'rb'); print('open', flush=True); sys.stdin.read()"
    path = str(tmp_path / "checkpoint-20" / "optimizer.pt")
    reader = subprocess.Popen(
        [sys.executable, "-c", code, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        assert "has optimizer.pt open" in {found.step: found.obstacle for found in foreign.find_steps(places)}[20]
        with pytest.raises(OSError, match=r"has optimizer.pt open"):  # it was opened after the look
            foreign_archive.pack(places, one, sizes=SMALL)
    finally:
        reader.communicate("")
    assert describe(tmp_path) == before


def test_a_step_that_was_saved_again_is_not_written_over(tmp_path: Path) -> None:
    places = write_steps(tmp_path, "hf")
    foreign_archive.pack(places, free(places)[0], sizes=SMALL)
    saves.write_whole(tmp_path, SAVES["hf"](20))
    before = describe(tmp_path)
    with pytest.raises(FileExistsError):
        foreign_archive.unpack(places, 20)
    assert describe(tmp_path) == before


@pytest.mark.parametrize("name", ["hf", "lightning"])
def test_a_step_that_was_saved_again_is_not_packed_over_the_packed_one(name: str, tmp_path: Path) -> None:
    places = write_steps(tmp_path, name)
    one = free(places)[0]
    foreign_archive.pack(places, one, sizes=SMALL)
    saves.write_whole(tmp_path, SAVES[name](20))
    before = describe(tmp_path)
    found = {found.step: found.obstacle for found in foreign.find_steps(places)}
    assert found[20] == "packed-0/step_20 exists: another one of this step is packed"
    with pytest.raises(FileExistsError, match="another one of this step is packed"):  # packed after the look
        foreign_archive.pack(places, one, sizes=SMALL)
    assert describe(tmp_path) == before
    assert [found.problem for found in foreign.list_packed(places, hashes=True)] == [""]


def test_a_damaged_one_is_found_and_not_given_back(tmp_path: Path) -> None:
    places = write_steps(tmp_path, "hf")
    [_, one] = free(places)
    (tmp_path / "checkpoint-10" / "big.bin").write_bytes(numbers("f", 30_000))
    [_, one] = free(places)
    foreign_archive.pack(places, one, sizes=SMALL)
    packed = max((tmp_path / foreign.FOLDER).rglob("*.planes.*"), key=lambda path: path.stat().st_size)
    content = bytearray(packed.read_bytes())
    content[len(content) // 2] ^= 1
    packed.write_bytes(content)
    [found] = foreign.list_packed(places, hashes=True)
    assert found.problem
    with pytest.raises(archive.DamagedError):
        foreign_archive.unpack(places, 10)
    assert not (tmp_path / "checkpoint-10").exists()


def spoil_text(manifest: Path) -> None:
    manifest.write_text("{")


def spoil_files(manifest: Path) -> None:
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"files": {"a": 1}}))


def spoil_owner(manifest: Path) -> None:
    document = json.loads(manifest.read_text())
    for was in document["foreign"]["files"].values():
        was["uid"] = 2**40
    manifest.write_text(json.dumps(document))


@pytest.mark.parametrize("spoil", [spoil_text, spoil_files, spoil_owner])
def test_a_damaged_manifest_is_the_fault_of_one_step(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    places = write_steps(tmp_path, "hf")
    for one in free(places):
        foreign_archive.pack(places, one, sizes=SMALL)
    spoil(foreign.locate(places, 20) / "COMPLETE.json")
    before = describe(foreign.locate(places, 20))
    faults = foreign_archive.finish_moves(places)
    assert list(faults) == ([] if spoil is spoil_owner else [20])
    foreign_archive.unpack(places, 10)
    with pytest.raises(archive.DamagedError):
        foreign_archive.unpack(places, 20)
    assert describe(foreign.locate(places, 20)) == before


def test_a_disk_that_refuses_another_owner_still_gives_the_files_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = write_steps(tmp_path, "hf")
    before = describe(tmp_path)
    for one in free(places):
        foreign_archive.pack(places, one, sizes=SMALL)
    manifest = foreign.locate(places, 20) / "COMPLETE.json"
    document = json.loads(manifest.read_text())
    for was in document["foreign"]["files"].values():
        was["gid"] += 1
    manifest.write_text(json.dumps(document))
    asked: list[int] = []

    def refuse(_descriptor: int, _uid: int, gid: int) -> None:
        asked.append(gid)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "fchown", refuse)
    foreign_archive.unpack(places, 10)
    assert not asked
    foreign_archive.unpack(places, 20)
    assert asked
    assert describe(tmp_path) == before


# --- kills ------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends at this call: no later one has an effect."""


_left: list[int | None] = [None]  # calls until the kill; None: none is planned
_CHANGES = ("os.rename", "os.remove", "os.truncate", "os.mkdir", "os.rmdir", "os.chmod", "os.utime", "os.link")


def _count(event: str, arguments: tuple[Any, ...]) -> None:
    if _left[0] is None:
        return
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if writes or event in _CHANGES:
        _left[0] -= 1
        if _left[0] < 0:
            raise Killed


@contextmanager
def killed_after(calls: int) -> Iterator[list[bool]]:
    """Ends what runs within at its N-th change of a file. Yields a list that is not empty if it did."""
    ended: list[bool] = []
    _left[0] = calls
    try:
        yield ended
    except Killed:
        ended.append(True)
    finally:
        _left[0] = None


@pytest.fixture(scope="module", autouse=True)
def audited() -> None:
    sys.addaudithook(_count)  # for the rest of the process: it does nothing where no kill is planned


@pytest.mark.parametrize(("name", "every"), [("hf", 37), ("lightning", 2), ("lightning in two folders", 3)])
def test_a_kill_at_any_call_loses_nothing(
    name: str, every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`every`: so many calls are between two kills, because a checkpoint with many files has hundreds."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a killed process loses nothing that it has written
    monkeypatch.setattr(os, "fdatasync", lambda _: None)
    origin = tmp_path / "origin"
    places = write_steps(origin, name.split(" in ")[0])
    if name == "hf":
        (origin / "checkpoint-20" / "other.bin").write_bytes(numbers("f", 30_000))
    if name.endswith("folders"):
        (origin / "checkpoints").mkdir()
        shutil.copy2(origin / "epoch=0-step=20.ckpt", origin / "checkpoints")
    before, form = describe(origin), places.layout
    for calls in range(0, 10_000, every):
        out = tmp_path / f"{calls}"
        shutil.copytree(origin, out)
        places = StepPlaces(tmp_path / "run", (out,), form)
        one = next(found for found in free(places) if found.step == 20)
        with killed_after(calls) as ended:
            foreign_archive.pack(places, one, sizes=SMALL)
            foreign_archive.unpack(places, 20)
        foreign_archive.finish_moves(places)
        is_packed = bool(foreign.list_packed(places))
        there = {found.step for found in step_folders.checkpoints((out,), form) if found.complete}
        assert ({20} <= there) != is_packed, calls
        if is_packed:
            assert [found.problem for found in foreign.list_packed(places, hashes=True)] == [""], calls
            foreign_archive.unpack(places, 20)
        assert describe(out) == before, calls
        assert not (out / foreign.FOLDER).exists()
        shutil.rmtree(out)
        if not ended:
            break
    assert calls > 25
