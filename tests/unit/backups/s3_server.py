"""A real S3 server on this machine (moto), which can fail a part of its calls. Run as a program: prints its address.

A call fails in one of three ways: 503 before it is done, 500 after it is done, or the connection is reset after it is
done. PUT /_faults?ratio=0.3&seed=1 sets the part.
"""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing-secret-key",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
Start = Callable[..., Any]


class FaultyApp:
    def __init__(self, app: Callable[[dict[str, Any], Start], Iterable[bytes]]) -> None:
        self._app = app
        self._ratio = 0.0
        self._random = random.Random(0)
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/_faults":
            query = parse_qs(environ["QUERY_STRING"])
            with self._lock:
                self._ratio, self._random = float(query["ratio"][0]), random.Random(int(query["seed"][0]))
            start("200 OK", [("Content-Length", "0")])
            return []
        with self._lock:
            fault = self._random.choice(("before", "after", "reset")) if self._random.random() < self._ratio else ""
        if fault == "before":
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            return _fail(start, "503 Slow Down", b"SlowDown")
        if not fault:
            return self._app(environ, start)
        b"".join(self._app(environ, lambda *_: lambda _: None))
        if fault == "after":
            return _fail(start, "500 Internal Server Error", b"InternalError")
        with contextlib.suppress(OSError):
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        raise ConnectionResetError


def _fail(start: Start, status: str, code: bytes) -> Iterable[bytes]:
    body = b'<?xml version="1.0"?><Error><Code>' + code + b"</Code><Message>a fault of the test</Message></Error>"
    start(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
    return [body]


def main() -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = FaultyApp(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the test closes it, or dies


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """The address of a server that ends with the block."""
    argv = [sys.executable, "-m", "tests.unit.backups.s3_server"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip()
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()


def set_faults(address: str, ratio: float, seed: int = 0) -> None:
    request = urllib.request.Request(f"{address}/_faults?ratio={ratio}&seed={seed}", method="PUT")
    urllib.request.urlopen(request).close()


if __name__ == "__main__":
    main()
