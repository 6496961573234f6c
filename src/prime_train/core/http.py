"""Sends one HTTP request and returns the answer, whatever its status. Follows no redirect and repeats nothing.

A redirect would send a key to another address. http.client follows none; it is imported by the first request, because
it takes 5 MiB and most runs send nothing. `send_request` is for a server of the run on this machine, with its key.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from prime_train.core.machines import is_loopback
from prime_train.core.outside import to_count

if TYPE_CHECKING:
    from http.client import HTTPConnection, HTTPResponse

_CHUNK = 2**16
_NO_HEADERS: Mapping[str, str] = {}
API_KEY = "VLLM_API_KEY"  # the variable from which vLLM itself reads the key that requests must carry
_MOST_BYTES = 64 * 2**20


class HttpRequest(NamedTuple):
    """A request to `url`, which may have a query. `body` is sent as it is."""

    method: str
    url: str
    headers: Mapping[str, str] = _NO_HEADERS
    body: bytes | None = None


class HttpBounds(NamedTuple):
    """Seconds until the next byte, seconds until the whole answer, and the most bytes of its body; 0 reads no body."""

    read_s: float
    answer_s: float
    most_bytes: int


class HttpReply(NamedTuple):
    """An answer. The names of `headers` are in small letters."""

    status: int
    body: bytes
    headers: Mapping[str, str]

    @property
    def retry_after_s(self) -> float:
        """The seconds that the server asks to wait; 0 where it names none, or a date."""
        return float(to_count(self.headers.get("retry-after", "").strip()) or 0)


class HttpFault(StrEnum):
    """Why there is no answer."""

    REFUSED = "no program listens at the port"
    UNREACHABLE = "out of reach"
    TIMEOUT = "not in time"
    TRUNCATED = "cut off"
    TOO_LONG = "too long"


class NoReplyError(Exception):
    """There is no whole answer. `detail` has the reason of the system, the seconds or the bytes, never a header."""

    def __init__(self, fault: HttpFault, detail: str) -> None:
        super().__init__(fault, detail)
        self.fault, self.detail = fault, detail


def is_safe(url: str) -> bool:
    """Whether a key may be sent to this address: https, or http on this machine. False for an invalid address."""
    try:
        parts = _split(url)
    except ValueError:
        return False
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def send(request: HttpRequest, bounds: HttpBounds) -> HttpReply:
    """Send the request once.

    Raises NoReplyError, and ValueError for an invalid address. Proxies of the environment are used for https alone,
    because http is for this machine and for the server of its cloud.
    """
    from http.client import HTTPException

    connection, target = _prepare(request.url, bounds.read_s)
    expired = threading.Event()
    try:
        connection.connect()
        with _shut_after(bounds.answer_s, connection.sock, expired):
            headers = {"User-Agent": "prime-train", "Connection": "close", **request.headers}
            connection.request(request.method, target, request.body, headers)
            response = connection.getresponse()
            body = _read(response, bounds, expired) if bounds.most_bytes else b""
            return HttpReply(response.status, body, {name.lower(): value for name, value in response.getheaders()})
    except (OSError, HTTPException, UnicodeError) as error:  # UnicodeError: a host that has no name in the DNS
        if expired.is_set():  # the connection was shut, so the error may be any one
            raise NoReplyError(HttpFault.TIMEOUT, f"no answer within {bounds.answer_s:g} s") from None
        if isinstance(error, TimeoutError):
            raise NoReplyError(HttpFault.TIMEOUT, f"no answer within {bounds.read_s:g} s") from None
        fault = HttpFault.REFUSED if isinstance(error, ConnectionRefusedError) else HttpFault.UNREACHABLE
        raise NoReplyError(fault, str(error) or type(error).__name__) from None
    finally:
        connection.close()


def _prepare(url: str, read_s: float) -> tuple[HTTPConnection, str]:
    """A connection to the server, or to its proxy, and the path that the server is asked for."""
    from http.client import HTTPConnection, HTTPSConnection

    parts = _split(url)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    host = parts.hostname or ""
    if parts.scheme == "http":
        return HTTPConnection(host, parts.port, timeout=read_s), target
    proxy = _find_proxy(parts)
    if proxy is None:
        return HTTPSConnection(host, parts.port, timeout=read_s), target
    connection = HTTPSConnection(proxy.hostname or "", proxy.port or 80, timeout=read_s)  # TLS begins behind the proxy
    headers = {}
    if proxy.username:
        from base64 import b64encode

        login = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
        headers["Proxy-Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    connection.set_tunnel(host, parts.port, headers)
    return connection, target


def _split(url: str) -> SplitResult:
    """The parts of an address. Raises ValueError, which does not quote the address, because that may be a secret."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("the address has a character that an address must escape")
    parts = urlsplit(url)  # raises ValueError for a bracket that is not closed
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:  # or a port that is no number
        raise ValueError("the address does not begin with https:// or http:// and a host")
    return parts


def _find_proxy(parts: SplitResult) -> SplitResult | None:
    """The proxy of the environment for an https address: HTTPS_PROXY, unless NO_PROXY names the host."""
    from urllib.request import getproxies, proxy_bypass

    address = getproxies().get("https")
    if not address or proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


@contextlib.contextmanager
def _shut_after(limit_s: float, opened: socket.socket, expired: threading.Event) -> Iterator[None]:
    """Shut the connection after `limit_s`, because a server may send single bytes for ever, in headers too."""

    def shut() -> None:
        expired.set()
        with contextlib.suppress(OSError):  # the server has just closed it
            socket.socket.shutdown(opened, socket.SHUT_RDWR)  # that of ssl would not wake the thread that reads

    timer = threading.Timer(limit_s, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _read(response: HTTPResponse, bounds: HttpBounds, expired: threading.Event) -> bytes:
    from http.client import IncompleteRead

    content = bytearray()
    length = response.getheader("Content-Length") or ""
    missing = ""
    try:
        while chunk := response.read1(_CHUNK):
            content += chunk
            if len(content) > bounds.most_bytes:
                raise NoReplyError(HttpFault.TOO_LONG, f"more than {bounds.most_bytes >> 20} MiB")
    except IncompleteRead:
        missing = f"the answer ends after {len(content)} bytes"
    if length.isdecimal() and len(content) < int(length):
        missing = f"{len(content)} of {length} bytes arrived"
    if expired.is_set():  # the connection was shut, which looks like an end
        raise NoReplyError(HttpFault.TIMEOUT, f"{len(content)} bytes in {bounds.answer_s:g} s and no end")
    if missing:
        raise NoReplyError(HttpFault.TRUNCATED, missing)
    return bytes(content)


class Answer(NamedTuple):
    """The response. Without one, `status` is 0 and `text` has the reason. `refused`: no program listens at the port."""

    status: int
    text: str
    refused: bool = False

    @property
    def words(self) -> str:
        """Status and text on one line, of at most 200 characters of text."""
        shown = " ".join(self.text.split())[:200]
        return f"{self.status} {shown}".strip() if self.status else shown


def send_request(method: str, url: str, limit_s: float, body: Mapping[str, object] | None = None) -> Answer:
    """Send one request with vLLM's API key from the environment. The whole answer may take `limit_s`."""
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get(API_KEY):
        headers["Authorization"] = f"Bearer {key}"
    request = HttpRequest(method, url, headers, None if body is None else json.dumps(body).encode())
    try:
        reply = send(request, HttpBounds(limit_s, limit_s, _MOST_BYTES))
    except NoReplyError as error:
        return Answer(0, error.detail, error.fault is HttpFault.REFUSED)
    return Answer(reply.status, reply.body.decode("utf-8", "replace"))
