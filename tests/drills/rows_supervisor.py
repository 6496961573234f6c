"""The supervisor itself is killed, held up or doubled, the clock is set, and processes stay behind."""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import time
from pathlib import Path

from prime_train.events import ClockJumped, read
from tests.drills.drill import Row
from tests.drills.rows_silence import LIMIT_S, SLOWLY, until_saved
from tests.drills.scene import Scene, trainer

_CLOCK = Path(__file__).with_name("clock.c")
_QUICK = {"step_limit_s": LIMIT_S}
_LONG = {"options": SLOWLY, "max_steps": 600}


def _kill(scene: Scene, supervisor: int) -> None:
    until_saved(scene)
    scene.marks.started(trainer(scene.state()))
    scene.marks.strike()
    os.kill(supervisor, signal.SIGKILL)


def _kill_in_backoff(scene: Scene, supervisor: int) -> None:
    """Between two attempts, when it has nothing that could end with it."""
    scene.until(lambda state: state.state == "recovering")
    os.kill(supervisor, signal.SIGKILL)


def _nothing(_scene: Scene) -> None:
    pass


def _hold_up(scene: Scene, supervisor: int) -> None:
    """For longer than the trainer may be silent."""
    until_saved(scene)
    scene.marks.strike()
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(LIMIT_S + 1.0)
    os.kill(supervisor, signal.SIGCONT)


def _hold_up_and_kill_trainer(scene: Scene, supervisor: int) -> None:
    until_saved(scene)
    os.kill(supervisor, signal.SIGSTOP)
    os.kill(trainer(scene.state()), signal.SIGKILL)
    scene.marks.strike()
    os.kill(supervisor, signal.SIGCONT)


def _start_another(scene: Scene, _supervisor: int) -> None:
    until_saved(scene)
    done = subprocess.run(scene.command, cwd=scene.folder, env=os.environ | scene.variables, stderr=subprocess.PIPE)
    assert done.returncode == 2, done
    with open(scene.folder / "said.txt", "ab") as said:
        said.write(done.stderr)


# --- the clock --------------------------------------------------------------------------------------


def no_compiler() -> str:
    return "" if shutil.which("cc") else "there is no C compiler"


def _build_clock(scene: Scene) -> None:
    (scene.folder / "ahead_ns").write_bytes(bytes(8))
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", scene.folder / "clock.so", _CLOCK, "-ldl"], check=True)


_SET_CLOCK = {"LD_PRELOAD": "{folder}/clock.so", "AHEAD_NS": "{folder}/ahead_ns"}


def _set_clock(scene: Scene, hours: float) -> None:
    with open(scene.folder / "ahead_ns", "r+b") as file:
        file.write(struct.pack("q", int(hours * 3600 * 10**9)))


def _forward(scene: Scene, _supervisor: int) -> None:
    until_saved(scene)
    _set_clock(scene, 1.0)


def _back(scene: Scene, _supervisor: int) -> None:
    until_saved(scene)
    _set_clock(scene, -1.0)


def _back_and_hang(scene: Scene, supervisor: int) -> None:
    _back(scene, supervisor)
    scene.until(lambda _: any(isinstance(record.event, ClockJumped) for record in read(scene.run_dir.events)))
    scene.marks.strike(time.time() - 3600)
    os.kill(trainer(scene.state()), signal.SIGSTOP)


ROWS: tuple[Row, ...] = (
    Row(
        "the supervisor",
        "it is killed; the command is run again",
        "signal",
        ("together with its supervisor",),
        act=_kill,
        again=_nothing,
        options=SLOWLY,
        max_steps=200,
    ),
    Row(
        "the supervisor",
        "it is killed between two attempts; the command is run again",
        "signal",
        ("(SIGKILL)",),
        victim="killed",
        act=_kill_in_backoff,
        again=_nothing,
    ),
    Row(
        "the supervisor",
        "it is stopped for longer than the trainer may be silent",
        "",
        (),
        0,
        1,
        act=_hold_up,
        options=SLOWLY,
        max_steps=600,
        policy=_QUICK,
    ),
    Row(
        "the supervisor",
        "it is stopped while the trainer dies",
        "signal",
        ("(SIGKILL)",),
        act=_hold_up_and_kill_trainer,
        options=SLOWLY,
        max_steps=200,
    ),
    Row(
        "the supervisor",
        "a second one is started",
        "",
        ("is held by process",),
        0,
        1,
        act=_start_another,
        options=SLOWLY,
        max_steps=300,
    ),
    Row(
        "the clock",
        "it is set forward by an hour",
        "",
        ("ClockJumped(jump_s=3600",),
        0,
        1,
        act=_forward,
        prepare=_build_clock,
        variables=_SET_CLOCK,
        options=SLOWLY,
        max_steps=300,
        policy=_QUICK,
        needs=no_compiler,
    ),
    Row(
        "the clock",
        "it is set back by an hour",
        "",
        ("ClockJumped(jump_s=-3600",),
        0,
        1,
        act=_back,
        prepare=_build_clock,
        variables=_SET_CLOCK,
        options=SLOWLY,
        max_steps=300,
        policy=_QUICK,
        needs=no_compiler,
    ),
    Row(
        "the clock",
        "it is set back by an hour, and the trainer hangs",
        "hang",
        ("no sign of life",),
        act=_back_and_hang,
        prepare=_build_clock,
        variables=_SET_CLOCK,
        options=SLOWLY,
        max_steps=300,
        policy=_QUICK,
        needs=no_compiler,
    ),
    Row("left behind", "a child process in a separate session", "signal", ("(SIGKILL)",), victim="leaves_a_session"),
    Row(
        "left behind",
        "a grandchild process whose parent has ended, which ignores SIGTERM",
        "signal",
        ("(SIGKILL)",),
        victim="leaves_an_orphan",
    ),
    Row("left behind", "the same, without the run's mark", "signal", ("(SIGKILL)",), victim="leaves_a_stranger"),
)
