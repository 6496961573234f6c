"""Plays the metadata servers of AWS, Google Cloud and Azure on the loopback interface."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "AQAE-a-token"
MACHINE = "trainer_3"


class MetadataServer:
    """`cloud` is which one it plays. `clock_ahead_s`: how far the clocks of cloud and machine differ."""

    def __init__(self, cloud: str) -> None:
        self.cloud = cloud
        self.clock_ahead_s = 0.0
        self.refuses = False
        self.asked: list[str] = []  # method and path of each question that had the right headers
        self.token = TOKEN
        self._notice: dict[str, Any] | None = None
        self._hint = False
        self._changed = threading.Condition()
        self._version = 1
        server = self

        class Answers(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                server.respond(self)

            do_PUT = do_GET

            def date_time_string(self, timestamp: float | None = None) -> str:
                return formatdate(time.time() + server.clock_ahead_s if timestamp is None else timestamp, usegmt=True)

            def reply(self, status: int, body: str, **headers: str) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.send_header("Content-Length", str(len(body.encode())))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.wfile.write(body.encode())

            def log_message(self, format: str, *_: object) -> None:
                """Nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def announce(self, left_s: float, machine: str = MACHINE, kind: str = "") -> None:
        """The machine goes away in `left_s` seconds. `kind`: the cloud's word, if it is not the usual one."""
        at_s = time.time() + self.clock_ahead_s + left_s
        match self.cloud:
            case "aws":
                when = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                self._notice = {"action": kind or "terminate", "time": when}
            case "azure":
                event = {
                    "EventId": "602d9444",
                    "EventType": kind or "Preempt",
                    "ResourceType": "VirtualMachine",
                    "Resources": [machine],
                    "EventStatus": "Scheduled",
                    "NotBefore": formatdate(at_s, usegmt=True),
                }
                self._notice = {"DocumentIncarnation": 1, "Events": [event]}
            case _:
                self._notice = {"preempted": "TRUE"}
        self._change()

    def hint(self) -> None:
        """AWS: the machine is at a higher risk."""
        self._hint = True

    def withdraw(self) -> None:
        self._notice = None
        self._change()

    def _change(self) -> None:
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def respond(self, handler: Any) -> None:
        if self.refuses:
            handler.reply(403, "")
            return
        parts = urlsplit(handler.path)
        match self.cloud:
            case "aws":
                self._respond_aws(handler, parts.path)
            case "gcp":
                self._respond_gcp(handler, parts.path, parse_qs(parts.query))
            case "azure":
                self._respond_azure(handler, parts.path)

    def _respond_aws(self, handler: Any, path: str) -> None:
        if handler.command == "PUT":
            lasts = handler.headers.get("X-aws-ec2-metadata-token-ttl-seconds")
            handler.reply(200 if path == "/latest/api/token" and lasts else 400, self.token)
        elif handler.headers.get("X-aws-ec2-metadata-token") != self.token:
            handler.reply(401, "")
        else:
            self.asked.append(path)
            if path == "/latest/meta-data/spot/instance-action" and self._notice:
                handler.reply(200, json.dumps(self._notice))
            elif path == "/latest/meta-data/events/recommendations/rebalance" and self._hint:
                handler.reply(200, '{"noticeTime": "2026-11-23T08:22:00Z"}')
            else:
                handler.reply(404, "")

    def _respond_gcp(self, handler: Any, path: str, query: dict[str, list[str]]) -> None:
        if handler.headers.get("Metadata-Flavor") != "Google" or not path.endswith("/instance/preempted"):
            handler.reply(403, "")
            return
        waits = query.get("wait_for_change") == ["true"]
        self.asked.append("wait" if waits else "now")
        with self._changed:
            if waits and query.get("last_etag") == [f"e{self._version}"]:
                self._changed.wait(float(query["timeout_sec"][0]))
            body, etag = ("TRUE" if self._notice else "FALSE"), f"e{self._version}"
        handler.reply(200, body, Metadata_Flavor="Google", ETag=etag)

    def _respond_azure(self, handler: Any, path: str) -> None:
        if handler.headers.get("Metadata") != "true":
            handler.reply(400, "")
        elif path == "/metadata/instance/compute/name":
            handler.reply(200, MACHINE)
        else:
            self.asked.append(path)
            handler.reply(200, json.dumps(self._notice or {"DocumentIncarnation": 0, "Events": []}))

    @contextlib.contextmanager
    def serving(self) -> Iterator[MetadataServer]:
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def start(self) -> None:
        threading.Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._change()
        self._http.shutdown()
        self._http.server_close()
