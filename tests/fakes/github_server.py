"""GitHub's REST API for issues on this machine, over real HTTP: the answers of tests/unit/away/world.py, or a fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.away.world import World

REPOSITORY = "someone/experiments"
TOKEN = "ghs_" + "x" * 36


class GithubServer:
    """`world` answers. `faults` are statuses with headers, each for one request, before it is carried out."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.faults: list[tuple[int, dict[str, str]]] = []
        self.asked: list[tuple[str, str]] = []
        self.url = ""
        self.lock = threading.Lock()  # a database carries out one change after the other


@contextmanager
def serve(world: World) -> Iterator[GithubServer]:
    server = GithubServer(world)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else {}
            with server.lock:
                status, document, headers = self._carry_out(body)
            content = json.dumps(document).encode()
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _carry_out(self, body: dict[str, Any]) -> tuple[int, Any, dict[str, str]]:
            server.asked.append((self.command, self.path))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return 401, {"message": "Bad credentials"}, {}
            if server.faults:
                status, headers = server.faults.pop(0)
                return status, {"message": "fault"}, headers
            start = f"/repos/{REPOSITORY}"
            if not self.path.startswith(start):
                return 404, {"message": "Not Found"}, {}
            document = server.world.ask(self.command, self.path.removeprefix(start), body)
            return {"POST": 201}.get(self.command, 200), document, {}

        do_GET = do_POST = do_PATCH = _answer

        def log_message(self, *_: object) -> None:
            """No output."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{http.server_address[1]}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()
