"""Kept-alive connections to the vLLM server of a run, for many threads. Only on this machine, without proxies."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from prime_train.trainer.rl.engines.engine import EngineError

MAX_ANSWER_BYTES = 64 * 2**20
_API_KEY = "VLLM_API_KEY"  # the server reads the same variable


class ServerConnections:
    """As many connections as requests at the same time. Requests must be repeatable: see `post`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: list[HTTPConnection] = []
        self._busy: set[HTTPConnection] = set()
        self._closed = False
        self._lock = threading.Lock()  # guards everything above
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get(_API_KEY):
            self._headers["Authorization"] = f"Bearer {key}"

    def post(self, path: str, body: Mapping[str, Any], limit_s: float) -> Any:
        """The JSON of the answer. Raises EngineError if there is none within `limit_s`, or one with an error status.

        The server closes a connection that was idle for some seconds. A request that meets such an end is sent once
        more on a new connection; it may then run twice.
        """
        connection, used = self._take()
        try:
            return self._exchange(connection, path, body, limit_s)
        except (ConnectionError, HTTPException) as error:  # RemoteDisconnected is both
            if not used:
                raise self._explain(path, error) from error
        except OSError as error:
            raise self._explain(path, error) from error
        try:
            return self._exchange(self._connect(), path, body, limit_s)
        except (OSError, HTTPException) as error:
            raise self._explain(path, error) from error

    def close(self) -> None:
        """Close all connections; requests in progress raise EngineError."""
        with self._lock:
            self._closed = True
            busy, idle = list(self._busy), self._idle
            self._idle = []
        for connection in idle:
            connection.close()
        for connection in busy:
            if connection.sock is not None:
                with contextlib.suppress(OSError):  # it may have ended by itself
                    connection.sock.shutdown(socket.SHUT_RDWR)

    def _exchange(self, connection: HTTPConnection, path: str, body: Mapping[str, Any], limit_s: float) -> Any:
        with self._count_busy(connection):
            connection.timeout = limit_s
            if connection.sock is not None:
                connection.sock.settimeout(limit_s)
            connection.request("POST", path, json.dumps(body), self._headers)
            response = connection.getresponse()
            text = response.read(MAX_ANSWER_BYTES + 1)
        if len(text) > MAX_ANSWER_BYTES:
            connection.close()
            raise EngineError(f"{self._url}{path} answers with more than {MAX_ANSWER_BYTES >> 20} MiB")
        self._give_back(connection)
        if response.status != 200:
            words = " ".join(text[:2000].decode("utf-8", "replace").split())[:300]
            raise EngineError(f"{self._url}{path} answers {response.status}: {words}")
        try:
            return json.loads(text) if text else None
        except ValueError as error:
            raise EngineError(f"{self._url}{path} answers with what is no JSON") from error

    @contextlib.contextmanager
    def _count_busy(self, connection: HTTPConnection) -> Iterator[None]:
        """Close the connection if the exchange fails, because the rest of its answer may still arrive."""
        with self._lock:
            if self._closed:
                raise EngineError("the engine is closed")
            self._busy.add(connection)
        try:
            yield
        except BaseException:
            connection.close()
            raise
        finally:
            with self._lock:
                self._busy.discard(connection)

    def _take(self) -> tuple[HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        with self._lock:
            if self._idle:
                return self._idle.pop(), True
        return self._connect(), False

    def _give_back(self, connection: HTTPConnection) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    def _connect(self) -> HTTPConnection:
        parts = urlsplit(self._url)
        return HTTPConnection(parts.hostname or "", parts.port)

    def _explain(self, path: str, error: Exception) -> EngineError:
        if self._closed:
            return EngineError("the engine is closed")
        reason = "no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return EngineError(f"{self._url}{path}: {reason}")
