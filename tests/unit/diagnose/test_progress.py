"""Lines that show work, and lines that only look so."""

from __future__ import annotations

import pytest

from prime_train.diagnose.progress import ENOUGH_PROGRESS, measure_progress


@pytest.mark.parametrize(
    ("line", "weight"),
    [
        ('info:     10.0.0.1:80 - "post /v1/chat/completions http/1.1" 200 ok', ENOUGH_PROGRESS),
        ("avg generation throughput: 812.4 tokens/s, running: 3 reqs", ENOUGH_PROGRESS),
        ("job 12 exited with code 0", ENOUGH_PROGRESS),
        ("[launcher] return code = 0", ENOUGH_PROGRESS),
        ("{'train_runtime': 12.3, 'epoch': 3.0}", ENOUGH_PROGRESS),
        ("step 12 | time: 3.2s | loss: 0.31", 1),
        ("{'loss': 2.31, 'grad_norm': 0.9, 'epoch': 0.1}", 1),
        ("iteration 100/ 5000 | elapsed time per iteration (ms): 812.0 | lm loss: 2.3e+00", 1),
        ('info:     10.0.0.1:80 - "get /health http/1.1" 200 ok', 0),
        ('info:     10.0.0.1:80 - "post /v1/completions http/1.1" 500 internal server error', 0),
        ("avg generation throughput: 0.0 tokens/s, running: 3 reqs", 0),
        ("step 12 | loss: nan | time: 3.2s", 0),
        ("application shutdown complete.", 0),
        ("loading safetensors checkpoint shards: 100% completed | 1/1", 0),
        ("saving the checkpoint of step 12", 0),
        ("training finished", 0),
        ("done", 0),
        ("job finished at sat nov 28 04:00:00 utc 2026", 0),
        ("[launch.py:351:main] process 105 exits successfully.", 0),
        ("worker 3 exited with code 0", 0),
        ("job 12 exited with code 0:9", 0),
        ("+ exit 0", 0),
        ("last enqueued nccl work: 18, last completed nccl work: 18.", 0),
    ],
)
def test_lines(line: str, weight: int) -> None:
    assert measure_progress(line)[0] == weight


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        (
            "train: 50%|##  | 820/1628 [08:51<08:30, 1.58it/s]",
            "train: 50%|##  | 820/1628 [09:51<08:30, 1.58it/s]",
            True,
        ),
        (
            "train: 50%|##  | 820/1628 [08:51<08:30, 1.58it/s]",
            "train: 51%|##  | 821/1628 [08:52<08:30, 1.58it/s]",
            False,
        ),
        ("[rank0] step 12 | loss: 0.31", "[rank1] step 12 | loss: 0.33", True),
        ("step 12 | loss: 0.31", "step 13 | loss: 0.31", False),
    ],
)
def test_a_line_that_is_written_twice_names_one_step(one: str, other: str, is_same: bool) -> None:
    assert (measure_progress(one) == measure_progress(other)) is is_same
