from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.programs.prime_rl.lines import (
    WORDS,
    BatchReady,
    Ended,
    FromScratch,
    GotSignal,
    Message,
    MetricsRow,
    Milestone,
    PartFailed,
    SaveBegun,
    Stepped,
    Traceback,
    parse_line,
    parse_row,
)

STEP = (
    "\x1b[32m12:01:02\x1b[0m SUCCESS Step 7 |  12.3s | Loss 0.1234 | Entropy 0.5000 | Mismatch KL 0.0010 | Grad. Norm"
    " 0.1 | LR 3.00e-06 | Throughput 12,345 tokens/s | MFU 30.1% | Peak Mem. 60.1 GiB"
)
LINES: list[tuple[str, Message | None]] = [
    (STEP, Stepped(7, 0.1234, 12345.0)),
    ('{"timestamp": "x", "level": "INFO", "message": "Step 8 | 1s | Loss -1.5e-3 | LR 1"}', Stepped(8, -0.0015, None)),
    ("Step 9 | 1s | Loss nan | Throughput 5 tokens/s", Stepped(9, math.nan, 5.0)),
    ("12:01:02    INFO Train batch 37/128 (28.9%) (+3 buffered)... 64 inflight", BatchReady(37, 128)),
    ("12:01:02    INFO Saving checkpoint at step 40", SaveBegun(40)),
    ("12:01:02    INFO Writing final checkpoint", SaveBegun(None)),
    ("12:01:02 SUCCESS RL trainer finished!", Ended("trainer")),
    ("12:01:02 SUCCESS SFT trainer finished!", Ended("trainer")),
    ("12:01:02 SUCCESS Orchestrator finished.", Ended("orchestrator")),
    ("12:01:02 SUCCESS RL training finished!", Ended("launcher")),
    ("12:01:02 SUCCESS Training finished!", Ended("launcher")),
    ("12:01:02   ERROR Error: Trainer failed with exit code 1", PartFailed("trainer", 1)),
    ("12:01:02   ERROR Orchestrator failed with exit code 1", PartFailed("orchestrator", 1)),
    ("12:01:02   ERROR Error: Env-train-words failed with exit code -9", PartFailed("env server words", -9)),
    ("12:01:02 WARNING Received SIGTERM, terminating all processes...", GotSignal()),
    ("12:01:02 WARNING Received interrupt signal, terminating all processes...", GotSignal()),
    ("WARNING No checkpoints found in /o/checkpoints. Starting from scratch.", FromScratch("/o/checkpoints")),
    ("Traceback (most recent call last):", Traceback()),
    ("12:01:02    INFO Starting inference on GPU(s) 0", Milestone("Starting inference on GPU(s) 0")),
    ("12:01:02 SUCCESS Step 7 | 12s | Reward 0.5000 | Trainable 8/8 (100.0%)", None),
    ("12:01:02    INFO Avg prompt throughput: 0.0 tokens/s", None),
    ('{"message": 7}', None),
    ("{torn", None),
]


@pytest.mark.parametrize(("line", "meant"), LINES)
def test_lines(line: str, meant: Message | None) -> None:
    found = parse_line(line)
    if isinstance(meant, Stepped) and meant.loss is not None and math.isnan(meant.loss):
        assert isinstance(found, Stepped)
        assert found.loss is not None
        assert math.isnan(found.loss)
    else:
        assert found == meant


@pytest.mark.parametrize(("line", "meant"), LINES)
def test_every_line_that_states_something_is_found_by_its_words(line: str, meant: Message | None) -> None:
    """Logs are searched for these words alone: a line without one of them would never be read."""
    assert meant is None or WORDS.search(line.encode())


@given(st.text())
def test_no_text_is_too_odd(text: str) -> None:
    parse_line(text)
    parse_row(text)


def test_rows_of_both_writers() -> None:
    assert parse_row('{"step": 3, "time": 1.0, "perf/throughput": 9.5}') == MetricsRow(3, tokens_per_s=9.5)
    assert parse_row('{"step": 3, "loss/mean": 0.5}') == MetricsRow(3, loss=0.5)
    assert parse_row('{"step": 3, "time/save_ckpt": 4.0, "time/forward_backward": 1.0}') == MetricsRow(
        3, save_s=4.0, is_last=True
    )
    assert parse_row('{"step": 3, "progress/total_tokens": 5000, "time/step": 2.0}') == MetricsRow(3, tokens_seen=5000)
    assert parse_row('{"step": 3, "loss/mean": NaN}') == MetricsRow(3)
    assert parse_row('{"step": 3, "loss/me') is None
    assert parse_row('{"time": 3}') is None
    assert parse_row("[]") is None
