"""Processes are killed in the middle, and every event is there once, in order."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from prime_train.bus.base import KEPT, BusError, Subscription, UnknownOutcome
from prime_train.bus.spool import is_known, read_batch, with_position
from prime_train.events import EventLog, Progress
from tests.system.bus.stand import EVENTS, KINDS, LIMIT_S, LocalStand, NatsStand, standing, standing_nats, take, until

ROOT = Path(__file__).parents[3]
STARTED: list[subprocess.Popen[bytes]] = []


def start(module: str, *arguments: object) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", f"tests.system.bus.{module}", *map(str, arguments)]
    process = subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE)
    STARTED.append(process)
    return process


@pytest.fixture(autouse=True)
def _end_processes() -> Iterator[None]:
    """A test that fails must leave no sender, which would try for ever."""
    yield
    while STARTED:
        process = STARTED.pop()
        process.kill()
        process.communicate()


def write_events(folder: Path, count: int) -> list[tuple[str, int]]:
    """The events of two writers; the (writer, position) of each."""
    for writer in ("trainer-001-rank0", "trainer-001-rank1"):
        log = EventLog(folder, writer)
        for step in range(count):
            log.append(Progress(1, step, 1.0, 1.0, step))
        log.close()
    return [(writer, seq) for writer in ("trainer-001-rank0", "trainer-001-rank1") for seq in range(count)]


class Reader:
    """Reads batches as a controller does: each event is taken once."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription
        self._positions: dict[str, dict[str, int]] = {}
        self.found: list[tuple[str, int]] = []
        self.repeated = 0

    def read(self) -> int:
        for message in self._subscription.take(0.2):
            records, damaged = read_batch(message.body)
            assert damaged == 0
            for record in records:
                if is_known(self._positions, record):
                    self.repeated += 1
                    continue
                self._positions = dict(with_position(self._positions, record))  # type: ignore[arg-type]
                self.found.append((record.writer, record.seq))
        with contextlib.suppress(UnknownOutcome):  # the next call repeats it
            self._subscription.acknowledge()
        return len(self.found)


def has_more(reader: Reader, before: int, sender: subprocess.Popen[bytes]) -> bool:
    """Whether more events arrived, or the sender has sent all."""
    return reader.read() > before or sender.poll() is not None


def check_whole(found: list[tuple[str, int]], written: list[tuple[str, int]]) -> None:
    assert sorted(found) == sorted(written), "each event is there once"
    for writer in {writer for writer, _ in written}:
        own = [seq for name, seq in found if name == writer]
        assert own == sorted(own), "the events of a writer keep their order"


@pytest.mark.parametrize("kind", KINDS)
def test_processes_that_compare_and_set_lose_no_write(kind: str, tmp_path: Path) -> None:
    with standing(kind, tmp_path / "bus") as stand:
        processes = [start("increment", stand.line(), 20) for _ in range(4)]
        for process in processes:
            assert process.wait(LIMIT_S) == 0, process.stderr and process.stderr.read()
        found = stand.client().kv("counts").get("count")
    assert found is not None
    assert found.value == {"n": 80}


@pytest.mark.parametrize("kind", KINDS)
def test_a_sender_that_is_killed_again_and_again_loses_and_doubles_nothing(kind: str, tmp_path: Path) -> None:
    written = write_events(tmp_path / "events", 4000)
    moments = Random(f"sender {kind}")
    with standing(kind, tmp_path / "bus") as stand:
        reader = Reader(stand.client().subscribe(KEPT, "reader"))
        for _ in range(6):
            process = start("send_spool", stand.line("m1"), tmp_path / "events", tmp_path / "place.json")
            until(partial(has_more, reader, reader.read(), process))
            threading.Event().wait(moments.uniform(0, 0.05))
            process.kill()
            process.wait()
        process = start("send_spool", stand.line("m1"), tmp_path / "events", tmp_path / "place.json")
        assert process.wait(LIMIT_S) == 0
        until(lambda: reader.read() >= len(written))
        assert reader._subscription.take(0) == []
    check_whole(reader.found, written)


def test_a_server_that_is_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    written = write_events(tmp_path / "events", 6000)
    moments = random.Random("server")
    with standing_nats(tmp_path / "bus") as stand:
        reader = Reader(stand.client().subscribe(KEPT, "reader"))
        sender = start("send_spool", stand.line("m1"), tmp_path / "events", tmp_path / "place.json")
        for _ in range(4):
            until(partial(has_more, reader, len(reader.found), sender))
            threading.Event().wait(moments.uniform(0, 0.1))
            kill_server(stand)
            stand.server.keep()
        assert sender.wait(LIMIT_S) == 0
        until(lambda: reader.read() >= len(written))
    check_whole(reader.found, written)


def kill_server(stand: NatsStand) -> None:
    process = stand.server._process
    assert process is not None
    process.kill()
    process.wait()


def test_a_watch_and_a_queue_go_on_after_the_server_restarts(tmp_path: Path) -> None:
    with standing_nats(tmp_path / "bus") as stand:
        controller, agent = stand.client(), stand.client("m1")
        values, queue = controller.kv("keys"), controller.subscribe(KEPT, "reader")
        watch, passing = values.watch(), controller.subscribe("pt.*.r.*.hb")
        values.put("one", {"v": 1})
        assert [entry.key for entry in watch.take(10.0)] == ["one"]
        kill_server(stand)
        assert stand.server.keep()
        until(lambda: succeeds(lambda: values.put("two", {"v": 2})))
        assert [entry.key for entry in watch.take(10.0)] == ["two"]
        until(lambda: succeeds(lambda: agent.publish(EVENTS, {}, "e1")))
        assert [message.id for message in take(queue, 1)] == ["e1"]
        agent.publish("pt.j.r.m1.hb", {}, "h1")
        assert [message.id for message in take(passing, 1)] == ["h1"]


def succeeds(work: Callable[[], object]) -> bool:
    try:
        work()
    except BusError:
        return False
    return True


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from prime_train.bus.nats_server import NatsServer\n"
        "server = NatsServer(Path(sys.argv[1]), ['m1']); server.start(); print(server.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "bus")], stdout=subprocess.PIPE, env=None)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    owner.kill()
    owner.wait()
    owner.stdout.close()
    until(lambda: not Path(f"/proc/{pid}").exists() or " Z " in Path(f"/proc/{pid}/stat").read_text())


def test_the_line_of_a_killed_local_writer_is_cut_off(tmp_path: Path) -> None:
    stand = LocalStand(tmp_path)
    bus = stand.client("m1")
    queue = bus.subscribe(KEPT, "reader")
    bus.publish(EVENTS, {"n": 1}, "e1")
    [log] = (tmp_path / "kept").glob("*.jsonl")
    with log.open("ab") as file:
        file.write(b'{"n":1,"s":"pt.j.r.m1.ev","id":"e2","r":"","b":{"n"')
    stand.client("m1").publish(EVENTS, {"n": 2}, "e2")
    bus.publish(EVENTS, {"n": 3}, "e3")
    assert [message.id for message in take(queue, 3)] == ["e1", "e2", "e3"]
    assert (queue.lost, queue.rejected) == (0, 0)
