"""The real wandb client reads the written histories from a server on this machine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prime_train.away.verdict import wandb_program
from prime_train.away.verdict.remote_verdict import judge
from prime_train.away.verdict.wandb_reading import LIMIT_S, check_path, parse, read_run
from prime_train.core.errors import UserError
from tests.fakes.wandb_server import RunRecord, WandbServer
from tests.unit.away.histories import HISTORIES, START_S, History, Poll, observed, reading_of, record_of, run_dir_s
from tests.unit.cli.commands import clean_environment

PATH = "me/nano/abc123"
REQUEST_S = 3
SILENT_LIMIT_S = 20.0

# The program that read_run starts, asked more than once: the import of wandb and its service take two CPU-seconds.
CLIENT = """
import json, sys
from prime_train.away.verdict.wandb_program import read_run
answers, sys.stdout = sys.stdout, sys.stderr
for line in sys.stdin:
    print(json.dumps(read_run(*json.loads(line))), file=answers, flush=True)
"""
Ask = Callable[[], Mapping[str, Any]]


@contextmanager
def _serving(home: Path) -> Iterator[WandbServer]:
    """A server, and what the client needs to ask it in this process's environment."""
    pytest.importorskip("wandb")
    with WandbServer().serving() as serving, pytest.MonkeyPatch.context() as patch:
        for name, value in serving.variables.items():
            patch.setenv(name, value)
        patch.setenv("HOME", str(home))
        yield serving


@pytest.fixture
def server(tmp_path: Path) -> Iterator[WandbServer]:
    with _serving(tmp_path) as serving:
        yield serving


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WandbServer, Ask]]:
    """A server, and a client that reads its run each time it is asked."""
    home = tmp_path_factory.mktemp("home")
    with _serving(home) as server:
        command = [sys.executable, "-P", "-c", CLIENT]
        with subprocess.Popen(command, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
            questions, answers = client.stdin, client.stdout
            assert questions is not None
            assert answers is not None

            def ask() -> Mapping[str, Any]:
                print(json.dumps((PATH, REQUEST_S)), file=questions, flush=True)
                answer: Mapping[str, Any] = json.loads(answers.readline())
                return answer

            yield server, ask
            questions.close()


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.name)
def test_a_history_is_judged_rightly(history: History, shared: tuple[WandbServer, Ask]) -> None:
    server, ask = shared
    readings = []
    for poll in history.polls:
        server.run, server.mood = record_of(history, poll), poll.mood
        # A client that got no answer may still be waiting: such a poll has a client of its own, as each one in use has.
        if poll.mood == "well":
            reading = parse(ask(), observed(history, poll))
        else:
            # A server that answers nothing is not known sooner by a longer wait.
            limit_s = SILENT_LIMIT_S if poll.mood == "silent" else LIMIT_S
            reading = read_run(PATH, observed(history, poll), {}, REQUEST_S, limit_s)
        expected = reading_of(history, poll)
        if expected.problem:
            assert reading.problem == expected.problem, reading
        else:
            assert not reading.problem, reading
            assert reading.step == expected.step
            assert reading.heartbeat_s == pytest.approx(expected.heartbeat_s)
        readings.append(replace(reading, job=poll.job, run_dir_s=run_dir_s(history, poll)))
    found = judge(readings, history.expectation)
    assert (found.verdict, found.resumable, found.is_complete) == (
        history.verdict,
        history.resumable,
        history.is_complete,
    ), (found, readings)


def test_a_client_that_hangs_is_ended(server: WandbServer) -> None:
    server.mood = "silent"
    reading = read_run(PATH, START_S, {}, request_s=60, limit_s=4)
    assert (reading.problem, reading.state) == ("no_answer", "")
    assert reading.detail == "no answer within 4 s"


def test_a_poll_asks_five_questions_and_sends_the_key_to_no_other_server(server: WandbServer) -> None:
    server.run = record_of(HISTORIES[0], HISTORIES[0].polls[0])
    assert not read_run(PATH, START_S, {}).problem
    assert server.questions == ["Viewer", "GetDefaultEntity", "Run", "RunSampledHistory", "RunFullHistory"]


def _status(server: WandbServer, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    program = "from prime_train.cli.entry import main; main()"
    command = [sys.executable, "-c", program, "status", "--wandb", PATH, *arguments]
    environment = clean_environment() | server.variables
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_status_prints_the_verdict_and_ends_with_its_code(server: WandbServer, tmp_path: Path) -> None:
    history = next(
        history for history in HISTORIES if history.verdict == "crashed" and history.polls[0].exit_code == 75
    )
    server.run = record_of(history, history.polls[0])
    done = _status(server, "--json", "--interval", "0.1", cwd=tmp_path)
    assert done.returncode == 75, done.stderr
    document = json.loads(done.stdout)
    assert (document["version"], document["verdict"], document["resumable"]) == (1, "crashed", True)
    assert len(document["polls"]) == 2
    assert "0" * 40 not in done.stdout + done.stderr

    server.run = None
    gone = _status(server, cwd=tmp_path)
    assert gone.returncode == 4
    assert "verdict" in gone.stdout
    assert "W&B has no such run" in gone.stdout


def test_a_path_names_one_run() -> None:
    assert check_path("me/nano/k3x9") == "me/nano/k3x9"
    assert check_path("https://wandb.ai/me/nano/runs/k3x9/") == "me/nano/k3x9"
    for wrong in ("k3x9", "me/nano", "me/nano/k3x9/files", "../../etc/passwd", "-x/y/z", ""):
        with pytest.raises(UserError):
            check_path(wrong)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("HTTP 429: rate limit exceeded", "rate_limited"),
        ("Could not find run <Run me/nano/x>", "not_found"),
        ("the service process is busy and did not respond in time.", "no_answer"),
        ("dial tcp 127.0.0.1:40401: connect: connection refused", "no_answer"),
        ("Failed to verify credentials: user is not logged in", "auth"),
        ("invalid character '<' looking for beginning of value", "unreadable"),
    ],
)
def test_an_error_of_the_client_is_named(text: str, problem: str) -> None:
    assert wandb_program.classify(RuntimeError(text)) == problem


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_names = ("state", "heartbeat", "created", "history_step", "history_lines", "summary", "config", "history", "system")


@given(st.fixed_dictionaries({}, optional=dict.fromkeys((*_names, "problem", "detail"), _json)))
def test_any_answer_gives_a_reading_and_a_verdict(document: dict[str, object]) -> None:
    reading = parse(document, START_S)
    assert not judge([reading, replace(reading, observed_s=START_S + 60)]).resumable or reading.state


def test_a_secret_in_an_error_is_masked() -> None:
    reading = parse({"problem": "auth", "detail": "key local-1234567890 is wrong"}, START_S, ("local-1234567890",))
    assert "1234567890" not in reading.detail


def test_steps_and_gpus_are_read_from_the_rows() -> None:
    history = [{"_step": step, "_timestamp": START_S + 20.0 * step} for step in range(0, 100, 10)]
    history[5]["_timestamp"] += 5.0
    system = [{"_timestamp": START_S + at, "system.gpu.0.gpu": 50, "system.gpu.1.gpu": 100} for at in range(9)]
    document = {"state": "Running", "history": history, "history_lines": 10, "system": system, "history_step": 95}
    found = parse(document, START_S)
    assert (found.state, found.step, found.step_s, found.gpu_busy) == ("running", 95, 20.0, 0.75)
    assert (found.log_every_steps, found.last_step_s, found.system_metrics_s) == (10, START_S + 1800, START_S + 8)


def test_gpus_that_were_busy_before_the_last_step_are_no_witness() -> None:
    history = [{"_step": step, "_timestamp": START_S + step} for step in range(3)]
    busy = [{"_timestamp": START_S + at / 2, "system.gpu.0.gpu": 100} for at in range(4)]
    idle = {"_timestamp": START_S + 60, "system.gpu.0.gpu": 0}
    assert parse({"state": "running", "history": history, "system": [*busy, idle]}, START_S).gpu_busy == 0.0
    assert parse({"state": "running", "history": history, "system": busy}, START_S).gpu_busy == 1.0


def test_a_record_without_rows_is_a_run_without_steps() -> None:
    assert reading_of(HISTORIES[0], Poll(at=1, logged=0)).step is None
    assert RunRecord().history == []
