from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.bus.base import BusMessage
from prime_train.bus.local import LocalBus
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.rundir import RunDir
from prime_train.events import RequestAnswered
from prime_train.supervise.agent import commands
from prime_train.supervise.agent.commands import MOST_WAITING, Commands


class Supervisor:
    """Counts what reaches it. With an error it answers nothing."""

    def __init__(self) -> None:
        self.stops = 0
        self.asked: list[str] = []
        self.error: Exception | None = None

    def stop(self, *_: object) -> None:
        self.stops += 1
        if self.error:
            raise self.error

    def ask(self, _run_dir: object, _attempt: int, kind: str, _body: object, request_id: str) -> RequestAnswered:
        self.asked.append(request_id)
        if self.error:
            raise self.error
        return RequestAnswered(request_id, kind, "accepted", "it is written")


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    found = Supervisor()
    monkeypatch.setattr("prime_train.supervise.processes.requests.request_stop", found.stop)
    monkeypatch.setattr(commands, "ask", found.ask)
    return found


def command(command_id: str, kind: object = "settings", **more: object) -> BusMessage:
    return BusMessage("pt.j.cmd.m1", command_id, {"kind": kind, "body": {}} | more)


def open_commands(folder: Path) -> Commands:
    return Commands(RunDir(folder), LocalBus(folder / "bus_of_test"), lambda _text: None)


def test_a_command_acts_once_also_after_the_agent_restarts(tmp_path: Path, supervisor: Supervisor) -> None:
    first = open_commands(tmp_path).answer(command("c1"))
    assert first == open_commands(tmp_path).answer(command("c1"))
    assert first["outcome"] == "accepted"
    for _ in range(2):
        assert open_commands(tmp_path).answer(command("c2", "stop"))["outcome"] == "accepted"
    assert (supervisor.asked, supervisor.stops) == (["c1"], 1)


def test_without_an_answer_the_outcome_is_unknown_and_the_command_may_be_repeated(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    supervisor.error = UserError("what", "where", "why", "fix", ExitCode.OUT_OF_REACH)
    agent = open_commands(tmp_path)
    for kind in ("settings", "stop"):
        expected = {"outcome": "unknown", "what": "what", "why": "why", "fix": "fix", "where": "where"}
        assert agent.answer(command(f"{kind}1", kind)) == expected
    supervisor.error = None
    assert agent.answer(command("settings1"))["outcome"] == "accepted"
    assert agent.answer(command("stop1", "stop"))["outcome"] == "accepted"


@pytest.mark.parametrize(
    "message",
    [
        command("c1", "dance"),
        command("c1", None),
        command("c1", ["stop"]),
        command("c1", body=[]),
        command("c:1"),
        command("c" * 65),
        BusMessage("pt.j.cmd.m1", "c1", {}),
    ],
)
def test_what_is_no_command_is_refused(tmp_path: Path, supervisor: Supervisor, message: BusMessage) -> None:
    found = open_commands(tmp_path).answer(message)
    assert (found["outcome"], found["what"]) == ("refused", "this is no command")
    assert (supervisor.asked, supervisor.stops) == ([], 0)


def test_of_ten_thousand_commands_at_once_each_has_an_answer(
    tmp_path: Path, supervisor: Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = LocalBus(tmp_path / "bus_of_test")
    agent = Commands(RunDir(tmp_path), bus, lambda _text: None)
    answers: list[str] = []
    monkeypatch.setattr(agent, "_reply", lambda _message, answer: answers.append(answer["outcome"]))
    monkeypatch.setattr(agent, "_keep", lambda *_: None)
    for number in range(10_000):
        agent.receive(command(f"c{number}"))
    while agent._waiting.qsize():
        pass
    assert len(answers) in (9_999, 10_000), "the last one may be at work"
    assert answers.count("accepted") >= MOST_WAITING
    assert len(supervisor.asked) - answers.count("accepted") in (0, 1)


def test_an_unexpected_error_is_reported_once_and_later_commands_have_answers(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    bus, reports = LocalBus(tmp_path / "bus_of_test"), list[str]()
    agent = Commands(RunDir(tmp_path), bus, reports.append)
    answers = bus.subscribe("pt.j.answers")

    def ask(command_id: str) -> str:
        message = command(command_id)
        agent.receive(BusMessage(message.subject, message.id, message.body, "pt.j.answers"))
        [answer] = answers.take(60.0)
        assert answer.id == command_id
        return str(answer.body["outcome"])

    supervisor.error = RuntimeError("a bug")
    assert [ask("c1"), ask("c2")] == ["unknown", "unknown"]
    supervisor.error = None
    assert ask("c1") == "accepted"
    assert len(reports) == 1
    assert "RuntimeError: a bug" in reports[0]
    assert "Traceback" in reports[0]
