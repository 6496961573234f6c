"""Real programs and a real server on loopback: an alert arrives once, masked, and never delays the run."""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from prime_train.core.redaction import MASK
from prime_train.events import AlarmRaised, AlertSent, AttemptEnded, GpuLeftOut, Progress, RunClosed
from prime_train.spec import ENDLESS_STEPS
from prime_train.supervise.core.event_text import build_alert
from prime_train.supervise.core.state import AttemptState, State
from prime_train.supervise.services.alerts import AlertLimits, AlertSender
from tests.planted import KINDS, draw, in_text

QUICK = AlertLimits(retry_s=0.01, deadline_s=5.0)
ALARM = AlarmRaised(
    *(2, "gpu", "gpu_lost", "GPU 1", "restart", "hardware"),
    *("GPU 1 has fallen off the bus", "XID 79", "power the machine off and on", "0000:3b:00.0", 40),
)
STATE = State(run="rl", step=40, max_steps=300, attempts=(AttemptState(2),))


def _program(path: Path, body: str) -> tuple[str, ...]:
    path.write_text("import json, os, sys, time\nalert = json.load(sys.stdin)\n" + body, encoding="utf-8")
    return (sys.executable, str(path))


def _until(found: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + 20
    while not found():
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


class _Server(ThreadingHTTPServer):
    """Answers with the given codes in turn, the last one for ever; keeps what it was sent."""

    daemon_threads = True

    def __init__(self, *codes: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.codes = list(codes)
        self.got: list[dict[str, object]] = []
        self.hold = threading.Event()
        self.hold.set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook/s3cret-path"


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.hold.wait(30)
        code = self.server.codes.pop(0) if len(self.server.codes) > 1 else self.server.codes[0]
        self.send_response(code)
        if code == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[..., _Server]]:
    begun: list[_Server] = []

    def start(*codes: int) -> _Server:
        server = _Server(*codes)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        begun.append(server)
        return server

    yield start
    for server in begun:
        server.hold.set()
        server.shutdown()
        server.server_close()


def _posting(address: str, limits: AlertLimits = QUICK, **more: str) -> AlertSender:
    return AlertSender((), "HOOK", {"HOOK": address, **more}, limits)


def test_an_alert_has_no_secret_of_any_form(tmp_path: Path) -> None:
    out, chance = tmp_path / "out.json", random.Random(13)
    planted = {kind: draw(chance, kind) for kind in KINDS}
    alerts = AlertSender(_program(tmp_path / "p.py", f"json.dump(alert, open({str(out)!r}, 'w'))"), None, {}, QUICK)
    alerts.send(
        "gpu",
        {"why": "\n".join(text for _, text in planted.values()), "parts": [[text for _, text in planted.values()]]},
    )
    assert [sent.failed for sent in alerts.close()] == [""]
    got = out.read_text(encoding="utf-8")
    assert MASK in json.loads(got)["why"]
    assert [kind for kind, (secret, _) in planted.items() if in_text(got, secret)] == []


def test_a_program_finds_the_alert_on_its_input(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    told = build_alert(ALARM, STATE)
    assert told is not None
    body = f"json.dump([alert, dict(os.environ)], open({str(out)!r}, 'w'))"
    environment = {"HF_TOKEN": "hf-very-secret", "PRIME_TRAIN_RUN": "/run"}
    alerts = AlertSender(_program(tmp_path / "p.py", body), None, environment, QUICK)
    alerts.send(told.about, told.document | {"why": "the token hf-very-secret was refused"})
    assert alerts.close() == [AlertSent("command", "gpu: gpu_lost: GPU 1")]
    got, seen = json.loads(out.read_text(encoding="utf-8"))
    assert (got["version"], got["run"], got["step"], got["attempt"]) == (1, "rl", 40, 2)
    assert (got["watch"], got["name"], got["fix"]) == ("gpu", "gpu_lost", "power the machine off and on")
    assert "prime-train status rl" in got["commands"]
    assert "hf-very-secret" not in json.dumps(got)
    assert "PRIME_TRAIN_RUN" not in seen
    assert alerts.processes() == ()


@pytest.mark.parametrize(
    ("body", "failed"),
    [
        ("sys.exit(3)", "it exited with 3"),
        ("os.kill(os.getpid(), 9)", "it was killed by signal 9"),
        ("os.close(0)", ""),
    ],
)
def test_how_a_program_ended_is_reported(tmp_path: Path, body: str, failed: str) -> None:
    alerts = AlertSender(_program(tmp_path / "p.py", body), None, {}, QUICK)
    alerts.send("x", {})
    assert alerts.close() == [AlertSent("command", "x", failed)]


def test_a_program_that_does_not_exist() -> None:
    alerts = AlertSender(("/no/such/program",), None, {}, QUICK)
    alerts.send("x", {})
    assert "No such file" in alerts.close()[0].failed


def test_a_program_that_hangs_is_ended_with_what_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    body = (
        "import subprocess\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\ntime.sleep(600)"
    )
    alerts = AlertSender(_program(tmp_path / "p.py", body), None, {}, replace(QUICK, deadline_s=5.0))
    alerts.send("x", {})  # returns while the program runs
    _until(lambda: pids.exists() and bool(alerts.processes()))
    (result,) = alerts.close(flush_s=20)
    assert "ran longer than 5 s" in result.failed
    for pid in pids.read_text(encoding="utf-8").split():
        _until(lambda pid=pid: _is_gone(int(pid)))  # type: ignore[misc]


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_at_the_end_what_still_runs_is_ended_and_what_waits_is_reported(tmp_path: Path) -> None:
    alerts = AlertSender(_program(tmp_path / "p.py", "time.sleep(600)"), None, {}, replace(QUICK, deadline_s=600))
    alerts.send("first", {})
    alerts.send("second", {})
    _until(lambda: bool(alerts.processes()))
    (child,) = alerts.processes()
    results = {result.about: result.failed for result in alerts.close(flush_s=0.1)}
    assert results["second"] == "the run ended before it was sent"
    _until(lambda: not child.alive)


@pytest.mark.parametrize(
    ("codes", "posts", "failed"),
    [
        ((200,), 1, ""),
        ((500, 429, 204), 3, ""),
        ((503,), 3, "the server answered 503"),
        ((404,), 1, "the server answered 404"),
        ((302,), 1, "the server answered 302"),
    ],
)
def test_a_webhook_is_tried_again_where_that_may_help(
    serve: Callable[..., _Server], codes: tuple[int, ...], posts: int, failed: str
) -> None:
    server = serve(*codes)
    alerts = _posting(server.address, OTHER_TOKEN="tok-12345")
    alerts.send("x", {"what": "tok-12345 at " + server.address})
    assert alerts.close() == [AlertSent("webhook", "x", failed)]
    assert len(server.got) == posts
    assert "s3cret" not in json.dumps(server.got)
    assert "tok-12345" not in json.dumps(server.got)


def test_a_server_that_is_not_there_is_reported_without_its_address(serve: Callable[..., _Server]) -> None:
    server = serve(200)
    address = server.address
    server.shutdown()
    server.server_close()
    alerts = _posting(address)
    alerts.send("x", {})
    (result,) = alerts.close()
    assert "cannot be reached" in result.failed
    assert "s3cret" not in result.failed


def test_a_server_that_does_not_answer_delays_nothing(serve: Callable[..., _Server]) -> None:
    server = serve(200)
    server.hold.clear()
    alerts = _posting(server.address, replace(QUICK, deadline_s=600, most_waiting=2))
    for number in range(5):
        alerts.send(f"x{number}", {})
    _until(lambda: bool(server.got))
    told = alerts.close(flush_s=0.1)
    assert any("still wait" in result.failed for result in told)


@pytest.mark.parametrize(
    "address",
    ["", "http://example.org/x", "http://[::1", "https://example.org/two words"],
)
def test_an_address_that_is_not_safe_is_refused_and_not_quoted(address: str) -> None:
    alerts = _posting(address)
    alerts.send("x", {})
    (result,) = alerts.close()
    assert result.about == "set-up"
    assert result.failed
    assert not address or address not in result.failed


def test_the_same_is_not_reported_twice_and_a_flood_is_counted(serve: Callable[..., _Server]) -> None:
    server = serve(200)
    alerts = _posting(server.address, replace(QUICK, most_at_once=3, then_every_s=3600))
    for _ in range(4):
        alerts.send("same", {})
    for number in range(10):
        alerts.send(f"n{number}", {})
    alerts.send("the end", {}, at_once=True)
    assert [result.about for result in alerts.close()] == ["same", "n0", "n1", "the end"]
    assert [got["not_told_before"] for got in server.got] == [0, 3, 0, 8]


def test_without_a_channel_nothing_happens() -> None:
    alerts = AlertSender((), None, {})
    alerts.send("x", {})
    assert alerts.close() == []
    assert threading.active_count() < 50


def test_which_events_are_reported() -> None:
    failed = AttemptEnded(2, 1, "failed", "oom", "no memory", "", "", "", 40, cause_id="CUDA001")
    told = build_alert(failed, STATE)
    assert told is not None
    assert (told.about, told.document["id"], told.document["newest_checkpoint"]) == ("attempt 2 failed", "CUDA001", 40)
    assert told.document["text"] == "rl, step 40 of 300: attempt 2 failed\nwhat: no memory"
    served = build_alert(failed, replace(STATE, max_steps=ENDLESS_STEPS))
    assert served is not None
    assert served.document["text"].startswith("rl, step 40: ")
    end = build_alert(RunClosed("failed", 6, "three in a row"), replace(STATE, exit_code=6))
    assert end is not None
    assert end.is_end
    assert (end.document["why"], end.document["exit_code"]) == ("three in a row", 6)
    assert build_alert(GpuLeftOut("GPU-1", "twice"), STATE) is not None
    assert build_alert(replace(ALARM, answer="note"), STATE) is None
    assert build_alert(replace(failed, outcome="stopped"), STATE) is None
    assert build_alert(Progress(1, 1, 1.0, 1.0, 1), STATE) is None
    for told in (build_alert(ALARM, STATE), end):
        assert told is not None
        assert json.loads(json.dumps(told.document)) == told.document
