"""Runs on a bus: silence, an agent that is away, requests and their answers, and what comes back after a restart."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from prime_train.bus.base import Bus, BusMessage, RevisionConflict, UnknownOutcome
from prime_train.bus.fleet_store import FleetReader, FleetStore
from prime_train.bus.local import LocalBus
from prime_train.bus.spool import EventBatch
from prime_train.control.local_link import LocalLink
from prime_train.control.remote import RemoteRuns
from prime_train.control.requests import hand_on
from prime_train.control.watcher import Watcher
from prime_train.core.errors import UserError
from prime_train.events.record import encode
from tests.unit.cli.commands import wait_until
from tests.unit.views.written_runs import BEGAN_S, DEATH, FIRST_ATTEMPT, Timeline, records, write_run

EVENTS, BEATS = "pt.small.r.m1.ev", "pt.small.r.m1.hb"


class Clock:
    now_s = BEGAN_S + 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def bus(tmp_path: Path) -> LocalBus:
    return LocalBus(tmp_path / "bus")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def remote(bus: LocalBus, clock: Clock) -> Iterator[RemoteRuns]:
    found = RemoteRuns(LocalLink(bus), clock)
    found.start()
    assert found.wait_known(60.0)
    yield found
    found.close()


def send(bus: Bus, timeline: Timeline, message_id: str = "b1") -> None:
    bus.publish(EVENTS, EventBatch(message_id, tuple(map(encode, records(timeline)))).body, message_id)


def state_of(remote: RemoteRuns) -> str | None:
    row = remote.view().rows.get("m1/small")
    return None if row is None else row["state"]


@contextmanager
def answering(bus: Bus, answer: Callable[[BusMessage], dict[str, Any] | None]) -> Iterator[None]:
    """An agent that answers one command, once `answer` returns something. It ends with the block."""
    heard, is_over = bus.subscribe("pt.small.cmd.m1"), threading.Event()

    def work() -> None:
        while not is_over.is_set():
            for message in heard.take(0.1):
                if (found := answer(message)) is not None:
                    bus.publish(message.reply, found, message.id)
                    return

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_silent_machine_is_unknown_and_then_lost_and_comes_back(
    bus: LocalBus, remote: RemoteRuns, clock: Clock
) -> None:
    send(bus, FIRST_ATTEMPT)
    wait_until(lambda: state_of(remote) == "running")
    clock.now_s += 10.0
    assert state_of(remote) == "unknown"
    clock.now_s += 50.0
    assert state_of(remote) == "lost"
    row, machines = remote.view().rows["m1/small"], remote.view().machines["m1/small"]
    assert (row["exit_code"], row["cause"], row["supervised"]) == (None, None, False)
    assert machines["m1"]["liveness"] == "lost"
    assert remote.view().failures == {}
    bus.publish(BEATS, {"state": "train", "step": 70}, "b2")
    wait_until(lambda: state_of(remote) == "running")


def test_the_page_has_one_row_for_a_run_that_is_in_the_folder_and_on_the_bus(
    bus: LocalBus, remote: RemoteRuns, tmp_path: Path
) -> None:
    write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    send(bus, FIRST_ATTEMPT)
    wait_until(lambda: state_of(remote) == "running")
    watcher = Watcher(tmp_path, remote=remote)
    watcher.look()
    watcher.look()
    document = watcher.stream.snapshot().document
    assert list(document["runs"]) == ["small"]
    assert document["machines"] == {}
    send(bus, [(second + 1, writer, event) for second, writer, event in FIRST_ATTEMPT], "b2")
    (tmp_path / "runs" / "small").rename(tmp_path / "runs" / "renamed")
    watcher = Watcher(tmp_path, remote=remote)
    watcher.look()
    watcher.look()
    assert list(watcher.stream.snapshot().document["runs"]) == ["renamed", "m1/small"]


def test_a_request_has_the_answer_of_the_agent_and_is_kept(bus: LocalBus, remote: RemoteRuns, tmp_path: Path) -> None:
    send(bus, (*FIRST_ATTEMPT, *DEATH))
    wait_until(lambda: state_of(remote) == "recovering")
    heard: list[BusMessage] = []
    answer = {"outcome": "accepted", "what": "saves\x1b[31m", "why": "", "fix": "", "where": "", "more": 1}
    watcher = Watcher(tmp_path, remote=remote)
    watcher.look()
    request = {"run": "m1/small", "kind": "command_requested", "id": "c1", "body": {"command": "checkpoint"}}
    with answering(bus, lambda message: heard.append(message) or answer):  # type: ignore[func-returns-value]
        found = hand_on(watcher, request)
    assert (found["outcome"], found["request_id"], "\x1b" in found["what"]) == ("accepted", "c1", False)
    assert (heard[0].id, dict(heard[0].body)) == ("c1", {"kind": "command", "body": {"command": "checkpoint"}})

    def is_kept() -> bool:
        document = bus.kv("pt_fleet").get("small.m1")
        decided = document.value["decided"] if document and document.value else {}
        return [(one["id"], one["outcome"]) for one in decided.get("commands", [])] == [("c1", "accepted")]

    wait_until(is_kept)
    remote.close()
    again = RemoteRuns(LocalLink(bus))
    again.start()
    assert again.wait_known(60.0)
    detail = again.detail("m1/small")
    assert detail is not None
    assert [one["what"] for one in detail["failures"]] == ["killed by signal 9 (SIGKILL)"]
    assert [one["id"] for one in detail["commands"]] == ["c1"]
    again.close()


def test_no_answer_is_unknown_and_the_same_id_is_sent_again(
    bus: LocalBus, remote: RemoteRuns, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(bus, FIRST_ATTEMPT)
    wait_until(lambda: state_of(remote) == "running")
    monkeypatch.setattr("prime_train.control.remote_commands._ANSWER_S", 0.2)
    monkeypatch.setattr("prime_train.control.remote_commands._BACK_S", 1.0)
    ids: list[str] = []
    with answering(bus, lambda message: ids.append(message.id)):
        answer = remote.commands.send("m1/small", "stop_requested", {}, "c1")
    assert (answer["outcome"], answer["request_id"]) == ("unknown", "c1")
    assert "c1" in answer["fix"]
    assert len(ids) > 1
    assert set(ids) == {"c1"}


def test_a_run_that_ended_or_is_not_known_gets_no_request(bus: LocalBus, remote: RemoteRuns) -> None:
    send(bus, FIRST_ATTEMPT)
    bus.publish(BEATS, {"state": "died"}, "b2")
    wait_until(lambda: state_of(remote) == "died")
    with pytest.raises(UserError, match="no supervisor runs it"):
        remote.commands.send("m1/small", "stop_requested", {}, "c1")
    with pytest.raises(UserError) as caught:
        remote.commands.read_log("m9/small", None, 10)
    assert "the machines on the bus are: m1" in caught.value.why


@pytest.mark.parametrize(
    "log",
    [
        None,
        5,
        [],
        {},
        {"attempts": 5, "lines": {}, "attempt": {"x": 1}},
        {"attempts": ["x", True, None], "lines": [5, None, "a\x1bb"], "attempt": "x"},
    ],
)
def test_a_log_of_another_form_is_shown_without_what_is_none(bus: LocalBus, remote: RemoteRuns, log: object) -> None:
    send(bus, FIRST_ATTEMPT)
    wait_until(lambda: state_of(remote) == "running")
    with answering(bus, lambda _: {"outcome": "done", "log": log}):
        found = remote.commands.read_log("m1/small", None, 10)
    assert (found["attempt"], found["attempts"]) == (None, [])
    assert all("\x1b" not in line for line in found["lines"])


def test_a_decision_that_is_not_written_stays_before_its_answer(
    bus: LocalBus, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_train.control.remote._AGAIN_S", 0.05)
    remote, failed, done = RemoteRuns(LocalLink(bus), clock), [UnknownOutcome("no answer")] * 2, list[str]()

    def work(name: str) -> Callable[[FleetStore], None]:
        def act(store: FleetStore) -> None:
            if failed:
                raise failed.pop()
            store.decide("small.m1", {"id": "c1", "outcome": name})
            done.append(name)

        return act

    remote.do_later(work("unknown"))
    remote.do_later(work("accepted"))
    remote.start()
    wait_until(lambda: len(done) == 2)
    remote.close()
    assert done == ["unknown", "accepted"]
    assert FleetStore(bus, 0.0).documents["small.m1"]["decided"]["commands"] == [{"id": "c1", "outcome": "accepted"}]


class Counted(LocalLink):
    """Counts the sources that are open."""

    opened = 0

    def open(self, now_s: float) -> FleetStore | FleetReader:
        link, source = self, super().open(now_s)

        class Source(FleetStore):
            def close(self) -> None:
                link.opened -= 1

        assert isinstance(source, FleetStore)
        source.__class__ = Source
        self.opened += 1
        return source


def test_a_source_that_met_another_controller_is_closed(
    bus: LocalBus, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prime_train.control.remote._CONFLICT_S", 0.05)
    link = Counted(bus)
    remote, conflicts = RemoteRuns(link, clock), [RevisionConflict("other")] * 5

    def work(_store: FleetStore) -> None:
        if conflicts:
            raise conflicts.pop()

    remote.do_later(work)
    remote.start()
    wait_until(lambda: not conflicts and remote.view().remark == "")
    assert link.opened == 1
    remote.close()


def test_each_refusal_is_shown_with_its_time_and_a_flood_is_bounded(bus: LocalBus, clock: Clock) -> None:
    link = LocalLink(bus)
    remarks = [[f"m{n} - Publish Violation"] for n in range(50)]
    link.take_remarks = lambda: remarks.pop() if remarks else []  # type: ignore[method-assign]
    remote = RemoteRuns(link, clock)
    remote.start()
    wait_until(lambda: not remarks)
    remote.close()
    shown = remote.view().remark
    assert [f"m{n} " in shown for n in (0, 1, 4, 5, 49)] == [True, True, True, False, False]
    assert len(shown) < 1000


def test_kept_evidence_is_shown_after_the_run_has_ended(bus: LocalBus, remote: RemoteRuns) -> None:
    send(bus, (*FIRST_ATTEMPT, *DEATH))
    files = [{"name": "trainer.log", "text": "first\nlast\x1b[31m"}, {"name": "stacks.txt", "text": "a\nb"}]
    bus.publish(EVENTS, {"attempt": 1, "files": files}, "evidence:1")
    bus.publish(BEATS, {"state": "died"}, "b2")
    wait_until(lambda: state_of(remote) == "died" and bool(bus.objects("pt_evidence").list_names()))
    wait_until(lambda: bool((remote.find("m1/small") or {}).get("kept")))
    found = remote.commands.read_log("m1/small", 1, 50)
    assert "\x1b" not in str(found)
    assert (found["attempts"], found["lines"][0]) == ([1], "first")
    assert found["evidence"] == [{"name": "stacks.txt", "lines": ["a", "b"]}]


class Away(LocalLink):
    """A bus that fails as often as there are errors."""

    def __init__(self, bus: Bus, errors: list[Exception]) -> None:
        super().__init__(bus)
        self.errors = errors

    def keep(self) -> str:
        if self.errors:
            raise self.errors.pop(0)
        return ""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (UnknownOutcome("no answer"), "the bus does not answer: no answer"),
        (RevisionConflict("other"), "another controller"),
        (UserError("the NATS server did not start", "x", "port in use", "y"), "did not start: port in use"),
        (KeyError("x"), "the bus cannot be followed: KeyError"),
    ],
)
def test_a_bus_that_is_away_is_a_remark_and_makes_no_machine_silent(
    bus: LocalBus, clock: Clock, monkeypatch: pytest.MonkeyPatch, error: Exception, expected: str
) -> None:
    for name in ("_AGAIN_S", "_CONFLICT_S"):
        monkeypatch.setattr(f"prime_train.control.remote.{name}", 0.3)
    send(bus, FIRST_ATTEMPT)
    link = Away(bus, [])
    remote = RemoteRuns(link, clock)
    remote.start()
    wait_until(lambda: state_of(remote) == "running")
    link.errors += [error] * 3
    wait_until(lambda: expected in remote.view().remark)
    clock.now_s += 1000.0
    assert state_of(remote) == "running"
    wait_until(lambda: remote.view().remark == "")
    assert state_of(remote) == "running"  # it listens again, and knows nothing yet
    remote.close()


def test_a_document_of_another_version_is_left_out_with_a_remark(bus: LocalBus, clock: Clock) -> None:
    FleetStore(bus, 0.0).change("small.m1", {})
    bus.kv("pt_fleet").put("small.m2", {"machine": "m2", "job": "small", "failures": [{"what": "x"}], "beat": 5})
    send(bus, FIRST_ATTEMPT)
    remote = RemoteRuns(LocalLink(bus), clock)
    remote.start()
    wait_until(lambda: state_of(remote) == "running")
    assert list(remote.view().rows) == ["m1/small"]
    assert "what the bus keeps about small.m2 cannot be read" in remote.view().remark
    remote.close()
