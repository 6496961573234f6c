from __future__ import annotations

import errno
import io
import math
import os
import resource
import subprocess
import sys
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train import events
from prime_train.core.errors import UserError
from prime_train.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    EventLog,
    Follower,
    LaunchAsked,
    Phase,
    Progress,
    Record,
    RunOpened,
    Sampled,
    StopAsked,
    Unrecognised,
    decode,
    encode,
    read,
)
from prime_train.events.bounds import MEASURED, bound_numbers
from prime_train.events.follower import _THIN_BYTES, PROGRESS, ReadFile, number_lines, thin
from prime_train.supervise.core.fold import fold_all

_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(),
    bool: st.booleans(),
    tuple[str, ...]: st.lists(st.text()).map(tuple),
    int | None: st.none() | st.integers(),
    float | None: st.none() | st.floats(allow_nan=False),
}


def _event(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    hints.pop("kind", None)
    measured = {name: st.floats(allow_nan=False) for name in hints if name in MEASURED}
    return st.builds(cls, **({name: _VALUES[hint] for name, hint in hints.items()} | measured))


any_event: st.SearchStrategy[Event] = st.one_of(
    *(_event(cls) for cls in get_args(events.Event) if cls is not Unrecognised)
)


@given(any_event, st.floats(0, 1e10))
def test_what_is_written_is_read_back(event: Event, time_s: float) -> None:
    """Whatever the numbers are: the writer brings them into the ranges that a reader accepts."""
    record = Record(round(time_s, 6), "supervisor", 7, bound_numbers(event))
    assert bound_numbers(record.event) == record.event
    assert decode(encode(record)) == record


def add_checksum(body: str) -> str:
    return f'{body},"c":"{zlib.crc32(body.encode()):08x}"}}'


@given(st.text() | st.integers().map(str) | st.just('{"kind": "progress", "t": 1}') | st.just("[1]"))
def test_a_foreign_line_is_no_record(line: str) -> None:
    found = decode(line)
    assert found is None or isinstance(found.event, Unrecognised)


def test_fields_of_a_later_version_are_left_out_and_kinds_of_it_are_named() -> None:
    written = encode(Record(1.0, "supervisor", 0, StopAsked("SIGINT"), "a"))
    body = written.rpartition(',"c":')[0]
    more, moved = f'{body},"mood":"good"', body.replace("stop_asked", "moved")
    assert decode(add_checksum(more)) == Record(1.0, "supervisor", 0, StopAsked("SIGINT"), "a")
    assert decode(add_checksum(moved)) == Record(1.0, "supervisor", 0, Unrecognised("moved"), "a")


def test_a_line_without_a_fitting_checksum_is_no_record() -> None:
    written = encode(Record(1.0, "supervisor", 0, StopAsked("SIGINT"), "a"))
    assert decode(written) is not None
    assert decode(written.rpartition(',"c":')[0] + "}") is None
    assert decode(written.replace("SIGINT", "SIGTERM")) is None


def test_a_loss_that_is_not_a_number_survives(tmp_path: Path) -> None:
    EventLog(tmp_path, "a").append(Progress(1, 2, math.nan, math.inf, 3))
    (record,) = read(tmp_path)
    assert isinstance(record.event, Progress)
    assert math.isnan(record.event.loss or 0.0)


@pytest.mark.parametrize("text", ["one\u2028line", "one\x85line", "one\nline", "\udc80 is half a pair", "\x00\x0b\x0c"])
def test_no_text_splits_a_line(tmp_path: Path, text: str) -> None:
    log = EventLog(tmp_path, "a")
    log.append(Sampled(1, 2, "prompt", text))
    log.append(StopAsked("SIGINT"))
    assert [record.event for record in read(tmp_path)] == [Sampled(1, 2, "prompt", text), StopAsked("SIGINT")]


def test_follow_gives_each_record_once_and_waits_for_the_rest_of_a_torn_line(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "events")
    assert follower.poll() == []
    log = EventLog(tmp_path / "events", "a")
    first = log.append(Phase(1, "setup"))
    line = encode(Record(first.time_s, "a", 1, Phase(1, "train"))) + "\n"
    with open(log.path, "a", encoding="utf-8") as file:
        file.write(line[:10])
        file.flush()
        assert [record.event for record in follower.poll()] == [Phase(1, "setup")]
        assert follower.poll() == []
        file.write(line[10:])
    assert [record.event for record in follower.poll()] == [Phase(1, "train")]


def test_writers_are_merged_by_time_and_none_is_reordered_in_itself(tmp_path: Path) -> None:
    lines = {"a": [(10.0, 0), (5.0, 1), (30.0, 2)], "b": [(7.0, 0), (20.0, 1)]}  # a's clock was set back
    for writer, stamps in lines.items():
        text = "".join(encode(Record(t, writer, n, StopAsked(f"{writer}{n}"))) + "\n" for t, n in stamps)
        (tmp_path / f"{writer}.jsonl").write_text(text)
    found = [record.event.by for record in read(tmp_path) if isinstance(record.event, StopAsked)]
    assert [by for by in found if by[0] == "a"] == ["a0", "a1", "a2"]
    assert [by for by in found if by[0] == "b"] == ["b0", "b1"]
    assert found[0] == "b0"
    assert found[-1] == "a2"


@pytest.mark.parametrize(
    "torn", ['{"v":2,"t":1.0,"w":"a","n":1,"ki', '{"v":2,"t":1.0,"w":"a","n":1,"kind":"stop_asked","by":"x"}']
)
def test_a_torn_last_line_costs_only_itself(tmp_path: Path, torn: str) -> None:
    EventLog(tmp_path, "a").append(Phase(1, "setup"))
    with open(tmp_path / "a.jsonl", "a", encoding="utf-8") as file:
        file.write(torn)
    EventLog(tmp_path, "a").append(Phase(2, "setup"))
    found = read(tmp_path)
    assert found[0].event == Phase(1, "setup")
    assert found[-1].event == Phase(2, "setup")
    assert len({record.seq for record in found}) == len(found)


def test_a_full_disk_is_an_error_and_the_log_goes_on_after_it(tmp_path: Path) -> None:
    program = f"""
import resource, signal
from pathlib import Path
from prime_train.events import EventLog, StopAsked
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = EventLog(Path({str(tmp_path)!r}), "a")
log.append(StopAsked("one"))
resource.setrlimit(resource.RLIMIT_FSIZE, (log.path.stat().st_size + 20, {resource.RLIM_INFINITY}))
try:
    log.append(StopAsked("two"))
except OSError as error:
    print(error.errno)
resource.setrlimit(resource.RLIMIT_FSIZE, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))
log.append(StopAsked("three"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(27)  # EFBIG, of the second of two writes
    assert [record.event for record in read(tmp_path)] == [StopAsked("one"), StopAsked("three")]


def test_eight_writers_at_once_tear_no_line(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from prime_train.events import EventLog, Phase
log = EventLog(Path(sys.argv[1]), sys.argv[2])
for step in range(200):
    log.append(Phase(1, str(step), "x" * 300))
"""
    writers = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path), f"rank{rank}"], env=os.environ)
        for rank in range(8)
    ]
    follower, found = Follower(tmp_path), []
    while any(writer.poll() is None for writer in writers):
        found += follower.poll()
    found += follower.poll()
    assert [writer.returncode for writer in writers] == [0] * 8
    assert len(found) == 8 * 200
    assert len({(record.writer, record.seq) for record in found}) == 8 * 200


def test_of_a_long_file_that_is_followed_no_step_is_left_out(tmp_path: Path) -> None:
    """A supervisor that was stopped for hours finds a megabyte more, and learns from it how long a step takes."""
    log, follower = EventLog(tmp_path, "trainer-001-rank0"), Follower(tmp_path)
    log.append(Phase(1, "train"))
    assert len(follower.poll()) == 1
    first = log.append(Progress(1, 1, 2.0, 9.0, 1))
    many = _THIN_BYTES // len(encode(first)) + 10
    with open(log.path, "a", encoding="utf-8") as file:
        file.writelines(f"{encode(replace(first, seq=first.seq + number))}\n" for number in range(1, many + 1))
    assert len(follower.poll()) == many + 1
    assert len(Follower(tmp_path).poll()) == 3
    log.close()


@given(st.lists(st.sampled_from("ppppes"), min_size=1, max_size=60), st.integers(1, 9))
def test_what_a_long_file_leaves_out_changes_nothing_that_is_known(kinds: list[str], in_block: int) -> None:
    """p: progress, e: an evaluation, s: a save. Of the steps only the gaps between them are forgotten."""
    written = [
        Record(0.0, "supervisor", 0, RunOpened("r", 1, 300, "0")),
        Record(1.0, "supervisor", 1, LaunchAsked(1, 0)),
    ]
    for number, kind in enumerate(kinds):
        happened: Event = Progress(1, number, 1.0 / (number + 1), 9.0, number)
        happened = Evaluated(1, number, 2.0, 10) if kind == "e" else happened
        happened = CheckpointSaved(1, number, 1, 0.0, 0.0) if kind == "s" else happened
        written.append(Record(2.0 + number, "trainer-001-rank0", number, happened))
    lines = [encode(record).encode() for record in written]
    blocks = [(first, lines[first : first + in_block]) for first in range(0, len(lines), in_block)]
    kept = [decode(line.decode()) for _, line in thin(blocks, PROGRESS)]
    in_one = [decode(line.decode()) for _, line in thin([(0, lines)], PROGRESS)]
    assert kept == in_one
    assert len(kept) <= 3 * sum(kind != "p" for kind in kinds) + 4
    whole, left = fold_all(written), fold_all(record for record in kept if record is not None)
    assert replace(left, learned=whole.learned) == whole


def test_events_of_another_user_are_reported_and_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", denied)  # root may read what is forbidden
    with pytest.raises(UserError, match="may not be read") as raised:
        read(tmp_path / "events")
    assert (raised.value.where, "chmod" in raised.value.fix) == (str(tmp_path / "events"), True)


class Slow(io.BytesIO):
    """A file whose writer is only a few bytes ahead of each read."""

    def __init__(self, content: bytes, ahead_bytes: int) -> None:
        super().__init__(content)
        self._ahead_bytes = ahead_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        del size
        return super().read(self._ahead_bytes)


@given(
    st.lists(st.integers(0, 12).map(lambda length: b"x" * length), max_size=20),
    st.booleans(),
    st.integers(1, 40),
)
def test_a_file_is_read_by_whole_lines_however_its_writer_divides_them(
    lines: list[bytes], is_finished: bool, ahead_bytes: int
) -> None:
    content = b"\n".join(lines) + b"\n" * is_finished
    file = ReadFile("rank0.jsonl", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prime_train.events.follower.LINE_BYTES", 8)
        found = list(number_lines(file.blocks(Slow(content, ahead_bytes))))
    complete = content.split(b"\n")[:-1]
    assert found == list(enumerate(line if len(line) <= 8 else b"too long" for line in complete))
    assert file.lines == len(complete)
    assert file.offset == content.rfind(b"\n") + 1


@given(
    st.lists(st.integers(0, 12).map(lambda length: b"x" * length), max_size=12), st.integers(0, 9), st.integers(1, 40)
)
def test_reads_of_a_file_that_grows_give_the_lines_of_the_whole(
    lines: list[bytes], polls: int, ahead_bytes: int
) -> None:
    content, file = b"\n".join(lines), ReadFile("rank0.jsonl", 1)
    found: list[tuple[int, bytes]] = []
    sizes = [len(content) * poll // (polls + 1) for poll in range(1, polls + 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prime_train.events.follower.LINE_BYTES", 8)
        for size in sizes:
            stream = Slow(content[:size], ahead_bytes)
            stream.seek(file.offset + file.passed_bytes)
            found += number_lines(file.blocks(stream))
            assert size - file.offset - file.passed_bytes <= 8  # what the next read begins with
    complete = content.split(b"\n")[:-1]
    assert found == list(enumerate(line if len(line) <= 8 else b"too long" for line in complete))
    assert file.offset == content.rfind(b"\n") + 1


def test_a_line_that_is_finished_between_two_reads_is_whole(tmp_path: Path) -> None:
    log = EventLog(tmp_path, "rank0")
    written = [log.append(Phase(1, str(step))).event for step in range(3)]
    file = ReadFile("rank0.jsonl", 1)
    assert [record.event for record in file.read(Slow(log.path.read_bytes(), 50), None)] == written
    assert file.damaged == 0
