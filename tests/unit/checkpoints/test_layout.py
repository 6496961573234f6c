"""A checkpoint is complete when every byte its manifest promises is there, and not before."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.checkpoints import layout, listing
from prime_train.checkpoints.dcp import METADATA
from prime_train.checkpoints.layout import MANIFEST
from prime_train.core import outside

CONTENT = b"0123456789"
EMPTY = {"bytes": 0, "sha256": hashlib.sha256().hexdigest()}


def write(root: Path, step: int, files: int = 2) -> Path:
    """A complete checkpoint."""
    folder = root / f"step_{step}"
    (folder / "deeper").mkdir(parents=True)
    for number in range(files):
        (folder / "deeper" / f"{number}.distcp").write_bytes(CONTENT)
    (folder / METADATA).write_bytes(b"")
    layout.write_manifest(folder, step)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, 5)


def test_a_written_checkpoint_is_complete(folder: Path) -> None:
    found = layout.inspect(folder, hashes=True)
    assert (found.step, found.path, found.problem, found.complete) == (5, folder, "", True)
    assert found.size_bytes == 20 + (folder / MANIFEST).stat().st_size


def test_the_manifest_returns_the_bytes_it_vouches_for(folder: Path) -> None:
    assert layout.write_manifest(folder, 5) == 20


def test_without_a_manifest_the_save_did_not_finish(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    assert layout.inspect(folder).problem == "no COMPLETE.json: the save did not finish"


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"step": 5, "files": {"a": 1}}', '{"step": "x", "files": {}}'])
def test_a_manifest_that_is_not_one_is_a_problem(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    assert layout.inspect(folder).problem.startswith("COMPLETE.json is unreadable")


_NOT_JSON = {
    "infinity": '{"step": Infinity, "files": {}}',
    "beyond floats": '{"step": 1e999, "files": {}}',
    "deep": "[" * 200_000,
    "half a pair": '{"step": 5, "damaged": "\\ud800", "files": {}}',
}


@pytest.mark.parametrize("text", _NOT_JSON.values(), ids=_NOT_JSON)
def test_a_manifest_that_no_code_can_use_is_a_problem(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    assert layout.inspect(folder).problem.startswith("COMPLETE.json is unreadable")
    assert layout.newest_complete(folder.parent) is None


def test_a_manifest_that_is_no_regular_file_is_a_problem(folder: Path) -> None:
    kept = folder.parent / "kept.json"
    (folder / MANIFEST).rename(kept)
    (folder / MANIFEST).symlink_to(kept)
    assert layout.inspect(folder).problem == "COMPLETE.json is unreadable: it is a symbolic link"
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    assert layout.inspect(folder).problem == "COMPLETE.json is unreadable: it is a named pipe, not a regular file"


@pytest.mark.parametrize("files", [{}, {METADATA: EMPTY}, {"deeper/0.distcp": None, "deeper/1.distcp": None}])
def test_a_manifest_without_the_files_that_torch_needs_is_not_complete(
    folder: Path, files: dict[str, dict[str, Any] | None]
) -> None:
    entry = {"bytes": 10, "sha256": hashlib.sha256(CONTENT).hexdigest()}
    named = {name: found or entry for name, found in files.items()}
    (folder / MANIFEST).write_text(json.dumps({"version": 1, "step": 5, "files": named}))
    before = write(folder.parent, 4)

    assert layout.inspect(folder).problem.startswith("COMPLETE.json names no")
    assert layout.problem(folder, on_read=lambda _: None).startswith("COMPLETE.json names no")
    newest = layout.newest_complete(folder.parent)
    assert newest is not None
    assert newest.path == before


@pytest.mark.parametrize("name", ["../../secret", "{outside}", "..", "", ".", "deeper//0.distcp", "a\0b"])
def test_a_manifest_names_only_plain_names_below_its_folder(folder: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_bytes(CONTENT)
    entry = {"bytes": 10, "sha256": hashlib.sha256(CONTENT).hexdigest()}
    name = name.format(outside=tmp_path / "secret")
    (folder / MANIFEST).write_text(json.dumps({"version": 1, "step": 5, "files": {name: entry}}))

    found = layout.inspect(folder, hashes=True)

    assert found.problem.startswith("COMPLETE.json is unreadable: it names the file")


def test_a_step_that_is_a_link_to_itself_is_no_checkpoint(folder: Path) -> None:
    loop = folder.with_name("step_7")
    loop.symlink_to(loop)
    assert [found.path for found in layout.scan(folder.parent)] == [folder]


def test_a_folder_that_is_a_link_to_itself_has_no_checkpoints(tmp_path: Path) -> None:
    loop = tmp_path / "checkpoints"
    loop.symlink_to(loop)
    assert layout.scan(loop) == []
    assert listing.list_files(loop) == {}


def test_a_file_that_is_reached_through_a_link_makes_the_checkpoint_broken(folder: Path, tmp_path: Path) -> None:
    (folder / "deeper").rename(tmp_path / "elsewhere")
    (folder / "deeper").symlink_to(tmp_path / "elsewhere")
    assert layout.inspect(folder).problem == "deeper/0.distcp is unreadable: it is a symbolic link"
    (folder / "deeper").unlink()
    (folder / "deeper").mkdir()
    for number in range(2):
        (folder / "deeper" / f"{number}.distcp").symlink_to(tmp_path / "elsewhere" / f"{number}.distcp")
    assert layout.inspect(folder, hashes=True).problem == "deeper/0.distcp is unreadable: it is a symbolic link"


@pytest.mark.parametrize("step", [4, 6, 50])
def test_a_manifest_of_an_earlier_or_a_later_step_is_a_problem(folder: Path, step: int) -> None:
    moved = folder.rename(folder.with_name(f"step_{step}"))
    assert layout.inspect(moved).problem == "COMPLETE.json was written for step 5"


def test_a_folder_without_a_step_has_the_step_minus_one(folder: Path) -> None:
    moved = folder.rename(folder.with_name("final"))
    assert (layout.inspect(moved).step, layout.inspect(moved).complete) == (-1, False)


def test_a_manifest_is_json_that_a_person_can_read(folder: Path) -> None:
    def check(**more: str) -> None:
        text = (folder / MANIFEST).read_text()
        entry = {"bytes": 10, "sha256": hashlib.sha256(CONTENT).hexdigest()}
        names = ("deeper/0.distcp", "deeper/1.distcp")
        files = {METADATA: EMPTY, **dict.fromkeys(names, entry)}
        assert json.loads(text) == {"version": 1, "step": 5, "files": files, **more}
        assert text == json.dumps(json.loads(text), indent=1)

    check()
    layout.update_entry(folder, layout.entries(folder)[2])
    check()
    layout.mark_damaged(folder, "torn")
    check(damaged="torn")


def test_an_entry_is_replaced_and_the_others_stay(folder: Path) -> None:
    index, first, second = layout.entries(folder)
    assert (first.name, second.name) == ("deeper/0.distcp", "deeper/1.distcp")
    layout.update_entry(folder, second._replace(size_bytes=4, kept_bytes=4))
    assert layout.entries(folder) == [index, first, second._replace(size_bytes=4, kept_bytes=4)]
    assert layout.inspect(folder).problem == "deeper/1.distcp has 10 of 4 bytes"


def test_a_pin_is_seen_and_is_no_part_of_the_checkpoint(folder: Path) -> None:
    assert layout.inspect(folder).pinned is False
    (folder / layout.PIN).touch()
    assert layout.inspect(folder).pinned
    layout.write_manifest(folder, 5)
    assert {entry.name for entry in layout.entries(folder)} == {METADATA, "deeper/0.distcp", "deeper/1.distcp"}


def test_a_checkpoint_whose_manifest_changes_meanwhile_is_checked_again(folder: Path) -> None:
    def mend(_: int) -> None:
        layout.write_manifest(folder, 5)

    (folder / "deeper" / "1.distcp").write_bytes(CONTENT[::-1])
    assert layout.inspect(folder, hashes=True, on_read=mend).complete


def test_a_file_that_vanishes_while_sizes_are_read_counts_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.scandir

    def scan(path: str) -> contextlib.nullcontext[list[os.DirEntry[str]]]:
        entries = list(real(path)) if Path(path).is_dir() else []
        (folder / "deeper" / "0.distcp").unlink(missing_ok=True)
        return contextlib.nullcontext(entries)

    monkeypatch.setattr("os.scandir", scan)
    assert listing.size_bytes(folder / "deeper") == len(CONTENT)
    assert listing.size_bytes(folder / "gone") == 0


def test_a_checkpoint_has_the_entries_and_the_time_of_its_manifest(folder: Path) -> None:
    assert layout.inspect(folder).entries == ()  # nothing is packed
    layout.update_entry(folder, layout.entries(folder)[0]._replace(sha256_as_saved="12"))
    found = layout.inspect(folder)
    assert list(found.entries) == layout.entries(folder)
    assert found.written_s == (folder / MANIFEST).stat().st_mtime
    (folder / "deeper" / "1.distcp").write_bytes(b"")
    assert layout.inspect(folder).entries == ()
    (folder / MANIFEST).unlink()
    assert layout.inspect(folder).written_s == folder.stat().st_mtime


def test_a_complete_checkpoint_is_judged_by_one_read_of_its_manifest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = outside._read_whole

    def count(descriptor: int, path: str, limit_bytes: int, size: int) -> bytes:
        opened.append(Path(path).name)
        return real(descriptor, path, limit_bytes, size)

    monkeypatch.setattr(outside, "_read_whole", count)
    (found,) = layout.scan(folder.parent)
    assert found.complete
    assert opened == [MANIFEST]


@pytest.mark.parametrize("held_bytes", [0, 300, 2**16])
def test_checkpoints_that_are_listed_together_are_judged_as_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    folders = [write(tmp_path, step, files=step) for step in range(1, 8)]
    (folders[1] / "deeper" / "0.distcp").write_bytes(CONTENT[:4])
    (folders[2] / MANIFEST).unlink()
    (folders[3] / MANIFEST).write_bytes(b"{" * 1000)
    (folders[4] / layout.PIN).touch()
    folders[5].rename(tmp_path / "elsewhere")
    folders[5].symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(layout, "_HELD_BYTES", held_bytes)
    found = list(layout.look(map(listing.name_step, [*folders, tmp_path / "step_8"])))
    assert [one.checkpoint for one in found] == [*map(layout.inspect, folders), layout.inspect(tmp_path / "step_8")]
    assert [one.checkpoint.complete for one in found] == [True, False, False, False, True, False, True, False]
    assert [one.folder_status is None for one in found] == [False] * 5 + [True, False, True]


_HOSTILE = (
    *('"version": 1', '"step": 5', '"bytes": 10', '"bytes": 0', '"sha256": "'),
    *("0.distcp", "1.distcp", METADATA, "deeper", "\n", "{", "}", "1", "5"),
)
_IN_PLACE = (
    *(
        '"step": 5, "step": 1' + "0" * 30,
        '"step": NaN, "step": 5',
        '"damaged": "x", "step": 5',
        '"step": 6',
        '"step": 5.0',
    ),
    *(
        '"bytes": 1' + "0" * 30,
        '"bytes": 10.0',
        '"bytes": "10"',
        '"bytes": 1e999, "bytes": 10',
        '"bytes": [], "bytes": 0',
    ),
    *(
        '"lossy": {}, "sha256": "',
        '"sha256": "\\ud800',
        '"sha256": 1, "packed": "',
        '"sha256": "',
        "../0.distcp",
        "\udc80",
    ),
    *(
        "",
        " ",
        "0",
        "[" * 70 + "]" * 70,
        "\\u0030.distcp",
        "0.distcp.planes.0",
        "PINNED",
        MANIFEST,
        "é",
        ":",
        ",",
        "[]",
    ),
)


@given(st.lists(st.tuples(st.sampled_from(_HOSTILE), st.sampled_from(_IN_PLACE)), min_size=1, max_size=2))
@settings(deadline=None, max_examples=300)
def test_a_listed_checkpoint_is_judged_as_one_without_a_listing(changes: list[tuple[str, str]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = write(Path(root), 5)
        text = (folder / MANIFEST).read_text(encoding="utf-8")
        for old, put in changes:
            text = text.replace(old, put, 1)
        (folder / MANIFEST).write_bytes(text.encode("utf-8", "surrogateescape"))
        assert layout.inspect(folder).problem == layout.problem(folder)


def test_a_scan_reads_contents_only_on_request(folder: Path) -> None:
    (folder / "deeper" / "1.distcp").write_bytes(CONTENT[::-1])
    assert [found.complete for found in layout.scan(folder.parent)] == [True]
    assert [found.complete for found in layout.scan(folder.parent, hashes=True)] == [False]


def test_every_file_is_listed_and_a_link_is_itself(tmp_path: Path) -> None:
    for number in range(3):
        for inner in ("", "inner/", "inner/deep/"):
            path = tmp_path / "folder" / f"{inner}{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"12345678901")
    outside_it = tmp_path / "outside"
    outside_it.write_bytes(bytes(1000))
    (tmp_path / "folder" / "link").symlink_to(outside_it)
    found = listing.list_files(tmp_path / "folder")
    assert found.keys() == {f"{inner}{n}" for n in range(3) for inner in ("", "inner/", "inner/deep/")} | {"link"}
    length = len(os.fspath(outside_it))
    assert found["link"].st_size == length
    assert listing.size_bytes(tmp_path / "folder") == 9 * 11 + length
    (tmp_path / "step_1").symlink_to(tmp_path / "folder")
    assert listing.size_bytes(tmp_path / "step_1") == 0


def test_a_folder_that_is_gone_was_never_written(tmp_path: Path) -> None:
    assert listing.written_s(tmp_path / "step_1") == 0.0


def test_a_link_to_a_checkpoint_is_one(folder: Path, tmp_path: Path) -> None:
    root = tmp_path / "links"
    root.mkdir()
    (root / folder.name).symlink_to(folder)
    assert [one.path for one in layout.scan(root)] == [root / folder.name]


def test_a_missing_and_a_truncated_file_are_found_by_size(folder: Path) -> None:
    (folder / "deeper" / "1.distcp").write_bytes(CONTENT[:4])
    assert layout.inspect(folder).problem == "deeper/1.distcp has 4 of 10 bytes"
    (folder / "deeper" / "0.distcp").unlink()
    assert layout.inspect(folder).problem == "deeper/0.distcp is missing"


def test_changed_content_is_found_by_hash(folder: Path) -> None:
    (folder / "deeper" / "1.distcp").write_bytes(CONTENT[::-1])
    assert layout.inspect(folder).complete
    read: list[int] = []
    assert layout.inspect(folder, hashes=True, on_read=read.append).problem == (
        "deeper/1.distcp does not match its SHA-256"
    )
    assert sum(read) == 20


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
@pytest.mark.parametrize("damaged", range(4))
def test_processes_that_share_the_check_find_each_damage_once(tmp_path: Path, parts: int, damaged: int) -> None:
    folder = write(tmp_path, 5, files=4)
    (folder / "deeper" / f"{damaged}.distcp").write_bytes(CONTENT[::-1])
    found = [layout.problem(folder, on_read=lambda _: None, part=part, parts=parts) for part in range(parts)]
    assert sum(map(bool, found)) == 1


def test_a_condemned_checkpoint_stays_incomplete(folder: Path) -> None:
    layout.mark_damaged(folder, "a flipped bit")
    assert layout.inspect(folder).problem == "found damaged: a flipped bit"
    assert layout.newest_complete(folder.parent) is None


def test_scan_gives_steps_by_number_and_nothing_else(tmp_path: Path) -> None:
    for step in (5, 40, 100):
        write(tmp_path, step)
    (tmp_path / "step_7.old").mkdir()
    (tmp_path / "step_x").mkdir()
    (tmp_path / "step_8").write_text("a file")
    assert [found.step for found in layout.scan(tmp_path)] == [100, 40, 5]
    assert layout.scan(tmp_path / "none") == []


def test_newest_complete_passes_over_what_is_not(tmp_path: Path) -> None:
    assert layout.newest_complete(tmp_path) is None
    for step in (5, 40, 100):
        write(tmp_path, step)
    (tmp_path / "step_100" / MANIFEST).unlink()
    (tmp_path / "step_40" / "deeper" / "0.distcp").write_bytes(b"")
    newest = layout.newest_complete(tmp_path)
    assert newest is not None
    assert newest.step == 5


@pytest.fixture(scope="module")
def whole() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as root:
        yield write(Path(root), 5, files=3)


@settings(deadline=None)
@given(number=st.integers(0, 2), kept=st.integers(0, len(CONTENT) - 1))
def test_no_truncation_goes_unseen(whole: Path, number: int, kept: int) -> None:
    with tempfile.TemporaryDirectory() as root:
        copied = Path(shutil.copytree(whole, Path(root) / "step_5"))
        (copied / "deeper" / f"{number}.distcp").write_bytes(CONTENT[:kept])
        assert not layout.inspect(copied).complete


def test_a_manifest_that_is_changed_keeps_the_time_of_the_save(folder: Path) -> None:
    saved_s = 1_700_000_000.0
    os.utime(folder / MANIFEST, (saved_s, saved_s))
    layout.update_entry(folder, layout.entries(folder)[0])
    assert layout.inspect(folder).written_s == saved_s
    layout.mark_damaged(folder, "a byte differs")
    assert layout.inspect(folder).written_s == saved_s
