"""Plays W&B's server on the loopback interface: one run that the test writes, and the runs that clients log."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

from tests.fakes.wandb_store import WandbStore

# How the server behaves: "busy" answers 429 to each question about a run, "silent" answers nothing.
Mood = Literal["well", "busy", "silent", "broken", "no_login"]


@dataclass
class RunRecord:
    """What W&B holds of one run. Times are seconds since the epoch; None = absent."""

    state: str = "running"
    created_s: float = 0.0
    heartbeat_s: float | None = None
    history: list[tuple[int, float]] = field(default_factory=list)  # step and time, by the trainer's clock
    summary: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    system: list[dict[str, Any]] = field(default_factory=list)


class WandbServer:
    """The server. `run`: None = there is no such run. `questions` are the names of the queries that came."""

    def __init__(self) -> None:
        self.run: RunRecord | None = RunRecord()
        self.mood: Mood = "well"
        self.questions: list[str] = []
        self.store = WandbStore()  # of runs that are logged here
        self._over = threading.Event()
        server = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                if self.path == "/graphql":
                    server.respond(self, body)
                elif self.path.endswith("/file_stream"):
                    server.store.take(self.path.split("/")[-2], body)
                    self.reply(200, b"{}")
                else:  # the client's reports about itself
                    self.reply(404, b"{}")

            def do_GET(self) -> None:
                self.reply(404, b"{}")

            def reply(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(body)

            def log_message(self, format: str, *_: object) -> None:
                """Nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def respond(self, handler: Any, body: bytes) -> None:
        request = json.loads(body or b"{}")
        query, variables = str(request.get("query", "")), request.get("variables") or {}
        name = (
            str(request.get("operationName") or "") or query.split("query", 1)[-1].split("(")[0].split("{")[0].strip()
        )
        self.questions.append(name)
        match self.mood:
            case "silent":
                self._over.wait()
                handler.close_connection = True
            case "busy" if name != "Viewer":
                handler.reply(429, b'{"error": "rate limit exceeded"}')
            case "broken":
                handler.reply(200, b"<html>a proxy's page</html>")
            case "no_login":
                handler.reply(401, b'{"errors": [{"message": "user is not logged in"}]}')
            case _:
                handler.reply(200, json.dumps({"data": self._data(name, query, variables)}).encode())

    def _data(self, name: str, query: str, variables: dict[str, Any]) -> dict[str, Any]:
        if name in ("RunResumeStatus", "UpsertBucket", "CreateRunFiles"):
            return self.store.answer(name, variables)
        if "viewer" in query.lower() and "Run" not in name:
            viewer = {"id": "VXNlcjox", "username": "me", "email": "", "name": "me", "admin": False, "flags": "{}"}
            teams = {"edges": [{"node": {"name": "me"}}]}
            return {"viewer": viewer | {"entity": "me", "teams": teams, "apiKeys": {"edges": []}}}
        if self.run is None:
            return {"project": {"run": None}}
        if "sampledHistory" in query:
            rows = [{"_step": step, "_timestamp": time_s} for step, time_s in self.run.history]
            return {"project": {"run": {"sampledHistory": [rows]}}}
        if "events(" in query:
            return {"project": {"run": {"events": [json.dumps(row) for row in self.run.system]}}}
        if "project" in query and "run(" in query:
            return {"project": {"run": self._run(self.run)}}
        return {}

    def _run(self, run: RunRecord) -> dict[str, Any]:
        last = run.history[-1] if run.history else None
        summary = {"_step": last[0], "_timestamp": last[1]} if last else {}
        config = {name: {"value": value} for name, value in run.config.items()}
        return {
            **dict.fromkeys(("sweepName", "group", "jobType", "commit", "description", "notes"), None),
            "id": "UnVuOjE=",
            "tags": [],
            "name": "abc123",
            "displayName": "small",
            "state": run.state,
            "config": json.dumps(config),
            "readOnly": False,
            "createdAt": _iso(run.created_s),
            "heartbeatAt": None if run.heartbeat_s is None else _iso(run.heartbeat_s),
            "systemMetrics": "{}",
            "summaryMetrics": json.dumps(summary | run.summary),
            "historyLineCount": len(run.history),
            "historyKeys": {"lastStep": last[0]} if last else None,
            "user": {"name": "me", "username": "me"},
            "projectId": "1",
        }

    @contextlib.contextmanager
    def serving(self) -> Iterator[WandbServer]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def variables(self) -> dict[str, str]:
        """What the client needs to ask this server and no other."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": "0" * 40, "WANDB_MODE": "online", "WANDB_SILENT": "true"}


def _iso(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
