from __future__ import annotations

import json
import os
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.events import EventLog, Follower, LaunchAsked, Record, StopAsked, encode, read
from prime_train.events import follower as follower_module
from prime_train.events.bounds import MOST_LINES
from prime_train.events.record import LINE_BYTES, Damage, describe

WRITER = "supervisor"


def write(directory: Path, *names: str) -> Path:
    """One life of a writer, with an event per name."""
    log = EventLog(directory, WRITER)
    for name in names:
        log.append(StopAsked(name))
    log.close()
    return log.path


def foreign_line(n: int) -> str:
    """A line of another program, which knows no checksum."""
    return json.dumps({"v": 2, "t": 1.0, "w": WRITER, "n": n, "id": "x", "kind": "stop_asked", "by": "foreign"}) + "\n"


def names(directory: Path) -> list[str]:
    return [record.event.by for record in read(directory) if isinstance(record.event, StopAsked)]


def damage_of(directory: Path) -> tuple[Damage, ...]:
    follower = Follower(directory)
    follower.poll()
    return follower.damage


def is_read_back(directory: Path) -> bool:
    """Whether the event of another life, and one more of it, come back to a follower that has read the rest."""
    follower = Follower(directory)
    follower.poll()
    log = EventLog(directory, WRITER)
    written = [log.append(StopAsked("next")), log.append(StopAsked("after"))]
    log.close()
    return [(one.life, one.seq) for one in follower.poll()] == [(one.life, one.seq) for one in written]


def test_a_deleted_line_is_missed_and_no_later_event_is_dropped(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "b", "c", "d")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:1] + lines[2:]))
    assert is_read_back(tmp_path)
    assert names(tmp_path) == ["a", "c", "d", "next", "after"]
    assert damage_of(tmp_path) == (Damage("supervisor.jsonl", missing=1),)


def test_a_file_that_is_cut_at_the_front_is_read_on(tmp_path: Path) -> None:
    path = write(tmp_path, *"abcdefgh")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[5:]))
    assert is_read_back(tmp_path)
    assert names(tmp_path) == ["f", "g", "h", "next", "after"]
    assert damage_of(tmp_path) == (Damage("supervisor.jsonl", missing=5),)


def test_a_foreign_line_with_a_high_number_changes_no_numbering(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    with path.open("a") as file:
        file.write(foreign_line(1_000_000))
    assert is_read_back(tmp_path)
    assert names(tmp_path) == ["a", "next", "after"]
    first = "line 2: its checksum does not fit"
    assert damage_of(tmp_path) == (Damage("supervisor.jsonl", damaged=1, first=first),)


@settings(max_examples=40)
@given(st.integers(0), st.integers(0, 7))
def test_a_flipped_bit_costs_at_most_its_line_and_the_next(at: int, bit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), *"abcdef")
        content = bytearray(path.read_bytes())
        content[at % len(content)] ^= 1 << bit
        path.write_bytes(content)
        assert is_read_back(Path(folder))
        found = names(Path(folder))
    assert len(found) >= 6
    assert found == [name for name in ("a", "b", "c", "d", "e", "f", "next", "after") if name in found]


@settings(max_examples=40)
@given(st.lists(st.integers(0, 200), max_size=40), st.booleans())
def test_after_any_content_of_the_file_the_next_events_come_back(pieces: list[int], is_cut: bool) -> None:
    """Pieces of lines in any order, as damage leaves them."""
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder), *"abcdefgh")
        content = path.read_bytes() + foreign_line(10**15).encode()
        parts = [content[start * 7 : start * 7 + 90] for start in pieces]
        path.write_bytes(b"\n".join(parts) if is_cut else b"".join(parts) + content)
        assert is_read_back(Path(folder))


HEAD = '{"v":2,"t":1,"w":"supervisor","n":1,"id":"x",'


def checked(text: str) -> bytes:
    """A line with a fitting checksum, as an attacker can write it."""
    body = text.encode()
    return body + b',"c":"%08x"}\n' % zlib.crc32(body)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param('{"v":2,"t":1e999,"w":"supervisor","n":1,"id":"x","kind":"stop_asked","by":"x"', id="time"),
        pytest.param('{"v":2,"t":-5,"w":"supervisor","n":1,"id":"x","kind":"stop_asked","by":"x"', id="past"),
        pytest.param(HEAD + '"kind":"stop_asked","by":["x"]', id="list"),
        pytest.param('{"v":2,"t":1,"w":"supervisor","n":1.5,"id":"x","kind":"stop_asked","by":"x"', id="position"),
        pytest.param('{"v":2,"t":1,"w":"supervisor","n":true,"id":"x","kind":"stop_asked","by":"x"', id="truth"),
        pytest.param('{"v":2,"t":1,"w":"supervisor","n":1,"id":{},"kind":"stop_asked","by":"x"', id="life"),
        pytest.param(HEAD + '"kind":["stop_asked"],"by":"x"', id="kind"),
        pytest.param(HEAD + '"kind":"clock_jumped","jump_s":Infinity', id="infinity"),
        pytest.param(HEAD + '"kind":"clock_jumped","jump_s":"5"', id="text"),
        pytest.param(HEAD + '"kind":"launch_asked","attempt":1,"resume_step":0,"roles":[[]]', id="roles"),
        pytest.param(HEAD + '"kind":"stop_asked","by":' + "[" * 200_000, id="depth"),
        pytest.param(HEAD + '"kind":"stop_asked","by":"' + "x" * (1 << 20) + '"', id="length"),
        pytest.param(HEAD + '"kind":"exited","code":' + "9" * 5000, id="digits"),
    ],
)  # fmt: skip
def test_a_line_of_wrong_types_numbers_or_depth_is_damaged(tmp_path: Path, body: str) -> None:
    path = write(tmp_path, "a")
    with path.open("ab") as file:
        file.write(checked(body))
    assert names(tmp_path) == ["a"]
    (found,) = damage_of(tmp_path)
    assert (found.damaged, found.first.split(":")[0]) == (1, "line 2")
    assert is_read_back(tmp_path)


PROGRESS = '"loss":1.0,"tokens_per_s":1.0,"tokens_seen":1'


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        pytest.param('"kind":"stop_asked","by":"x"', "its position is outside 0 to 10,000,000,000", id="position"),
        pytest.param(f'"kind":"progress","attempt":1,"step":{10**15},{PROGRESS}', "its step is", id="step"),
        pytest.param(f'"kind":"progress","attempt":1,"step":-1,{PROGRESS}', "its step is -1, outside 0", id="below"),
        pytest.param(f'"kind":"launch_asked","attempt":{2**60},"resume_step":0', "its attempt is", id="attempt"),
        pytest.param(f'"kind":"run_opened","run":"r","pid":{2**40},"max_steps":1,"version":"1"', "its pid", id="pid"),
        pytest.param('"kind":"clock_jumped","jump_s":1e300', "its jump_s is 1e+300, outside", id="seconds"),
        pytest.param(f'"kind":"clock_jumped","jump_s":{"9" * 4000}', "a field is missing or has a", id="float digits"),
        pytest.param(f'"kind":"backup_pruned","step":{"9" * 4000}', "its step is an integer of 4000", id="digits"),
    ],
)
def test_a_forged_number_is_damage_that_names_its_line_and_field(tmp_path: Path, fields: str, why: str) -> None:
    path = write(tmp_path, "a", "b")
    number = 2**63 - 1 if "position" in why else 2
    with path.open("ab") as file:
        file.write(checked(HEAD.replace('"n":1', f'"n":{number}') + fields))
    (found,) = damage_of(tmp_path)
    assert (found.damaged, found.missing) == (1, 0)
    assert found.first.startswith(f"line 3: {why}")
    assert f"1 damaged line, first damaged line 3: {why}" in describe([found])
    assert is_read_back(tmp_path)


@pytest.mark.parametrize("number", [MOST_LINES // 2, MOST_LINES // 2 + 1, MOST_LINES - 1, MOST_LINES])
def test_a_forged_position_leaves_positions_for_the_next_events(tmp_path: Path, number: int) -> None:
    path = write(tmp_path, "a")
    with path.open("ab") as file:
        file.write(checked(HEAD.replace('"n":1', f'"n":{number}') + '"kind":"stop_asked","by":"forged"'))
    assert is_read_back(tmp_path)
    assert names(tmp_path) == ["a", "forged", "next", "after"]


def test_kinds_and_versions_of_later_are_counted_and_no_loss(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    with path.open("ab") as file:
        file.write(checked(HEAD + '"kind":"moved"'))
        file.write(checked('{"v":3,"t":1,"w":"supervisor","n":2,"id":"x","kind":"stop_asked","by":7'))
    (found,) = damage_of(tmp_path)
    assert (found, found.is_lost, describe([found])) == (Damage("supervisor.jsonl", unknown=2), False, "")
    assert len(read(tmp_path)) == 3


def test_a_line_of_another_writer_is_foreign(tmp_path: Path) -> None:
    path = write(tmp_path, "a")
    with path.open("a") as file:
        file.write(encode(Record(2.0, "trainer-001-rank0", 1, LaunchAsked(7, 0), "x")) + "\n")
    assert read(tmp_path)[-1].event == StopAsked("a")
    assert damage_of(tmp_path) == (Damage("supervisor.jsonl", foreign=1),)


def test_what_is_no_regular_file_is_named_and_not_opened(tmp_path: Path) -> None:
    events = tmp_path / "events"
    write(events, "a")
    elsewhere = write(tmp_path / "elsewhere", "b")
    (events / "link.jsonl").symlink_to(elsewhere)
    os.mkfifo(events / "pipe.jsonl")
    (events / "folder.jsonl").mkdir()
    assert names(events) == ["a"]
    assert [(found.file, bool(found.unopened)) for found in damage_of(events)] == [
        ("folder.jsonl", True),
        ("link.jsonl", True),
        ("pipe.jsonl", True),
    ]


def test_a_file_that_is_cut_while_it_is_followed_loses_no_event_after_that(tmp_path: Path) -> None:
    log, follower = EventLog(tmp_path, WRITER), Follower(tmp_path)
    for name in "abcd":
        log.append(StopAsked(name))
    follower.poll()
    for size, name in ((10, "e" * 2000), (10, "f"), (0, "g")):  # it grows beyond what was read, or stays shorter
        os.truncate(log.path, size)
        written = log.append(StopAsked(name))
        assert [record.seq for record in follower.poll()] == [written.seq]
    log.close()


def test_a_line_without_an_end_is_read_once_and_costs_no_event_after_it(tmp_path: Path) -> None:
    path = write(tmp_path, "a", "b")
    follower = Follower(tmp_path)
    follower.poll()
    with open(path, "ab") as file:
        file.truncate(path.stat().st_size + 3 * LINE_BYTES)  # as a disk leaves it after a power cut
    assert follower.poll() == []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(follower_module, "open_regular", None)  # nothing has come: the file is not opened
        assert follower.poll() == []
    with open(path, "ab") as file:
        file.write(b"\0\n")
    assert follower.poll() == []
    assert follower.damage[0].damaged == 1
    assert is_read_back(tmp_path)
    os.truncate(path, 10)
    follower.poll()
    assert is_read_back(tmp_path)


def test_a_file_that_an_editor_replaced_is_written_on(tmp_path: Path) -> None:
    log, follower = EventLog(tmp_path, WRITER), Follower(tmp_path)
    log.append(StopAsked("a"))
    follower.poll()
    copy = tmp_path / "copy"
    copy.write_bytes(log.path.read_bytes())
    copy.replace(log.path)
    log.append(StopAsked("b"))
    assert names(tmp_path) == ["a", "b"]
    log.close()


@pytest.mark.parametrize("other", ["link", "file"])
def test_a_folder_of_events_that_is_none_is_an_error_with_a_fix(tmp_path: Path, other: str) -> None:
    events = tmp_path / "events"
    if other == "link":
        events.symlink_to(events)
    else:
        events.write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="may not be read") as raised:
        read(events)
    assert (raised.value.where, raised.value.fix) == (str(events), f"ls -ld {events}; then chown or chmod it")
