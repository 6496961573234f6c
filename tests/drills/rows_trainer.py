"""The bundled trainer itself, under `prime-train run`: one process, and two that meet in collectives."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

from prime_train.checkpoints import layout
from tests.drills import faults
from tests.drills.drill import Act, Row
from tests.drills.faults import until_trained
from tests.drills.scene import Scene, trainer

_TWO = {"parallel": "processes = 2"}


def _act(fault: faults.Fault) -> Act:
    def act(scene: Scene, supervisor: int) -> None:
        scene.marks.strike(fault(scene, supervisor))

    return act


def _corrupt_newest(scene: Scene, _supervisor: int) -> None:
    """As many bytes as before, and some of them others: only who reads them all can tell."""
    pid = trainer(until_trained(scene, 2))
    os.kill(pid, signal.SIGSTOP)
    newest = layout.newest_complete(scene.run_dir.checkpoints)
    assert newest is not None
    scene.marks.damage(newest.step)
    largest = max((file for file in newest.path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    with open(largest, "r+b") as file:
        file.seek(largest.stat().st_size // 2)
        file.write(os.urandom(64))
    scene.marks.strike()
    os.kill(pid, signal.SIGKILL)


def _rank(scene: Scene, number: int) -> int:
    """The pid of a rank below torchrun's agent."""
    for process in psutil.Process(trainer(scene.state())).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # a short program that a rank had started
            if process.environ().get("RANK") == str(number) and process.status() != psutil.STATUS_ZOMBIE:
                return process.pid
    raise AssertionError(f"torchrun's agent has no rank {number}")


def _to_rank(number: signal.Signals) -> Act:
    def act(scene: Scene, _supervisor: int) -> None:
        until_trained(scene, 1)
        pid = _rank(scene, 1)
        scene.marks.strike()
        os.kill(pid, number)

    return act


def _kill_agent(scene: Scene, _supervisor: int) -> None:
    agent = trainer(until_trained(scene, 1))
    scene.marks.started(_rank(scene, 0))
    scene.marks.started(_rank(scene, 1))
    scene.marks.strike(time.time())
    os.kill(agent, signal.SIGKILL)


def _nothing(_scene: Scene) -> None:
    pass


def _one(name: str, found: str, says: str, act: Act, attempts: int = 2) -> Row:
    return Row("the bundled trainer", name, found, (says,), act=act, stage="trainer", attempts=attempts)


def _ranks(name: str, found: str, says: str, act: Act) -> Row:
    return Row("two ranks", name, found, (says,), act=act, stage="trainer", options=_TWO)


ROWS: tuple[Row, ...] = (
    _one("it is killed", "signal", "killed by signal 9 (SIGKILL)", _act(faults.kill_trainer)),
    _one("its data worker is killed", "unknown", "data worker 0 ended", _act(faults.raise_in_trainer)),
    _one("it is stopped (SIGSTOP)", "hang", "no sign of life", _act(faults.hang_trainer)),
    _one("the newest checkpoint is truncated", "signal", "rejected=('step_", _act(faults.truncate_newest)),
    _one("bytes of the newest checkpoint are changed", "signal", "does not match its SHA-256", _corrupt_newest, 3),
    Row(
        "the bundled trainer",
        "the supervisor is killed; the command is run again",
        "signal",
        ("together with its supervisor",),
        act=_act(faults.kill_supervisor),
        again=_nothing,
        stage="trainer",
    ),
    _ranks("one is killed", "signal", "rank 1 was killed by signal 9", _to_rank(signal.SIGKILL)),
    _ranks("one is stopped in a collective", "hang", "no sign of life", _to_rank(signal.SIGSTOP)),
    _ranks("torchrun's agent is killed", "signal", "(SIGKILL)", _kill_agent),
)
