"""Kills the trainer at an exact place of its first attempt, or slows it. It changes nothing of the trainer's code.

"update N": in the Nth step of the optimizer, when the weights have changed and nothing else has.
"write N": in the hand-over of the Nth version of the weights, before their marker.
"announce N": when the Nth version is written, before the server hears of it.
"forward S,S": each forward of a rank takes as many seconds longer; see tests/drills/slow_rank.py.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any


def arm(harm: str) -> None:
    """Prepare the harm."""
    place, number = harm.split()
    if place == "update":
        _arm_optimizer(int(number))
        return
    if place == "forward":
        _slow_down(number)
        return
    seen = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if _is_at(place, event, arguments):
            seen += 1
            if seen == int(number):
                _die()

    sys.addaudithook(watch)


def _arm_optimizer(number: int) -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == number:
            _die()

    register_optimizer_step_post_hook(count)


def _slow_down(seconds: str) -> None:
    sys.path.append(str(Path(__file__).parents[3]))
    from tests.drills.slow_rank import FORWARD_ENV, slow_down

    os.environ[FORWARD_ENV] = seconds
    slow_down()


def _is_at(place: str, event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an event of Python's audit is the one of this place."""
    if place == "write":
        return event == "os.rename" and str(arguments[1]).endswith("/marker.json")
    return event == "http.client.send" and b"load_handover" in bytes(arguments[1])


def _die() -> None:
    (Path(os.environ["DRILL_FOLDER"]) / "fault_s").write_text(f"{time.time():.6f}\n", encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)
