from __future__ import annotations

from prime_train.events import AttemptEnded
from prime_train.views.diagnosis import attempt_lines

ENDED = AttemptEnded(
    *(2, 1, "failed", "oom", "torch.OutOfMemoryError: " + "x" * 1000, "the memory\nis full", "lower batch.micro_batch"),
    *("inference.log:7", 40, "CUDA001"),
)


def _plain(text: str, style: str) -> str:
    return f"<{text}>" if style == "red" else text


def test_the_cause_of_an_attempt_takes_five_lines() -> None:
    lines = attempt_lines(ENDED, _plain, "again from step 40 in 4 s")
    assert lines[0] == "<attempt 2 failed[CUDA001]>  oom  inference.log:7"
    assert [line[:8] for line in lines[1:]] == ["  what  ", "  why   ", "  fix   ", "  then  "]
    assert all(len(line) < 220 and "\n" not in line for line in lines)
    assert lines[2] == "  why   the memory is full"


def test_what_is_not_known_takes_no_line() -> None:
    bare = AttemptEnded(1, -9, "failed", "signal", "killed by signal 9", "", " ", "", 0)
    assert attempt_lines(bare, _plain) == ["<attempt 1 failed>  signal", "  what  killed by signal 9"]


def test_nothing_moves_the_cursor() -> None:
    hostile = AttemptEnded(1, 1, "failed", "bug", "\x1b[2J\x1b]0;title\x07boom", "", "", "\x1b[1m.log", 0)
    assert "\x1b" not in "\n".join(attempt_lines(hostile, _plain))
