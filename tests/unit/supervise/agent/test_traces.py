"""Which traces an agent sends: whole ones, each once, in parts of a bounded size, and nothing else from the folder."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

import pytest

from prime_train.bus.base import MESSAGE_BYTES, encode_message
from prime_train.bus.fleet_traces import PART_BYTES, TRACE_BYTES, TracePart, read_part
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.supervise.agent.traces import TraceQueue, list_traces, read_local_trace

NAME = "step_5.trace.json.gz"


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    found = RunDir(tmp_path / "run")
    found.profile.mkdir(parents=True)
    return found


def write(run_dir: RunDir, size_bytes: int, name: str = NAME) -> bytes:
    content = os.urandom(size_bytes)
    (run_dir.profile / name).write_bytes(content)
    return content


def take(queue: TraceQueue) -> TracePart:
    message = queue.next_message()
    assert message is not None
    assert message is queue.next_message(), "it is the same one until it is acknowledged"
    assert len(encode_message(message.body, message.id)) <= MESSAGE_BYTES
    queue.acknowledge()
    return read_part(message.body)


def take_all(queue: TraceQueue) -> list[TracePart]:
    found = []
    while queue.next_message() is not None:
        found.append(take(queue))
    return found


@pytest.mark.parametrize("size_bytes", [1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, TRACE_BYTES])
def test_the_parts_of_a_trace_are_its_bytes(run_dir: RunDir, size_bytes: int) -> None:
    content = write(run_dir, size_bytes)
    parts = take_all(TraceQueue(run_dir))
    assert b"".join(part.content for part in parts) == content
    assert [part.number for part in parts] == list(range(len(parts)))
    expected = {(NAME, size_bytes, sha256(content).hexdigest())}
    assert {(part.name, part.size_bytes, part.digest) for part in parts} == expected


def test_a_trace_is_sent_once_also_by_the_next_agent_and_again_when_it_changes(run_dir: RunDir) -> None:
    write(run_dir, 10)
    queue = TraceQueue(run_dir)
    assert len(take_all(queue)) == 1
    assert queue.next_message() is None
    assert TraceQueue(run_dir).next_message() is None
    write(run_dir, 11)
    assert take(TraceQueue(run_dir)).size_bytes == 11
    write(run_dir, 3, "step_6.trace.json.gz")
    assert [part.name for part in take_all(queue)] == [NAME, "step_6.trace.json.gz"]


def test_an_agent_that_was_killed_between_two_parts_begins_with_the_first(run_dir: RunDir) -> None:
    content = write(run_dir, 2 * PART_BYTES)
    assert take(TraceQueue(run_dir)).number == 0
    again = TraceQueue(run_dir)
    (run_dir.profile / NAME).unlink()  # another attempt traces the same step: the parts stay those of one file
    first = again.next_message()
    assert first is None
    (run_dir.profile / NAME).write_bytes(content)
    first_part = take(again)
    (run_dir.profile / "other").write_bytes(b"y" * 2 * PART_BYTES)
    (run_dir.profile / "other").rename(run_dir.profile / NAME)
    assert first_part.content + take(again).content == content
    assert take(again).content == b"y" * PART_BYTES


def test_one_that_is_too_large_is_a_note(run_dir: RunDir) -> None:
    with open(run_dir.profile / NAME, "wb") as file:
        file.truncate(TRACE_BYTES + 1)
    queue = TraceQueue(run_dir)
    part = take(queue)
    assert (part.content, part.size_bytes) == (b"", TRACE_BYTES + 1)
    assert part.note == "it has 16.0 MiB, and at most 16.0 MiB are sent: copy it from the folder of the run"
    assert queue.next_message() is None
    with pytest.raises(UserError, match="the trace cannot be read"):
        read_local_trace(run_dir, NAME)


def test_nothing_else_in_the_folder_is_sent(run_dir: RunDir, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret")
    (run_dir.profile / "step_1.trace.json.gz").symlink_to(tmp_path / "secret")
    (run_dir.profile / "step_2.trace.json.gz").mkdir()
    os.mkfifo(run_dir.profile / "step_3.trace.json.gz")
    for name in (
        "step_4.trace.json.gz.tmp",
        ".step_4.trace.json.gz.7.tmp",
        "step_4.memory.pickle",
        "a b.trace.json.gz",
    ):
        (run_dir.profile / name).write_bytes(b"x")
    (run_dir.profile / "step_5.trace.json.gz").write_bytes(b"")
    assert TraceQueue(run_dir).next_message() is None
    assert list_traces(run_dir) == []
    for name in ("step_1.trace.json.gz", "step_2.trace.json.gz", "step_3.trace.json.gz", "../secret", "", "secret"):
        with pytest.raises(UserError):
            read_local_trace(run_dir, name)


def test_a_folder_that_is_a_link_is_not_listed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / NAME).write_bytes(b"x")
    run_dir = RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    run_dir.profile.symlink_to(tmp_path / "elsewhere")
    assert list_traces(run_dir) == []
    with pytest.raises(UserError):
        read_local_trace(run_dir, NAME)


def test_so_many_traces_and_no_more_are_sent(run_dir: RunDir) -> None:
    for number in range(1, 80):
        write(run_dir, 1, f"step_{number}.trace.json.gz")
    assert len(take_all(TraceQueue(run_dir))) == 64
    assert take_all(TraceQueue(run_dir)) == []


@pytest.mark.parametrize("content", ["", "[", "{}", '{"x": 1}', f'{{"{NAME}": [1, 2]}}', "5"])
def test_a_damaged_list_of_what_was_sent_sends_it_again(run_dir: RunDir, content: str) -> None:
    write(run_dir, 5)
    run_dir.bus.mkdir(parents=True)
    (run_dir.bus / "traces.json").write_text(content)
    assert take(TraceQueue(run_dir)).size_bytes == 5
