"""Logs that grow, flood, break off, appear late or cannot be read are followed at bounded cost and judged together."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue

import pytest

from prime_train.diagnose.cause import judge
from prime_train.diagnose.log_scanner import scan
from prime_train.events import LogNoticed
from prime_train.supervise.services import log_follower
from prime_train.supervise.services.log_follower import LogFollower, LogNotice, LogReader

CORPUS = Path(__file__).parents[2] / "corpus" / "logs"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
FULL = "OSError: [Errno 28] No space left on device\n"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
REJECTED = "Request rejected: prompt is longer than the limit\n"


def _add(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)
    return path


def _all(reader: LogReader) -> list[LogNotice]:
    """Polls until nothing is new."""
    told: list[LogNotice] = []
    before = -1
    while before != (before := sum(log._offset for log in reader._logs.values())):
        told += reader.poll()
    return told


def test_a_log_that_grows_is_known_at_any_moment(tmp_path: Path) -> None:
    trainer, server = tmp_path / "trainer.log", tmp_path / "inference.log"
    reader = LogReader([trainer, server])
    assert reader.poll() == ()
    assert reader.diagnosis().cause is None
    _add(server, OOM[:20])
    reader.poll()
    assert reader.diagnosis().cause is None
    _add(server, OOM[20:])
    reader.poll()
    _add(trainer, "ConnectionError: inference is gone\n" + DEAD)
    reader.poll()
    found = reader.diagnosis()
    assert found.cause is not None
    assert (found.cause.id, found.cause.file, found.cause.line) == ("CUDA001", str(server), 1)
    assert reader.cause() == found.cause


def test_the_first_in_time_wins_although_no_line_gives_a_time(tmp_path: Path) -> None:
    first, second = tmp_path / "b.log", tmp_path / "a.log"
    reader = LogReader([second, first])
    _add(first, FULL)
    reader.poll()
    time.sleep(0.01)  # the clock has to move between the two, nothing more
    _add(second, OOM)
    os.utime(second, (1.0, 1.0))  # here the slow clock of the file system does not matter
    reader.poll()
    cause = reader.cause()
    assert cause is not None
    assert cause.id == "OS001"


@pytest.mark.parametrize("hours", [-8.0, 5.75])
def test_a_log_in_local_time_is_set_beside_one_without_times(tmp_path: Path, hours: float) -> None:
    there = (datetime.now(UTC) + timedelta(hours=hours)).strftime("%Y-%m-%d %H:%M:%S")
    local, bare = tmp_path / "local.log", tmp_path / "bare.log"
    reader = LogReader([local, bare])
    _add(bare, FULL)
    reader.poll()
    later = (datetime.now(UTC) + timedelta(hours=hours, seconds=2)).strftime("%Y-%m-%d %H:%M:%S")
    _add(local, f"{there} INFO fine\n{later} ERROR {OOM}")
    reader.poll()
    cause = reader.cause()
    assert cause is not None
    assert cause.id == "OS001"


def test_the_last_line_counts_although_it_has_no_end(tmp_path: Path) -> None:
    reader = LogReader([_add(tmp_path / "a.log", "fine\n" + OOM.rstrip())])
    assert reader.poll() == ()
    cause = reader.cause()
    assert cause is not None
    assert (cause.id, cause.line) == ("CUDA001", 2)


def test_what_slows_a_run_is_reported_once_and_while_it_runs(tmp_path: Path) -> None:
    log = _add(tmp_path / "a.log", "fine\n" + REJECTED * 3)
    reader = LogReader([log])
    (notice,) = reader.poll()
    assert (notice.file, notice.line) == (str(log), 2)
    assert notice.signature == "VLLM034"
    _add(log, REJECTED)
    assert reader.poll() == ()


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.log")), ids=lambda path: path.stem)
def test_a_log_states_the_same_while_it_grows_as_when_it_is_whole(tmp_path: Path, path: Path) -> None:
    data = path.read_bytes().partition(b"\n")[2]
    whole = judge([scan([data], "whole", path.stat().st_mtime)]).cause
    draw, log = random.Random(path.name), tmp_path / "a.log"
    reader = LogReader([log])
    while data:
        size = draw.randint(1, 3000)
        _add(log, data[:size])
        data = data[size:]
        reader.poll()
    cause = reader.cause()
    assert (cause and (cause.id, cause.line)) == (whole and (whole.id, whole.line))


def test_logs_that_appear_in_a_folder_are_followed_and_old_ones_from_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_follower, "_FIND_LOGS_S", 0.0)
    old = _add(tmp_path / "logs" / "orchestrator.log", OOM)
    reader = LogReader([tmp_path / "trainer.log"], [tmp_path / "logs", tmp_path / "torchrun"])
    reader.poll()
    assert reader.diagnosis().cause is None
    _add(old, "fine\n")
    new = _add(tmp_path / "torchrun" / "attempt_0" / "1" / "stderr.log", FULL)
    _add(tmp_path / "logs" / "notes.txt", DEAD)
    reader.poll()
    cause = reader.cause()
    assert cause is not None
    assert (cause.id, cause.file) == ("OS001", str(new))


def test_a_log_that_cannot_be_read_is_reported_and_the_others_count(tmp_path: Path) -> None:
    (tmp_path / "a.log").mkdir()
    reader = LogReader([tmp_path / "a.log", _add(tmp_path / "b.log", OOM)])
    (notice,) = reader.poll()
    assert (notice.signature, notice.file) == ("UNREAD", str(tmp_path / "a.log"))
    assert "cannot be read" in notice.what
    assert [error.where for error in reader.unread] == [str(tmp_path / "a.log")]
    cause = reader.cause()
    assert cause is not None
    assert cause.id == "CUDA001"


@pytest.mark.parametrize("by", ["cut", "replaced", "gone"])
def test_a_log_that_begins_again_is_read_from_its_beginning(tmp_path: Path, by: str) -> None:
    log = _add(tmp_path / "a.log", "fine\n" * 1000)
    reader = LogReader([log])
    _all(reader)
    if by == "cut":
        os.truncate(log, 0)
    else:
        log.rename(tmp_path / "a.log.1")
    if by != "gone":
        _add(log, OOM)
    cause = reader.cause()
    assert (cause.id if cause else None) == (None if by == "gone" else "CUDA001")


def test_a_line_of_ten_megabytes_is_followed_in_little_memory(tmp_path: Path) -> None:
    log = _add(tmp_path / "a.log", b"x" * 10_000_000 + b"\n" + OOM.encode())
    reader = LogReader([log])
    _all(reader)
    assert len(reader._logs[log].scanner._rest) < 256 * 1024
    cause = reader.cause()
    assert cause is not None
    assert (cause.id, cause.line) == ("CUDA001", 2)


def test_a_flood_of_lines_that_all_match_hides_nothing(tmp_path: Path) -> None:
    """The cause stands in the middle of another log's flood, and of its own."""
    flood = "".join(
        f"2026-11-21 10:00:{i % 60:02} ERROR retry {i}: Connection refused by 10.0.0.{i % 9}\n" for i in range(60_000)
    )
    xids = "".join(
        f"[ {i}.5] NVRM: Xid (PCI:0000:3b:00): {13 if i != 40_000 else 79}, pid={i}\n" for i in range(60_000)
    )
    logs = [_add(tmp_path / "flood.log", flood), _add(tmp_path / "kernel.log", xids)]
    reader = LogReader(logs)
    _all(reader)
    hits = reader._logs[logs[1]].scanner.so_far().hits
    assert any(hit.at == 40_001 and hit.match is not None and hit.match.parts.get("xid") == "79" for hit in hits)
    assert len(hits) < 1000


def test_in_a_hurry_lines_are_skipped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "_CALM_BYTES", 64 * 1024)
    monkeypatch.setattr(log_follower, "_FAST_SCAN_LINES", 10)
    words = ("ab", "cd", "gh", "kl", "mn", "pq")
    unlike = "".join(
        f"ERROR {a}{b}{c}{d}{e} connection refused\n"
        for a in words
        for b in words
        for c in words
        for d in words
        for e in words
    )
    half = len(unlike) // 2
    reader = LogReader([_add(tmp_path / "a.log", unlike[:half] + "\n" + OOM + unlike[half:] * 3)])
    told = _all(reader)
    (skipped,) = [notice for notice in told if notice.signature == "SKIPPED"]
    assert "too fast" in skipped.what
    cause = reader.cause()
    assert cause is not None
    assert cause.id == "CUDA001"


def test_of_a_log_far_ahead_only_the_end_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_follower, "_MOST_BEHIND_BYTES", 1_000_000)
    monkeypatch.setattr(log_follower, "_CALM_BYTES", 200_000)
    log = tmp_path / "a.log"
    log.touch()
    with open(log, "r+b") as file:
        file.truncate(10_000_000_000)  # a hole, which is never read
    _add(log, "\n" + OOM)
    reader = LogReader([log])
    _all(reader)
    assert reader._logs[log].skipped_bytes > 9_000_000_000
    cause = reader.cause()
    assert cause is not None
    assert cause.id == "CUDA001"


def test_a_poll_keeps_to_its_budget_and_the_rest_comes_later(tmp_path: Path) -> None:
    log = _add(tmp_path / "a.log", "fine, and nothing else to say\n" * 100_000 + OOM)
    reader = LogReader([log])
    reader.poll(budget_s=0.0)
    assert reader._logs[log]._offset == 0
    reader.poll(budget_s=1e-9)
    assert reader._logs[log]._offset <= 128 * 1024
    cause = reader.cause(budget_s=0.0)
    assert cause is not None
    assert cause.id == "CUDA001"


def test_a_real_process_that_writes_as_fast_as_it_can(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    program = (
        f"import time\nn = 0\nend = time.monotonic() + 3\nprint({OOM!r}, end='')\n"
        "while time.monotonic() < end:\n"
        "    print(*(f'ERROR {n + i} ConnectionError: connection refused by {i}' for i in range(10_000)), sep='\\n')\n"
        "    n += 10_000\n    time.sleep(0.1)\n"
    )
    with open(log, "wb") as out:
        child = subprocess.Popen([sys.executable, "-c", program], stdout=out)
    reader = LogReader([log])
    while child.poll() is None:
        reader.poll(0.2)
        time.sleep(0.05)
    cause = reader.cause()
    lines = log.read_bytes().count(b"\n")
    assert cause is not None
    assert (cause.id, cause.line) == ("CUDA001", 1)
    assert lines > 10_000


def test_an_error_of_the_follower_is_reported_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a strange line")

    monkeypatch.setattr(LogReader, "poll", fails)
    monkeypatch.setattr(LogReader, "cause", fails)
    monkeypatch.setattr(log_follower, "_EVERY_S", 0.01)
    inbox: SimpleQueue[object] = SimpleQueue()
    own_log = tmp_path / "watches" / "log_follower.log"
    follower = LogFollower((), (), 3, inbox, own_log)
    notice = inbox.get(timeout=30.0)
    assert isinstance(notice, LogNoticed)
    assert (notice.attempt, notice.signature, notice.file) == (3, "UNREAD", str(own_log))
    assert "ValueError: a strange line" in notice.what
    assert follower.cause() is None
    assert own_log.read_text(encoding="utf-8").count("Traceback") == 2


def test_the_cause_of_healthy_logs_is_none_and_of_a_failure_its_line(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text(
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'\n", encoding="utf-8"
    )
    follower = LogFollower((log,), (), 1, SimpleQueue(), tmp_path / "log_follower.log")
    cause = follower.cause()
    assert cause is not None
    assert "KeyError" in cause.text
    with open(log, "a", encoding="utf-8") as file:
        file.write("Fatal Python error: Aborted\n")  # by the signal that follows
    assert follower.cause() == cause
    follower.end()
