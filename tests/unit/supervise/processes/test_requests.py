"""Requests to a supervisor are taken once; whatever else lies in their folder is refused once, and stays."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.core import outside
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir, make_folder, remove_temporary
from prime_train.supervise.processes.requests import (
    SETTINGS_REQUESTED,
    STOP_REQUESTED,
    Request,
    RequestReader,
    RequestRefusal,
    write_request,
)

OWN = Identity(17, 170)
STOP = Request(STOP_REQUESTED)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run_dir = RunDir(tmp_path / "run")
    make_folder(run_dir.requests(3))
    return run_dir


def content(**changes: object) -> str:
    return json.dumps({"version": 1, "kind": STOP_REQUESTED, "supervisor": str(OWN)} | changes)


def test_a_request_is_taken_once(run_dir: RunDir) -> None:
    reader = RequestReader(run_dir, OWN)
    assert list(reader.take(3)) == []
    path = write_request(run_dir.requests(3), STOP_REQUESTED, OWN)
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(reader.take(3)) == [STOP]
    assert list(run_dir.requests(3).iterdir()) == []
    assert list(reader.take(3)) == []


def test_a_request_has_its_id_and_its_body(run_dir: RunDir) -> None:
    write_request(run_dir.requests(3), SETTINGS_REQUESTED, OWN, "a1", {"values": {"optim.lr": 0.1}})
    [found] = RequestReader(run_dir, OWN).take(3)
    assert found == Request(SETTINGS_REQUESTED, "a1", {"values": {"optim.lr": 0.1}})


def test_two_requests_are_both_taken(run_dir: RunDir) -> None:
    for _ in range(2):
        write_request(run_dir.requests(3), STOP_REQUESTED, OWN)
    assert list(RequestReader(run_dir, OWN).take(3)) == [STOP, STOP]


def test_a_request_to_the_attempt_before_counts_and_an_earlier_one_does_not(run_dir: RunDir) -> None:
    write_request(run_dir.requests(3), STOP_REQUESTED, OWN)
    reader = RequestReader(run_dir, OWN)
    assert list(reader.take(5)) == []
    assert list(reader.take(4)) == [STOP]


@pytest.mark.parametrize("attempt", [0, 1])
def test_without_a_folder_there_is_no_request(tmp_path: Path, attempt: int) -> None:
    assert list(RequestReader(RunDir(tmp_path), OWN).take(attempt)) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("garbage", "Expecting value"),
        ("[]", "no object with the keys"),
        ("{}", "no object with the keys"),
        (content(more=1), "no object with the keys"),
        (content() * 2, "Extra data"),
        (content(version=2), "no request of version 1"),
        (content(kind="delete_everything"), "with a kind of stop_requested"),
        (content(kind=["stop_requested"]), "with a kind of stop_requested"),
        (content(id="a b"), "its id is not made of"),
        (content(id=7), "its id is not made of"),
        (content(id="a" * 65), "its id is not made of"),
        (content(id="a", body=[]), "its body is no object"),
        (content(supervisor="17:171"), "for another supervisor than 17:170"),
        (content(supervisor=None), "for another supervisor"),
        pytest.param("[" * 100_000, "more than 64.0 KiB", id="long"),
        pytest.param("[" * 10_000, "nests more than", id="deep"),
    ],
)
def test_a_file_that_is_no_request_is_refused_once(run_dir: RunDir, text: str, why: str) -> None:
    path = run_dir.requests(3) / "a.json"
    path.write_text(text)
    reader = RequestReader(run_dir, OWN)
    [refusal] = reader.take(3)
    assert isinstance(refusal, RequestRefusal)
    assert refusal.path == "003/requests/a.json"
    assert why in refusal.why
    assert list(reader.take(3)) == []
    assert path.read_text() == text


def test_what_is_no_regular_file_is_refused_and_not_opened(run_dir: RunDir, tmp_path: Path) -> None:
    folder = run_dir.requests(3)
    secret = tmp_path / "secret.json"
    secret.write_text(content())
    (folder / "link.json").symlink_to(secret)
    os.mkfifo(folder / "pipe.json")
    (folder / "folder.json").mkdir()
    (folder / "huge.json").touch()
    os.truncate(folder / "huge.json", 2**40)
    write_request(folder, STOP_REQUESTED, OWN)
    found = list(RequestReader(run_dir, OWN).take(3))
    assert found.count(STOP) == 1
    reasons = {Path(one.path).name: one.why for one in found if isinstance(one, RequestRefusal)}
    assert reasons == {
        "folder.json": "Is a directory",
        "huge.json": "it has more than 64.0 KiB",
        "link.json": "it is a symbolic link",
        "pipe.json": "it is a named pipe, not a regular file",
    }
    assert secret.exists()


@pytest.mark.parametrize("name", ["a.txt", "a b.json", "\x1b[31m.json", "a" * 200 + ".json", "\udcff.json", "-a.json"])
def test_a_name_that_is_not_plain_is_refused_and_shown_without_control_characters(run_dir: RunDir, name: str) -> None:
    (run_dir.requests(3) / name).write_text(content())
    [refusal] = RequestReader(run_dir, OWN).take(3)
    assert isinstance(refusal, RequestRefusal)
    assert refusal.path.isprintable()
    assert len(refusal.path) < 200
    assert "letters, digits" in refusal.why


def test_a_folder_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    run_dir, elsewhere = RunDir(tmp_path / "run"), tmp_path / "elsewhere"
    elsewhere.mkdir()
    make_folder(run_dir.attempt(3))
    run_dir.requests(3).symlink_to(elsewhere)
    path = write_request(elsewhere, STOP_REQUESTED, OWN)
    assert list(RequestReader(run_dir, OWN).take(3)) == []
    assert path.exists()


def test_an_error_that_passes_refuses_nothing(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    write_request(run_dir.requests(3), STOP_REQUESTED, OWN)
    reader = RequestReader(run_dir, OWN)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patch:
        patch.setattr(outside, "read_json", fail)
        assert list(reader.take(3)) == []
    assert list(reader.take(3)) == [STOP]


def test_the_refusals_are_bounded(run_dir: RunDir) -> None:
    for number in range(150):
        (run_dir.requests(3) / f"{number:03}.json").touch()
    reader = RequestReader(run_dir, OWN)
    refused = [list(reader.take(3)) for _ in range(3)]
    assert [len(found) for found in refused] == [100, 0, 0]


def test_a_file_in_the_making_is_left_alone_and_removed_when_its_writer_is_gone(run_dir: RunDir) -> None:
    unfinished = run_dir.requests(3) / f".a.json.{2**22 + 1}.tmp"  # above the largest pid of Linux
    unfinished.write_text("{")
    assert list(RequestReader(run_dir, OWN).take(3)) == []
    remove_temporary(run_dir)
    assert not unfinished.exists()


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
def test_no_content_raises(tmp_path_factory: pytest.TempPathFactory, written: bytes) -> None:
    run_dir = RunDir(tmp_path_factory.mktemp("run"))
    make_folder(run_dir.requests(1))
    (run_dir.requests(1) / "a.json").write_bytes(written)
    [refusal] = RequestReader(run_dir, OWN).take(1)
    assert isinstance(refusal, RequestRefusal)
    assert len(refusal.why) <= 200
