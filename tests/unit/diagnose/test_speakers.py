"""Who speaks in a line is known by its form, whatever its words are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.diagnose.log_prefix import unwrap
from prime_train.diagnose.speakers import ALL_SPEAKERS, classify


@pytest.mark.parametrize(
    ("line", "speaker"),
    [
        ("ValueError: x", "exception"),
        ("requests.exceptions.ConnectTimeout: x", "exception"),
        ("socket.gaierror: [Errno -3] x", "exception"),
        ("KeyboardInterrupt", "exception"),
        ("2026-11-21 10:00:00 ERROR x", "error"),
        ("vllm: error: x", "error"),
        ("fatal: could not read Username", "error"),
        ("thread 'main' panicked at src/main.rs:4:5:", "error"),
        ("2026-11-21 10:00:00 WARNING x", "warning"),
        ("/a/b.py:3: UserWarning: x", "warning"),
        ("2026-11-21 10:00:00 INFO ValueError: x", "info"),
        ("DEBUG 11-21 07:40:38 [samples.py:12] x", "info"),
        ("[1234.567890] NVRM: x", "kernel"),
        ("Nov 21 07:46:34 node7 kernel: x", "kernel"),
        ("NVRM: Xid (PCI:0000:05:00): 79", "kernel"),
        ("Killed", "launcher"),
        ("run.sh: line 4: 99 Segmentation fault      (core dumped) python a.py", "launcher"),
        ("srun: error: node7: task 3: Out Of Memory", "error"),
        ("terminate called after throwing an instance of 'x'", "launcher"),
        ("node-1:1:2 [0] NCCL WARN Cuda failure 1", "launcher"),
        ("+ python train.py --lr 3", "command"),
        ("$ vllm serve model", "command"),
        ("{'loss': 2.3, 'epoch': 1}", "dump"),
        ("TrainingArguments(output_dir=a, lr=3)", "dump"),
        ("learning_rate: 3e-4", "dump"),
        ('    raise ValueError("x")', "dump"),
        ("so n must be divisible by 7", "plain"),
        ("assistant: the ValueError: x means that", "plain"),
    ],
)
def test_the_speaker_of_a_line(line: str, speaker: str) -> None:
    (found,) = unwrap(line)
    assert classify(found) == speaker


@given(st.text(max_size=300))
def test_every_line_has_a_speaker(text: str) -> None:
    for line in unwrap(text):
        assert classify(line) in ALL_SPEAKERS
