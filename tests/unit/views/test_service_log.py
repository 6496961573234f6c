from __future__ import annotations

from pathlib import Path

from prime_train.supervise.core.state import ChildProcess, Live, State
from prime_train.views.run.logs import LineTail, ServiceLog


def _state(*logs: tuple[str, Path]) -> State:
    return State(live=Live(1, 0.0, children=tuple(ChildProcess(role, 1, 1, str(log)) for role, log in logs)))


def test_lines_come_whole_and_once(tmp_path: Path) -> None:
    log = tmp_path / "inference.log"
    shown, state = ServiceLog(), _state(("trainer", tmp_path / "trainer.log"), ("inference", log))
    assert shown.more(State()) == []
    assert shown.more(state) == []
    log.write_bytes(b"\x1b[32mready\x1b[0m\nhalf a")
    assert shown.more(state) == ["inference | ready"]
    log.write_bytes(b"\x1b[32mready\x1b[0m\nhalf a line\n")
    assert shown.more(state) == ["inference | half a line"]
    assert shown.more(state) == []


def test_the_log_of_the_next_attempt_is_begun_again(tmp_path: Path) -> None:
    first, second = tmp_path / "1.log", tmp_path / "2.log"
    first.write_bytes(b"first\n")
    second.write_bytes(b"second\n")
    shown = ServiceLog()
    assert shown.more(_state(("inference", first))) == ["inference | first"]
    assert shown.more(_state(("inference", second))) == ["inference | second"]


def test_only_the_end_of_a_flood_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_bytes(b"x" * 50 + b"\n" + b"y" * 99 + b"\n" + b"z" * 200_000 + b"\nlast\n")
    lines = ServiceLog().more(_state(("inference", log)))
    assert lines[0].startswith("inference | ... ")
    assert lines[-1] == "inference | last"
    assert sum(map(len, lines)) < 1000
    log.write_bytes(b"\x00\x1b[2J" + b"w" * 5000 + b"\n")
    (line,) = ServiceLog().more(_state(("inference", log)))
    assert "\x1b" not in line
    assert len(line) < 500


def test_a_file_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = LineTail(path)
    assert lines.more() == (0, [])
    path.write_bytes(b"a\nb\nto")
    assert lines.more() == (0, [b"a", b"b"])
    path.write_bytes(b"a\nb\ntorn\n")
    assert lines.more() == (0, [b"torn"])
    other = tmp_path / "other"
    other.write_bytes(b"a\nc\n")
    other.replace(path)
    assert lines.more() == (0, [b"a", b"c"])
