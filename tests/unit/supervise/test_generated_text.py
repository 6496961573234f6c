"""No generated text, however much it looks like a failure, ends a run or keeps it from being started again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from prime_train.diagnose import cause as root_cause
from prime_train.diagnose.log_scanner import scan
from prime_train.diagnose.signatures import catalogue
from prime_train.events import AttemptEnded, Event, HangFound, Record
from prime_train.supervise.core import actions
from prime_train.supervise.core.attempt_end import build_end_event
from prime_train.supervise.core.fold import fold
from prime_train.supervise.core.policy import Policy, decide
from prime_train.supervise.core.state import Live, PendingKill, State
from prime_train.supervise.evidence.diagnose import EndEvidence, judge
from tests.system.supervise.test_policy import OPENED, history, launched

LOG = Path("/run/attempts/001/trainer.log")
STARTED: list[tuple[float, Event]] = [(0.0, OPENED), *launched(1)]
STEPS = "".join(f"2026-11-21 10:00:{step:02} INFO step {step} | loss: 2.3 | 1.2 s\n" for step in range(4))
FRAME = '  File "/src/train.py", line 3, in main\n    run()\n'
HEADER = "Traceback (most recent call last):\n"


class End(NamedTuple):
    """How a process really ended: its exit code, its last lines, and whether the supervisor ended it."""

    returncode: int
    text: str
    is_hang: bool = False


ENDS = (
    End(-9, ""),
    End(137, ""),
    End(-15, ""),
    End(-9, "", is_hang=True),
    End(1, f"{HEADER}{FRAME}rewards.ScoreTooLow: score 0.1 is below 0.2\n"),
    End(1, f"{HEADER}{FRAME}ConnectionRefusedError: [Errno 111] Connection refused\n"),
    End(1, f"{HEADER}{FRAME}torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients.\n"),
    End(-6, "Fatal Python error: Aborted\n\nCurrent thread 0x0 (most recent call first):\n"),
)
CHAIN = "The above exception was the direct cause of the following exception:"
PREFIXES = (
    "",
    "",
    "ERROR ",
    "2026-11-21 10:00:09 ERROR ",
    "[rank0]: ",
    "(EngineCore pid=12) ERROR 11-21 07:44:41 [a.py:1] ",
)
EXAMPLES = [signature.example for signature in catalogue().signatures]
LINES = st.one_of(
    st.sampled_from(EXAMPLES),
    st.sampled_from(EXAMPLES).map(lambda example: f"{HEADER}{FRAME}{example}"),
    st.sampled_from(
        (
            "ValueError: so n must be divisible by 7",
            "Killed",
            "KeyboardInterrupt",
            "Training finished",
            "=== attempt 2 ===",
            HEADER.strip(),
            FRAME.rstrip(),
            CHAIN,
            "slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T07:46:34 ***",
            "[1234.567890] Memory cgroup out of memory: Killed process 42 (python)",
        )
    ),
    st.text(max_size=80).map(lambda text: " ".join(text.splitlines())),
)
TEXTS = st.lists(st.tuples(st.sampled_from(PREFIXES), LINES).map("".join), max_size=8).map("\n".join)


def _state() -> State:
    return history(*STARTED)


def _end(log: str, end: End) -> AttemptEnded:
    """The event with which the supervisor ends an attempt that left this log."""
    live = Live(1, last_sign_s=0.0)
    if end.is_hang:
        live = replace(live, pending_kill=PendingKill(HangFound(1, 400.0, 300.0, "train"), 0.0))
    found = root_cause.judge([scan([log.encode("utf-8", "replace")], str(LOG), 1.79e9)]).cause
    evidence = EndEvidence(end.returncode, LOG, log[-4096:], 0, found)
    return build_end_event(_state(), end.returncode, judge(_state(), live, evidence), (), ())


def _next_action(ended: AttemptEnded) -> actions.Action:
    state = fold(_state(), Record(100.0, "supervisor", 9, ended))
    return decide(state, Policy(), now_s=10_000.0)


def _traceback(message: str) -> str:
    return f"{HEADER}{FRAME}{message}"


@settings(deadline=None, max_examples=200)
@example(
    "", _traceback(EXAMPLES[0]) + "\nslurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-11-21T07:46:34 ***", ENDS[6]
)
@given(TEXTS, TEXTS, st.sampled_from(ENDS))
def test_generated_text_neither_ends_a_run_nor_keeps_it_from_a_restart(early: str, late: str, end: End) -> None:
    assume(not late.endswith(CHAIN))  # no reader could separate it from the traceback that follows
    ended = _end(f"{early}\n{STEPS}{late}\n{end.text}", end)
    assert ended.outcome == "failed"
    assert isinstance(_next_action(ended), actions.PlanLaunch)


@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
@pytest.mark.parametrize("end", ENDS)
def test_a_traceback_in_the_text_before_the_one_that_ended_the_process_does_not_end_a_run(
    end: End, prefix: str
) -> None:
    for line in EXAMPLES:
        ended = _end(f"{STEPS}{prefix}{_traceback(line)}\n{end.text}", end)
        assert isinstance(_next_action(ended), actions.PlanLaunch), line


@pytest.mark.parametrize("line", ["ValueError: so n must be divisible by 7", *EXAMPLES])
def test_a_line_before_a_kill_does_not_end_a_run(line: str) -> None:
    assert isinstance(_next_action(_end(f"{STEPS}{line}\n", ENDS[0])), actions.PlanLaunch)


@pytest.mark.parametrize(
    "message",
    [
        "ModuleNotFoundError: No module named 'flash_attn'",
        "ValueError: Total number of attention heads (32) must be divisible by tensor parallel size (3).",
    ],
)
def test_the_traceback_that_ended_the_process_does_end_the_run(message: str) -> None:
    ended = _end(f"{STEPS}{HEADER}{FRAME}{message}\n", End(1, ""))
    assert isinstance(_next_action(ended), actions.Close)
