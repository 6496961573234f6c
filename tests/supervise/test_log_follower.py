"""A line that nobody foresaw ends the listening with a word, and not the run."""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

import pytest

from prime_train.events import LogNoticed
from prime_train.supervise import log_follower
from prime_train.supervise.log_follower import LogFollower, LogReader


def test_a_fault_of_the_search_itself_is_told_and_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a line that nobody foresaw")

    monkeypatch.setattr(LogReader, "poll", fails)
    monkeypatch.setattr(LogReader, "cause", fails)
    monkeypatch.setattr(log_follower, "_EVERY_S", 0.01)
    inbox: SimpleQueue[object] = SimpleQueue()
    own_log = tmp_path / "watches" / "ear.log"
    found = LogFollower((), (), 3, inbox, own_log)
    told = inbox.get(timeout=30.0)
    assert isinstance(told, LogNoticed)
    assert (told.attempt, told.signature, told.file) == (3, "UNREAD", str(own_log))
    assert "ValueError: a line that nobody foresaw" in told.what
    assert found.cause() is None
    assert own_log.read_text(encoding="utf-8").count("Traceback") == 2


def test_the_cause_of_healthy_logs_is_none_and_of_a_failure_its_line(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text(
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'\n", encoding="utf-8"
    )
    found = LogFollower((log,), (), 1, SimpleQueue(), tmp_path / "ear.log")
    cause = found.cause()
    assert cause is not None
    assert "KeyError" in cause.text
    found.end()
