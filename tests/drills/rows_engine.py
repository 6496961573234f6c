"""The server beside the trainer dies, hides its dead engine, or does not come up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil

from prime_train.supervise.core.state import State
from tests.drills.drill import Act, Row, port_of
from tests.drills.rows_silence import SLOWLY, until_saved
from tests.drills.scene import Scene

_GROUP = "an engine"
_THIEF = "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); time.sleep(3600)"


def _server(state: State) -> int:
    assert state.live is not None
    return next(child.pid for child in state.live.children if child.role == "inference")


def _engine(scene: Scene) -> int:
    (found,) = psutil.Process(_server(scene.state())).children()
    return found.pid


def _to_server(number: signal.Signals) -> Act:
    def act(scene: Scene, _supervisor: int) -> None:
        until_saved(scene)
        pid = _server(scene.state())
        scene.marks.started(_engine(scene))
        scene.marks.strike()
        os.kill(pid, number)

    return act


def _to_engine(number: signal.Signals) -> Act:
    def act(scene: Scene, _supervisor: int) -> None:
        until_saved(scene)
        pid = _engine(scene)
        scene.marks.started(_server(scene.state()))
        scene.marks.strike()
        os.kill(pid, number)

    return act


def _steal_the_port(scene: Scene) -> None:
    thief = subprocess.Popen([sys.executable, "-c", _THIEF, str(port_of(scene))], stderr=subprocess.DEVNULL)
    scene.marks.started(thief.pid)
    (scene.folder / "thief").write_text(str(thief.pid), encoding="utf-8")
    scene.marks.strike()


def _give_it_back(scene: Scene, _supervisor: int) -> None:
    scene.until(lambda state: state.state == "recovering")
    thief = int((scene.folder / "thief").read_text(encoding="utf-8"))
    os.kill(thief, signal.SIGKILL)
    os.waitpid(thief, 0)


def _row(name: str, found: str, says: str, act: Act, **server: str) -> Row:
    return Row(
        _GROUP,
        name,
        found,
        (says,),
        act=act,
        options=SLOWLY,
        max_steps=1600,
        watches={"engine": 0.5},
        server=server,
    )


ROWS: tuple[Row, ...] = (
    _row("the server is killed without output", "signal", "inference killed by signal 9", _to_server(signal.SIGKILL)),
    _row("the server ends with exit code 0", "unknown", "inference exited with 0", _to_server(signal.SIGTERM)),
    _row("the engine is killed, and the server ends", "bug", "VLLM007", _to_engine(signal.SIGKILL)),
    _row(
        "the engine is killed, /health reports it, and the server stays",
        "engine_dead",
        "/health of inference has answered 503",
        _to_engine(signal.SIGKILL),
        at_death="stay",
    ),
    _row(
        "the engine is killed, and the server closes its port and stays",
        "engine_dead",
        "VLLM007",
        _to_engine(signal.SIGKILL),
        at_death="close",
    ),
    _row(
        "the engine is killed, and /health answers 200",
        "engine_still",
        "/health still answers 200",
        _to_engine(signal.SIGKILL),
        at_death="hide",
    ),
    _row("the engine is stopped, and /health answers 200", "engine_still", "no token", _to_engine(signal.SIGSTOP)),
    _row("the server is stopped", "engine_unanswered", "has not answered", _to_server(signal.SIGSTOP)),
    Row(
        _GROUP,
        "it is never ready",
        "never_ready",
        ("/health",),
        prepare=lambda scene: scene.marks.strike(),
        server={"health": "503"},
        watches={"engine": 0.5},
    ),
    Row(
        _GROUP,
        "another program uses its port for a while",
        "env",
        ("Address already in use",),
        prepare=_steal_the_port,
        act=_give_it_back,
        server={},
        watches={"engine": 0.5},
    ),
)
