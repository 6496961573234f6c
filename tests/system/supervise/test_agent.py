"""A real run on a real bus: its events arrive once, its commands act once, and a bus that is away costs it nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prime_train.bus.base import KEPT, Bus, BusError, Subscription
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, RunClosed, StopAsked
from tests.system.bus.stand import LIMIT_S, NatsStand, standing_nats, until
from tests.system.bus.test_kills import Reader, check_whole, kill_server

PROGRAM = Path(sys.executable).with_name("prime-train")
RUN_LIMIT_S = 240.0  # a command takes four seconds of a core, and other tests share it
SCRIPT = """
import sys, time
from prime_train import live

for step in range(int(sys.argv[1])):
    time.sleep(0.02)
    live.step(step + 1, loss=1.0)
    if live.should_stop():
        break
else:
    live.finish()
"""


@pytest.fixture
def stand(tmp_path: Path) -> Iterator[NatsStand]:
    with standing_nats(tmp_path / "bus") as found:
        yield found


@contextmanager
def running(folder: Path, stand: NatsStand, steps: int) -> Iterator[subprocess.Popen[str]]:
    """`prime-train run -- python train.py` with the credentials of machine m1."""
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    file = stand.folder / "credentials" / "m1.json"
    words = ["--run-name", "demo", "--bus", stand.server.credentials("m1").address]
    words += ["--set", f"prime_train.bus.credentials_file={file}", "--", sys.executable, "train.py", str(steps)]
    pipe = subprocess.PIPE
    process = subprocess.Popen([PROGRAM, "run", *words], cwd=folder, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(RUN_LIMIT_S)
        assert process.stdout is not None
        process.stdout.close()


def list_written(run_dir: RunDir) -> list[tuple[str, int]]:
    return [(record.writer, record.seq) for record in Follower(run_dir.events, brief=()).poll()]


def until_state(beats: Subscription, state: str, least_step: int = 0) -> None:
    def is_seen() -> bool:
        return any(one.body["state"] == state and one.body["step"] >= least_step for one in beats.take(0.2))

    until(is_seen)


def command(bus: Bus, kind: str, command_id: str) -> object:
    found: list[object] = []

    def is_answered() -> bool:
        try:
            answer = bus.request("pt.demo.cmd.m1", {"kind": kind, "body": {}}, command_id, 5.0).body
            found.append(answer["outcome"])
        except BusError:
            return False
        return True

    until(is_answered)
    return found[0]


def test_events_arrive_once_and_a_repeated_command_acts_once(stand: NatsStand, tmp_path: Path) -> None:
    controller = stand.client()
    beats, reader = controller.subscribe("pt.demo.r.m1.hb"), Reader(controller.subscribe(KEPT, "reader"))
    with running(tmp_path, stand, 100_000) as process:
        until_state(beats, "train", least_step=10)
        assert command(controller, "dance", "d1") == "refused"
        first = command(controller, "settings", "s1")
        assert command(controller, "settings", "s1") == first
        kill_server(stand)
        stand.server.keep()
        assert command(controller, "stop", "c1") == "accepted"
        assert command(controller, "stop", "c1") == "accepted"
        assert process.wait(RUN_LIMIT_S) == 75
        until_state(beats, "stopped")
    run_dir = RunDir(tmp_path / "runs" / "demo")
    written = list_written(run_dir)
    until(lambda: reader.read() >= len(written))
    check_whole(reader.found, written)
    events = [record.event for record in Follower(run_dir.events).poll()]
    assert sum(isinstance(event, StopAsked) for event in events) == 1


def test_a_run_without_its_bus_ends_as_any_other_and_its_events_arrive_later(stand: NatsStand, tmp_path: Path) -> None:
    kill_server(stand)
    with running(tmp_path, stand, 50) as process:
        assert process.wait(RUN_LIMIT_S) == 0
    run_dir = RunDir(tmp_path / "runs" / "demo")
    assert any(isinstance(record.event, RunClosed) for record in Follower(run_dir.events).poll())
    stand.server.keep()
    reader = Reader(stand.client().subscribe(KEPT, "reader"))
    written = list_written(run_dir)
    until(lambda: reader.read() >= len(written))
    check_whole(reader.found, written)


def test_credentials_that_others_may_read_start_no_run(stand: NatsStand, tmp_path: Path) -> None:
    (stand.folder / "credentials" / "m1.json").chmod(0o644)
    address = "nats://127.0.0.1:1"
    words = ["--bus", address, "--set", f"prime_train.bus.credentials_file={stand.folder}/credentials/m1.json"]
    words = [str(PROGRAM), "run", "--run-name", "demo", *words, "--", sys.executable, "-c", "pass"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 2, done.stderr
    assert "others may read it" in done.stderr
    assert "chmod 600" in done.stderr
    assert not list((tmp_path / "runs" / "demo" / "attempts").glob("*"))
