"""Starts `prime-train control` as a process of its own, and asks it over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prime_train.control.access import Role, Tokens
from tests.unit.cli.commands import PROGRAM, clean_environment

ANSWER_S = 60.0
CONFIG = """
[run]
name = "small"
max_steps = 100
[[data.sources]]
kind = "python-stdlib"
[schedule]
warmup_steps = 10
"""


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text)
        return found


class Served(NamedTuple):
    """A controller that runs."""

    process: subprocess.Popen[str]
    url: str
    viewer_url: str
    fingerprint: str | None
    bus: Mapping[str, Any] = {}  # address and machines, with --bus

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    @property
    def origin(self) -> str:
        return self.url.partition("/?")[0]

    @property
    def token(self) -> str:
        return self.url.partition("?t=")[2]

    @property
    def viewer_token(self) -> str:
        return self.viewer_url.partition("?t=")[2]

    @property
    def owner(self) -> dict[str, str]:
        """The headers of the page in the browser of an owner."""
        return self._headers("owner")

    @property
    def viewer(self) -> dict[str, str]:
        return self._headers("viewer")

    def _headers(self, role: Role) -> dict[str, str]:
        session = Tokens(self.token, self.viewer_token).create_session(role, time.time())
        return {"Cookie": f"prime_train_{self.port}={session}", "Origin": self.origin}

    def ask(self, method: str, path: str, headers: Mapping[str, str], body: str | bytes | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            text = answer.read().decode(errors="surrogateescape")  # a trace is no text
            return Answer(answer.status, dict(answer.getheaders()), text)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path, self.owner)

    def send(self, request: Any, **headers: str) -> Answer:
        body = request if isinstance(request, bytes) else json.dumps(request)
        return self.ask("POST", "/api/request", self.owner | {"Content-Type": "application/json"} | headers, body)


@contextlib.contextmanager
def serve(folder: Path, port: int = 0, *options: str) -> Iterator[Served]:
    """`prime-train control` in a folder; it is ended as Ctrl-C ends it."""
    command = [str(PROGRAM), "control", "--port", str(port), "--json", *options]
    process = subprocess.Popen(command, cwd=folder, env=clean_environment(), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        found = json.loads(process.stdout.readline())
        yield Served(process, found["url"], found["viewer_url"], found["fingerprint"], found.get("bus", {}))
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            assert process.wait(ANSWER_S) == 0
        process.stdout.close()
