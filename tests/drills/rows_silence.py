"""A trainer that does not end: it hangs, in a phase of its work or while it is to stop."""

from __future__ import annotations

import os
import signal
import time

from prime_train.supervise.core.fold_supervisor import SAME_WISH_S
from tests.drills.drill import Row
from tests.drills.scene import Scene

LIMIT_S = 3.0  # of a step that takes 5 ms: a busy machine may take a second
_QUICK = {"step_limit_s": LIMIT_S, "slow_phase_limit_s": LIMIT_S + 1.0}
_STOPS = {**_QUICK, "stop_grace_s": 2.0, "term_grace_s": 1.0}
SLOWLY = {"step_s": "0.01"}


def until_saved(scene: Scene, checkpoints: int = 2) -> None:
    scene.until(lambda state: state.newest_complete >= 10 * checkpoints and state.step > state.newest_complete)


def _stop(scene: Scene, supervisor: int) -> None:
    until_saved(scene, 3)
    scene.marks.strike()
    os.kill(supervisor, signal.SIGTERM)


def _stop_twice(scene: Scene, supervisor: int) -> None:
    """As a person does who presses Ctrl-C again after a while."""
    _stop(scene, supervisor)
    scene.until(lambda state: state.stop_requested_s is not None and time.time() > state.stop_requested_s + SAME_WISH_S)
    os.kill(supervisor, signal.SIGINT)


def _stop_in_save(scene: Scene, supervisor: int) -> None:
    scene.until(lambda state: state.saving_step is not None)
    os.kill(supervisor, signal.SIGTERM)


def _go_on(_scene: Scene) -> None:
    pass


ROWS: tuple[Row, ...] = (
    Row("a silence", "the trainer sleeps", "hang", ("victim.py",), victim="sleeps", policy=_QUICK),
    Row("a silence", "it spins, as in a collective", "hang", ("victim.py",), victim="spins", policy=_QUICK),
    Row("a silence", "it is stopped (SIGSTOP)", "hang", ("no sign of life",), victim="stopped", policy=_QUICK),
    Row(
        "a silence",
        "it hangs in an evaluation",
        "hang",
        ("in phase evaluate",),
        victim="sleeps_in_evaluation",
        policy=_QUICK,
    ),
    Row(
        "a silence",
        "it hangs before its first step",
        "hang",
        ("victim.py",),
        victim="sleeps",
        policy={"startup_limit_s": LIMIT_S},
        options={"at_step": "0"},
    ),
    Row(
        "a stop",
        "SIGTERM to the supervisor; the command is run again",
        "",
        ("resume_step=",),
        0,
        2,
        act=_stop,
        again=_go_on,
        options=SLOWLY,
        max_steps=200,
    ),
    Row(
        "a stop",
        "in the middle of a save",
        "",
        ("newest checkpoint step 27",),
        75,
        1,
        "saves_slowly",
        act=_stop_in_save,
    ),
    Row(
        "a stop",
        "the trainer hangs in its last save",
        "",
        ("it did not stop in its grace period",),
        75,
        1,
        "hangs_in_stop",
        act=_stop,
        policy=_STOPS,
        options=SLOWLY,
    ),
    Row(
        "a stop",
        "two stop requests while the trainer hangs",
        "",
        ("it did not stop in its grace period",),
        75,
        1,
        "hangs_in_stop",
        act=_stop_twice,
        options=SLOWLY,
    ),
)
