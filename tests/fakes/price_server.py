"""A price service on this machine: answers as Prime Intellect and Vast document it, or with a fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PRIME_INTELLECT = "/api/v1/availability/gpus"
VAST = "/api/v0/bundles/"


def prime_offer(**changes: Any) -> dict[str, Any]:
    """One item of Prime Intellect's answer. Shape: docs.primeintellect.ai/api-reference/check-gpu-availability."""
    offer: dict[str, Any] = {
        "cloudId": "gpu-h100-sxm_8gpu-128vcpu-1600gb",
        "gpuType": "H100_80GB",
        "socket": "SXM5",
        "provider": "nebius",
        "dataCenter": "eu-north1",
        "country": "FI",
        "gpuCount": 8,
        "gpuMemory": 640,
        "disk": {"minCount": None, "defaultCount": 100, "maxCount": None, "pricePerUnit": None, "step": None},
        "vcpu": {"defaultCount": 128},
        "memory": {"defaultCount": 1600},
        "interconnect": None,
        "interconnectType": None,
        "provisioningTime": None,
        "stockStatus": "Available",
        "security": "secure_cloud",
        "prices": {"onDemand": 16.944, "communityPrice": None, "isVariable": None, "currency": "USD"},
        "images": ["ubuntu_22_cuda_12"],
        "isSpot": None,
        "prepaidTime": None,
    }
    return offer | changes


def vast_offer(**changes: Any) -> dict[str, Any]:
    """One offer of Vast's answer. Shape: docs.vast.ai/api-reference/search/search-offers."""
    offer: dict[str, Any] = {
        "id": 12345678,
        "gpu_name": "H100 SXM",
        "num_gpus": 8,
        "gpu_ram": 81559,
        "dph_base": 15.9,
        "dph_total": 16.0,
        "geolocation": "Vietnam, VN",
        "is_bid": False,
        "min_bid": 8.0,
        "rentable": True,
        "reliability2": 0.998,
        "cuda_max_good": 12.8,
    }
    return offer | changes


@dataclass
class Answer:
    """What the server does with one question. `cut_to` sends so many bytes of those it announced; `silent` none."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    cut_to: int | None = None
    silent: bool = False

    @property
    def content(self) -> bytes:
        return self.body.encode() if isinstance(self.body, str) else json.dumps(self.body).encode()


class PriceServer:
    """`answers` per path, in turn, the last one again and again; `asked` are (path, query, headers)."""

    def __init__(self) -> None:
        self.answers: dict[str, list[Answer]] = {}
        self.asked: list[tuple[str, dict[str, list[str]], dict[str, str]]] = []
        self.closing = threading.Event()
        self.url = ""

    def next_answer(self, path: str) -> Answer:
        script = self.answers.get(path)
        if not script:
            return Answer(404, {"detail": "Not Found"})
        return script.pop(0) if len(script) > 1 else script[0]

    def questions(self, path: str) -> list[dict[str, list[str]]]:
        return [query for asked, query, _ in self.asked if asked == path]


@contextmanager
def running() -> Iterator[PriceServer]:
    """A server on a free port of the loopback, until the block ends."""
    served = PriceServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            served.asked.append((parts.path, parse_qs(parts.query), dict(self.headers)))
            answer = served.next_answer(parts.path)
            if answer.silent:
                served.closing.wait(30.0)
                return
            content = answer.content
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: answer.cut_to])

        def log_message(self, *_: Any) -> None:
            """Says nothing: a test reads `asked`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        served.closing.set()
        server.shutdown()
        thread.join()
        server.server_close()
