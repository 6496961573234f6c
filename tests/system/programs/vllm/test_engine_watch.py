"""The engine watch over real processes: a server that plays vLLM, and the program that looks at it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from prime_train.programs.vllm.engine_watch import EngineLimits, EngineWatch
from prime_train.supervise.core.state import Live, State
from prime_train.supervise.watches.watch import Alarm

FAKE = Path(__file__).parents[3] / "fakes" / "engine.py"
FOUND_S = 60.0  # for what must be found at all
# A server that is alive may need seconds for an answer on a busy machine.
QUICK = EngineLimits(still_s=0.5, still_max_s=2.0, unanswered_s=5.0)
LIVE = Live(1, last_sign_s=0.0, roles=("inference",), services=("inference",), ready=("inference",))
SERVING = State(live=LIVE)


@contextlib.contextmanager
def served(behaviour: str, port: int = 0) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = port or _unused_port()
    server = subprocess.Popen([sys.executable, FAKE, str(port), behaviour])
    try:
        yield port, server
    finally:
        server.kill()
        server.wait()


def _unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def watching(port: int, log: Path) -> Iterator[EngineWatch]:
    watch = EngineWatch(
        f"http://127.0.0.1:{port}", "inference", answer="restart", interval_s=0.1, log=log, limits=QUICK
    )
    watch.begin()
    try:
        yield watch
    finally:
        watch.end()


def first_alarm(watch: EngineWatch, state: State = SERVING, limit_s: float = FOUND_S) -> Alarm | None:
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        for alarm in watch.look(state, time.time()):
            return alarm
        time.sleep(0.02)
    return None


def test_an_engine_that_counts_no_token_is_found_although_its_health_is_good(tmp_path: Path) -> None:
    with served("dead") as (port, _), watching(port, tmp_path / "engine.log") as watch:
        alarm = first_alarm(watch)
    assert alarm is not None
    assert (alarm.name, alarm.answer) == ("engine_still", "restart")


def test_one_that_generates_is_left_alone(tmp_path: Path) -> None:
    with served("serves") as (port, _), watching(port, tmp_path / "engine.log") as watch:
        assert first_alarm(watch, limit_s=3.0) is None


def test_a_server_that_is_gone_is_found(tmp_path: Path) -> None:
    with served("serves") as (port, server), watching(port, tmp_path / "engine.log") as watch:
        assert first_alarm(watch, limit_s=1.0) is None
        server.kill()
        alarm = first_alarm(watch)
    assert alarm is not None
    assert (alarm.name, alarm.answer) == ("engine_dead", "restart")


def test_nothing_is_reported_before_it_is_ready_or_while_it_is_being_stopped(tmp_path: Path) -> None:
    with served("dead") as (port, _), watching(port, tmp_path / "engine.log") as watch:
        assert first_alarm(watch, State(live=replace(LIVE, ready=())), limit_s=2.0) is None
        assert first_alarm(watch, replace(SERVING, stop_requested_s=1.0), limit_s=2.0) is None
        assert first_alarm(watch) is not None


def test_the_next_attempt_is_judged_again(tmp_path: Path) -> None:
    with served("dead") as (port, _), watching(port, tmp_path / "engine.log") as watch:
        assert first_alarm(watch) is not None
        assert watch.look(State(live=replace(LIVE, number=2)), time.time()) == ()


def test_a_program_that_ended_leaves_the_engine_unwatched_which_is_reported(tmp_path: Path) -> None:
    with served("serves") as (port, _), watching(port, tmp_path / "engine.log") as watch:
        assert first_alarm(watch, limit_s=0.5) is None
        (program,) = watch.processes()
        subprocess.run(["kill", "-9", str(program.pid)], check=True)
        alarm = first_alarm(watch)
    assert alarm is not None
    assert (alarm.name, alarm.answer) == ("engine_unwatched", "alert")


def test_it_leaves_no_process_behind(tmp_path: Path) -> None:
    with watching(_unused_port(), tmp_path / "engine.log") as watch:
        (program,) = watch.processes()
        assert program.alive
    assert not program.alive
