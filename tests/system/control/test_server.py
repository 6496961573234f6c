"""The controller as a process: who may ask what, what it answers, and that nothing else has an effect."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from prime_train.cli.control import control
from prime_train.control.watcher import Watcher
from prime_train.core.errors import UserError
from prime_train.core.process_id import own_identity
from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, RequestAnswered
from prime_train.spec.live_keys import LIVE_KEYS
from prime_train.supervise.answers.settings import read_change
from prime_train.supervise.processes.lock import hold_run
from prime_train.supervise.processes.requests import SETTINGS_REQUESTED, Request, RequestReader
from tests.system.control.served import ANSWER_S, CONFIG, Answer, Served, serve
from tests.unit.cli.commands import prime_train, wait_until
from tests.unit.views.written_runs import (
    DEATH,
    FIRST_ATTEMPT,
    TRACE,
    WHOLE_LIFE,
    write_config,
    write_metrics,
    write_run,
    write_trace,
)

pytest.importorskip("sse_starlette", reason="the extra `control` is not installed")
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("served")
    write_run(found / "runs" / "small", WHOLE_LIFE)
    write_trace(RunDir(found / "runs" / "small"))
    run_dir = write_run(found / "runs" / HOSTILE, (*FIRST_ATTEMPT, *DEATH))
    write_metrics(run_dir, 50)
    run_dir.attempt(1).mkdir(parents=True)
    run_dir.evidence(1).mkdir(parents=True)
    (run_dir.evidence(1) / "stacks-trainer-7.txt").write_text(HOSTILE, "utf-8")
    run_dir.log(1, "trainer").write_text("\n".join([*(f"line {n}" for n in range(1000)), HOSTILE, ""]), "utf-8")
    return found


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Served]:
    with serve(folder) as found:
        wait_until(lambda: found.get("/api/state").document["controller"]["is_complete"])
        yield found


def test_the_address_with_the_token_gives_a_cookie_that_no_script_reads(served: Served) -> None:
    answer = served.ask("GET", f"/?t={served.token}", {})
    assert (answer.status, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"prime_train_{served.port}=owner.")
    assert served.token not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    page = served.get("/")
    assert page.status == 200
    assert "script-src 'self';" in page.headers["content-security-policy"]
    assert page.headers["content-security-policy"].startswith("default-src 'none'")
    for path in ("/app.js", "/charts.js", "/style.css", "/plotly.min.js"):
        assert served.get(path).status == 200, path
    assert not re.search(r"<script>|\son\w+=|style=", page.text), "no code and no style inside the page"


SECRET = ("/api/state", "/api/stream", "/api/run?name=small", f"/api/trace?name=small&trace={TRACE}", "/metrics")


@pytest.mark.parametrize("path", ["/", "/app.js", *SECRET, "/x"])
def test_nothing_is_shown_without_a_token(served: Served, path: str) -> None:
    cookies = ("a" * 43, served.token, f"owner.99999999999.{'0' * 64}")  # the token itself is no session
    headers_of_cookies = [{"Cookie": f"prime_train_{served.port}={one}"} for one in cookies]
    session = served.owner["Cookie"].partition("=")[2]
    for headers in ({}, *headers_of_cookies, {"Authorization": "Bearer x"}, {"Authorization": f"Bearer {session}"}):
        answer = served.ask("GET", path, headers)
        assert answer.status == 401
        assert set(answer.document["error"]) == {"what", "where", "why", "fix"}
    assert served.ask("GET", "/?t=" + "a" * 43, {}).status == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "rebound.example"},
        {"Host": "127.0.0.1:1"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
    ],
)
def test_a_request_of_another_site_has_no_effect(served: Served, headers: dict[str, str]) -> None:
    request = {"run": "small", "kind": "stop_requested"}
    assert served.send(request, **headers).status == 403
    if headers != {"Origin": ""}:  # a browser sends none with the requests of its address bar
        assert served.ask("GET", "/api/state", served.owner | headers).status == 403


def test_a_viewer_reads_and_sends_nothing(served: Served) -> None:
    assert served.ask("GET", "/api/state", served.viewer).document["role"] == "viewer"
    body = json.dumps({"run": "small", "kind": "stop_requested"})
    answer = served.ask("POST", "/api/request", served.viewer | {"Content-Type": "application/json"}, body)
    assert (answer.status, answer.document["error"]["what"]) == (403, "a viewer sends no requests")


def test_a_trace_is_a_file_to_save_for_a_viewer_too(served: Served, folder: Path) -> None:
    content = (folder / "runs" / "small" / "profile" / TRACE).read_bytes()
    [shown] = served.get("/api/run?name=small").document["traces"]
    assert (shown["name"], shown["size_bytes"], shown["note"], shown["ready"]) == (TRACE, len(content), "", True)
    answer = served.ask("GET", f"/api/trace?name=small&trace={TRACE}", served.viewer)
    assert (answer.status, answer.text.encode(errors="surrogateescape")) == (200, content)
    assert answer.headers["content-disposition"] == f'attachment; filename="small-{TRACE}"'
    assert answer.headers["content-type"] == "application/gzip"
    assert "content-encoding" not in answer.headers, "a browser would unpack it"
    assert answer.headers["x-content-type-options"] == "nosniff"


HOSTILE_TRACES = ("..%2Fevents", "a%22%0Ab.trace.json.gz", "", "x" * 999)


@pytest.mark.parametrize(
    "query",
    [
        "",
        *(f"name={run}&trace={TRACE}" for run in ("x", "m2%2Fsmall")),
        *(f"name=small&trace={one}" for one in HOSTILE_TRACES),
    ],
)
def test_a_trace_that_is_not_there_has_a_message_of_four_parts(served: Served, query: str) -> None:
    answer = served.get(f"/api/trace?{query}")
    assert answer.status == 404
    assert set(answer.document["error"]) == {"what", "where", "why", "fix"}


def test_no_get_changes_anything(served: Served, folder: Path) -> None:
    before = sorted(str(path) for path in (folder / "runs").rglob("*") if ".control" not in path.parts)
    for path in ("/api/request?run=small&kind=stop_requested", "/api/request"):
        assert served.get(path).status == 405
    for path in (*SECRET[2:], "/api/state", "/api/log?name=small", "/"):
        served.get(path)
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
        assert served.ask(method, "/api/request", served.owner).status == 405
    after = sorted(str(path) for path in (folder / "runs").rglob("*") if ".control" not in path.parts)
    assert after == before


def test_documents_have_the_runs_and_the_names_as_text(served: Served) -> None:
    state = served.get("/api/state").document
    assert set(state["runs"]) == {"small", HOSTILE}
    assert state["failures"][HOSTILE][0]["what"] == "killed by signal 9 (SIGKILL)"
    quoted = "%3Cimg%20src=x%20onerror=alert(1)%3E"
    detail = served.get(f"/api/run?name={quoted}")
    assert detail.headers["content-type"] == "application/json"
    assert detail.headers["x-content-type-options"] == "nosniff"
    assert len(detail.document["curves"]["loss"]["step"]) == 50
    log = served.get(f"/api/log?name={quoted}&attempt=1&lines=few").document
    assert f"trainer | {HOSTILE}" in log["lines"]
    assert len(log["lines"]) <= 100
    assert log["evidence"] == [{"name": "stacks-trainer-7.txt", "lines": [HOSTILE]}]
    assert served.get("/api/run?name=../small").status == 404
    assert served.get("/api/log?name=small&attempt=-1").status == 404
    assert served.get("/api/log?name=small&attempt=7").document["problem"] == "there is no log"


@pytest.mark.parametrize(
    ("body", "status", "what"),
    [
        (b"{", 400, "no JSON"),
        pytest.param(b"[" * 60_000, 400, "no JSON", id="deep"),
        pytest.param(b"x" * 70_000, 413, "too long", id="long"),
        ([], 409, "no object with the keys"),
        ({"run": "small", "kind": "x"}, 409, "not known"),
        ({"run": "small", "kind": "settings_requested", "more": 1}, 409, "no object with the keys"),
        ({"run": "small", "kind": "settings_requested", "body": []}, 409, "its body is no object"),
        ({"run": "small", "kind": "settings_requested", "id": "../x"}, 409, "its id"),
        ({"run": "../small", "kind": "settings_requested"}, 409, "no run"),
        ({"run": "small", "kind": "settings_requested", "body": {"values": {}}}, 409, "no supervisor runs it"),
        ({"run": "small", "kind": "stop_requested"}, 409, "no supervisor runs it"),
        ({"run": "small", "kind": "command_requested", "body": {"command": ["pin"]}}, 409, "no supervisor runs it"),
        ({"run": "small", "kind": "command_requested", "body": {"command": {}}}, 409, "no supervisor runs it"),
    ],
)
def test_a_bad_request_has_a_message_of_four_parts(served: Served, body: Any, status: int, what: str) -> None:
    answer = served.send(body)
    assert answer.status == status
    error = answer.document["error"]
    assert what in error["what"]
    assert all(error[part] for part in ("where", "why", "fix"))


def test_a_change_is_judged_without_being_made(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    write_config(run_dir, CONFIG)

    def judge(values: str, headers: dict[str, str] | None = None) -> Answer:
        address = f"/api/preview?name=small&values={quote(values)}"
        return controller.ask("GET", address, controller.owner if headers is None else headers)

    with serve(tmp_path) as controller:
        wait_until(lambda: "small" in controller.get("/api/state").document["runs"])
        before = sorted(map(str, run_dir.path.rglob("*")))
        assert judge('{"optim.lr": 2e-4}').document == {"texts": ["optim.lr = 0.0002, was 0.001"]}
        refused = judge('{"run.seed": 2}').document["error"]
        assert (refused["what"], refused["why"]) == (
            "run.seed does not change while the run trains",
            "it decides what each step reads",
        )
        for values in ("", "{", "[]", "{}", '{"optim.lr": NaN}', json.dumps({f"k{n}": 1 for n in range(65)})):
            answer = judge(values)
            assert (answer.status, answer.document["error"]["what"]) == (409, "these are no values"), values
        assert judge('{"optim.lr": 2e-4}', controller.viewer).status == 404
        editor = controller.get("/api/run?name=small").document["editor"]
        found = {one["key"]: one for one in editor["keys"]}
        assert set(found) == {each.key for each in LIVE_KEYS if "pretrain" in each.kinds}
        assert (found["optim.lr"]["value"], found["optim.lr"]["legal"]) == (0.001, "a number, > 0")
        assert "no effect" in found["optim.muon_lr"]["obstacle"]
        assert sorted(map(str, run_dir.path.rglob("*"))) == before


def test_a_pin_needs_the_step_of_a_checkpoint(served: Served) -> None:
    for step in (None, "50", 0, True, 10**18, 7):
        answer = served.send({"run": "small", "kind": "command_requested", "body": {"command": "pin", "step": step}})
        assert answer.status == 409
        assert all(answer.document["error"][part] for part in ("what", "where", "why", "fix"))


def test_a_form_of_another_site_is_no_request(served: Served) -> None:
    body = json.dumps({"run": "small", "kind": "stop_requested"}).encode()
    assert served.send(body, **{"Content-Type": "text/plain"}).status == 415


def answer_requests(run_dir: RunDir, taken: list[Request], is_over: threading.Event) -> None:
    """What a supervisor does with requests, without a trainer. A body that it could not read is refused."""
    reader, log = RequestReader(run_dir, own_identity()), EventLog(run_dir.events, "supervisor")
    while not is_over.wait(0.02):
        for found in reader.take(1):
            assert isinstance(found, Request)
            taken.append(found)
            answer = RequestAnswered(found.id, found.kind, "accepted", f"taken {HOSTILE}", "", "")
            change = read_change(found) if found.kind == SETTINGS_REQUESTED else None
            log.append(change if isinstance(change, RequestAnswered) else answer)


def test_a_request_reaches_the_supervisor_once_and_its_answer_comes_back(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    run_dir.requests(1).mkdir(parents=True)
    taken: list[Request] = []
    is_over = threading.Event()
    supervisor = threading.Thread(target=answer_requests, args=(run_dir, taken, is_over))
    with hold_run(run_dir), serve(tmp_path) as served:
        supervisor.start()
        wait_until(lambda: "small" in served.get("/api/state").document["runs"])
        body = {"values": {"optim.lr": 2e-4}, "why": "too fast", "by": "me", "expected": 0}
        request = {"run": "small", "kind": "settings_requested", "id": "a1", "body": body}
        answer = served.send(request)
        assert (answer.status, answer.document["outcome"]) == (200, "accepted")
        assert answer.document["what"] == f"taken {HOSTILE}"
        assert served.send(request).document == answer.document
        assert taken == [Request("settings_requested", "a1", body)], "the same id is asked once"
        by_script = {"Authorization": f"Bearer {served.token}", "Content-Type": "application/json"}
        command = json.dumps({"run": "small", "kind": "command_requested", "body": {"command": "checkpoint"}})
        assert served.ask("POST", "/api/request", by_script, command).status == 200
        assert taken[1].body == {"command": "checkpoint"}
        is_over.set()
        supervisor.join()


def test_many_requests_at_once_change_nothing_and_the_page_stays(served: Served, folder: Path) -> None:
    def send(_number: int) -> list[int]:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=ANSWER_S)
        headers = served.owner | {"Content-Type": "application/json"}
        body = json.dumps({"run": "small", "kind": "command_requested", "body": {"command": "pause"}})
        found = []
        for _ in range(125):
            connection.request("POST", "/api/request", body, headers)
            answer = connection.getresponse()
            answer.read()
            found.append(answer.status)
        connection.close()
        return found

    with ThreadPoolExecutor(16) as pool:
        statuses = [status for found in pool.map(send, range(16)) for status in found]
    assert len(statuses) == 2000  # bench/control.py sends 10,000
    assert set(statuses) <= {409, 503}
    assert not list((folder / "runs" / "small").rglob("requests"))
    assert served.get("/api/state").document["runs"]["small"]["state"] == "finished"


def read_event(stream: http.client.HTTPResponse) -> dict[str, str]:
    """The next event of a stream, without comments."""
    fields: dict[str, str] = {}
    while True:
        line = stream.readline().decode().rstrip("\r\n")
        if not line and "data" in fields:
            return fields
        name, _, value = line.partition(": ")
        if name and value:
            fields[name] = value


def test_a_stream_goes_on_where_it_was_lost(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "runs" / "small", FIRST_ATTEMPT)
    with serve(tmp_path) as served:
        wait_until(lambda: "small" in served.get("/api/state").document["runs"])

        def follow(last: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
            connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=ANSWER_S)
            connection.request("GET", "/api/stream", headers=served.owner | {"Last-Event-ID": last})
            return connection, connection.getresponse()

        connection, stream = follow("")
        first = read_event(stream)
        assert first["event"] == "state"
        connection.close()
        write_run(tmp_path / "runs" / "second", WHOLE_LIFE)
        wait_until(lambda: "second" in served.get("/api/state").document["runs"])
        connection, stream = follow(first["id"])
        change = read_event(stream)
        assert change["event"] == "change"
        seen = dict(json.loads(change["data"]).get("runs", {}))
        while "second" not in seen:
            seen |= json.loads(read_event(stream)["data"]).get("runs", {})
        assert "small" not in seen, "only what changed is sent"
        connection.close()
    assert run_dir.events.is_dir()


def test_a_controller_that_was_killed_shows_the_same_to_the_same_cookie(folder: Path) -> None:
    with serve(folder) as served:
        wait_until(lambda: served.get("/api/state").document["controller"]["is_complete"])
        before, port = served.get("/api/state").document, served.port
        served.process.send_signal(signal.SIGKILL)
        served.process.wait()
    with serve(folder, port) as again:
        assert again.token == served.token
        wait_until(lambda: again.get("/api/state").document["controller"]["is_complete"])
        after = again.get("/api/state").document
    for name in ("runs", "failures", "machines"):
        assert after[name] == before[name]


def test_a_port_in_use_has_a_message_of_four_parts(folder: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        done = prime_train("control", "--port", str(port), cwd=folder)
    assert done.returncode == 4
    assert f"port {port} is in use" in done.stderr
    assert "--port N" in done.stderr


@pytest.mark.parametrize("port", ["-1", "65536", "99999999999999999999"])
def test_a_port_out_of_range_has_a_message_of_four_parts(folder: Path, port: str) -> None:
    done = prime_train("control", "--port", port, cwd=folder)
    assert done.returncode == 2
    for part in (f"{port} is no port", "16 bits", "N from 0 to 65535"):
        assert part in done.stderr


def test_without_runs_there_is_nothing_to_show(tmp_path: Path) -> None:
    done = prime_train("control", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no run to show" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_without_the_extra_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "find_spec", lambda name: None if name == "plotly" else object())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="plotly is not installed") as raised:
        control.control()
    assert "prime-train[control]" in raised.value.fix
    assert raised.value.exit_code == 4


def test_a_look_that_fails_does_not_end_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from starlette.applications import Starlette

    from prime_train.control.server import Controller

    watcher, failed, looked = Watcher(tmp_path), threading.Event(), threading.Event()

    def fail_once() -> bool:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        looked.set()
        return False

    async def follow() -> None:
        async with Controller(watcher).live(Starlette()):
            await asyncio.to_thread(looked.wait, ANSWER_S)

    monkeypatch.setattr(watcher, "look", fail_once)
    asyncio.run(follow())
    assert looked.is_set()
    remark = watcher.stream.snapshot().document["controller"]["remark"]
    assert remark == "the runs cannot be read: RuntimeError: a bug"


def test_top_prints_a_table_where_there_is_no_terminal(folder: Path) -> None:
    done = prime_train("top", cwd=folder)
    assert done.returncode == 0
    assert "small" in done.stdout
    assert HOSTILE.split()[0] in done.stdout
    document = json.loads(prime_train("top", "--json", cwd=folder).stdout)
    assert document["runs"]["small"]["state"] == "finished"
    assert not (folder / "runs" / "small" / ".control").exists()


def test_a_controller_ends_at_once_with_a_page_open(folder: Path) -> None:
    with serve(folder) as served:
        connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=ANSWER_S)
        connection.request("GET", "/api/stream", headers=served.owner)
        read_event(connection.getresponse())
        os.kill(served.process.pid, signal.SIGTERM)
        assert served.process.wait(ANSWER_S) == -signal.SIGTERM
        connection.close()
