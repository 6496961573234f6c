"""Lines that show work, and lines that only look so."""

from __future__ import annotations

import pytest

from prime_train.diagnose.progress import ENOUGH_PROGRESS, measure_progress


@pytest.mark.parametrize(
    ("line", "weight"),
    [
        ('info:     10.0.0.1:80 - "post /v1/chat/completions http/1.1" 200 ok', ENOUGH_PROGRESS),
        ("avg generation throughput: 812.4 tokens/s, running: 3 reqs", ENOUGH_PROGRESS),
        ("training finished", ENOUGH_PROGRESS),
        ("rl trainer finished!", ENOUGH_PROGRESS),
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
    ],
)
def test_lines(line: str, weight: int) -> None:
    assert measure_progress(line) == weight
