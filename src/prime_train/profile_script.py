"""Spans for any training script, for `prime-train profile SCRIPT.py`. Standard library only.

    from prime_train.profile_script import span, step

    for batch in loader:
        with step():
            with span("forward"):
                loss = model(batch)

Without `prime-train profile` nothing is measured, and nothing ends early.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from prime_train.core.spans import COMPONENTS, Span, Spans

STEPS_ENV = "PRIME_TRAIN_PROFILE_STEPS"  # the script ends after so many steps; unset = it ends by itself

_rank = os.environ.get("RANK", "0")  # torchrun sets it
_spans = Spans(f"trainer-rank{_rank}")
_steps = 0


def span(component: str, *, lane: str = "", count: int = 0) -> AbstractContextManager[None]:
    """Measures the block as one component of `core.spans.COMPONENTS`.

    `lane`: what the block belongs to if that is not the training loop, such as "rollout-17". `count`: tokens or bytes.
    On a GPU the block should end after torch.cuda.synchronize(), because kernels run later than they are called.
    """
    if component not in COMPONENTS:
        raise ValueError(f"{component!r} is none of {', '.join(COMPONENTS)}")
    return _spans.span(component, lane=lane, step=_steps, count=count)


@contextmanager
def step() -> Iterator[None]:
    """Measures one whole step. In a profile it ends the script after the last step that is counted."""
    global _steps
    _steps += 1
    start_s = time.monotonic()
    yield
    if not _spans.on:
        return
    _spans.add(Span("step", "", start_s, time.monotonic(), _steps))
    _spans.flush()
    if os.environ.get(STEPS_ENV, "").isdecimal() and _steps >= int(os.environ[STEPS_ENV]):
        sys.exit(0)
