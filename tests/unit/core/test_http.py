"""Servers of a few lines on loopback that redirect, drip, stop half-way, or never answer."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from prime_train.core.http import HttpBounds, HttpFault, HttpReply, HttpRequest, NoReplyError, is_safe, send

BOUNDS = HttpBounds(read_s=10.0, answer_s=20.0, most_bytes=2**20)
Serve = Callable[[socket.socket, bytes], None]  # the connection and the head of the request


class _Listener:
    """Gives each connection to `serve`, in a thread. `heads` are the requests up to the empty line."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self.heads: list[bytes] = []
        self.closing = threading.Event()
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            head = read_head(connection)
            self.heads.append(head)
            try:
                self._serve(connection, head)
            except OSError:
                return  # the client has closed the connection, which most tests want


@contextmanager
def listening(serve: Serve) -> Iterator[_Listener]:
    listener = _Listener(serve)
    try:
        yield listener
    finally:
        listener.closing.set()
        listener.socket.shutdown(socket.SHUT_RDWR)
        listener.socket.close()


def read_head(connection: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head and (chunk := connection.recv(4096)):
        head += chunk
    return head


def answering(content: bytes) -> Serve:
    return lambda connection, _: connection.sendall(content)


OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"Content-Length: 5\r\nX-Kind: greeting\r\n\r\nhello"


def fails(url: str, bounds: HttpBounds = BOUNDS) -> NoReplyError:
    with pytest.raises(NoReplyError) as failed:
        send(HttpRequest("GET", url), bounds)
    return failed.value


def test_the_whole_answer_comes_back() -> None:
    with listening(answering(HELLO)) as server:
        request = HttpRequest("POST", server.url + "/a/b?c=d", {"Authorization": "Bearer key"}, b"{}")
        reply = send(request, BOUNDS)
    assert (reply.status, reply.body, reply.headers["x-kind"]) == (200, b"hello", "greeting")
    (head,) = server.heads
    assert head.startswith(b"POST /a/b?c=d HTTP/1.1\r\n")
    assert b"\r\nAuthorization: Bearer key\r\n" in head
    assert b"\r\nContent-Length: 2\r\n" in head


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed(status: int) -> None:
    with listening(answering(HELLO)) as elsewhere:
        answer = f"HTTP/1.1 {status} Moved\r\nLocation: {elsewhere.url}/x\r\nContent-Length: 0\r\n\r\n".encode()
        with listening(answering(answer)) as server:
            assert send(HttpRequest("GET", server.url), BOUNDS).status == status
        assert elsewhere.heads == []


@pytest.mark.parametrize("status", [204, 400, 404, 500])
def test_every_status_is_an_answer(status: int) -> None:
    with listening(answering(f"HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n".encode())) as server:
        assert send(HttpRequest("GET", server.url), BOUNDS) == HttpReply(status, b"", {"content-length": "0"})


def test_a_body_that_is_too_long_is_not_read_to_its_end() -> None:
    def endless(connection: socket.socket, _: bytes) -> None:
        connection.sendall(OK + b"\r\n")
        while True:
            connection.sendall(bytes(2**16))

    with listening(endless) as server:
        assert fails(server.url).fault is HttpFault.TOO_LONG
        assert send(HttpRequest("GET", server.url), BOUNDS._replace(most_bytes=0)).status == 200


@pytest.mark.parametrize("start", [OK + b"Content-Length: 500\r\n\r\n", OK + b"\r\n", OK + b"X-Long: ", b""])
def test_single_bytes_for_ever_end_at_the_deadline(start: bytes) -> None:
    """In the body, in a body of unknown length, in a header and before the first line."""

    def drip(connection: socket.socket, _: bytes) -> None:
        connection.sendall(start)
        while not server.closing.wait(0.02):
            connection.sendall(b"x")

    with listening(drip) as server:
        assert fails(server.url, BOUNDS._replace(answer_s=0.4)).fault is HttpFault.TIMEOUT


def test_silence_ends_after_the_time_of_one_read() -> None:
    def wait(_connection: socket.socket, _head: bytes) -> None:
        server.closing.wait(30)

    with listening(wait) as server:
        failed = fails(server.url, BOUNDS._replace(read_s=0.2))
    assert (failed.fault, failed.detail) == (HttpFault.TIMEOUT, "no answer within 0.2 s")


@pytest.mark.parametrize(
    "answer",
    [
        OK + b"Content-Length: 50\r\n\r\nhalf",
        OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nff\r\nha",
    ],
)
def test_a_body_that_ends_early_is_no_answer(answer: bytes) -> None:
    with listening(answering(answer)) as server:
        assert fails(server.url).fault is HttpFault.TRUNCATED


@pytest.mark.parametrize("answer", [b"", b"\x00\xff garbage", b"HTTP/1.1 abc\r\n\r\n"])
def test_what_is_no_http_is_out_of_reach(answer: bytes) -> None:
    with listening(answering(answer)) as server:
        assert fails(server.url).fault is HttpFault.UNREACHABLE


def test_a_port_where_no_program_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert fails(f"http://127.0.0.1:{port}/").fault is HttpFault.REFUSED


def test_http_uses_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(answering(HELLO)) as server:
        for name in ("http_proxy", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        assert send(HttpRequest("GET", server.url), BOUNDS).body == b"hello"


@pytest.mark.parametrize(
    ("url", "safe"),
    [
        ("https://api.primeintellect.ai", True),
        ("http://127.0.0.1:8080", True),
        ("http://127.4.5.6/x", True),
        ("http://[::1]:8080", True),
        ("http://localhost", True),
        ("http://api.primeintellect.ai", False),
        ("http://127.0.0.1.example.com", False),
        ("http://localhost.example.com", False),
        ("http://127.0.0.1@example.com/", False),
        ("http://[::1", False),
        ("https://[broken", False),
        ("https:///hook", False),
        ("https://example.com:port/", False),
        ("https://example.com/two words", False),
        ("https://example.com/\n", False),
        ("ftp://127.0.0.1", False),
        ("file:///etc/passwd", False),
        ("api.primeintellect.ai", False),
        ("", False),
    ],
)
def test_a_key_goes_to_https_or_to_this_machine(url: str, safe: bool) -> None:
    assert is_safe(url) is safe


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/secret", "", "https:///secret", "http://a/s e"])
def test_an_invalid_address_is_refused_and_not_quoted(url: str) -> None:
    with pytest.raises(ValueError, match="the address") as refused:
        send(HttpRequest("GET", url), BOUNDS)
    assert not url or url not in str(refused.value)


# --- https ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    path.write_bytes(
        built.public_bytes(pem) + key.private_bytes(pem, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return path


def with_tls(certificate: Path, serve: Serve) -> Serve:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    def answer(connection: socket.socket, _: bytes) -> None:
        with context.wrap_socket(connection, server_side=True) as encrypted:
            serve(encrypted, read_head(encrypted))

    return answer


@contextmanager
def proxied(serve: Serve, login: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[_Listener]:
    """A proxy of the environment that is itself the server behind it."""

    def tunnel(connection: socket.socket, head: bytes) -> None:
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        serve(connection, head)

    with listening(tunnel) as proxy:
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.setenv("https_proxy", f"http://{login}127.0.0.1:{proxy.port}")
        yield proxy


@pytest.mark.parametrize(("login", "sent"), [("", None), ("user:p%40ss@", b"dXNlcjpwQHNz")])
def test_https_goes_through_the_proxy_of_the_environment(
    login: str, sent: bytes | None, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with proxied(with_tls(certificate, answering(HELLO)), login, monkeypatch) as proxy:
        request = HttpRequest("GET", "https://127.0.0.1:1/secret?q=1", {"Authorization": "Bearer key"})
        assert send(request, BOUNDS).body == b"hello"
    (head,) = proxy.heads
    assert head.startswith(b"CONNECT 127.0.0.1:1 HTTP/1.")
    assert (b"Proxy-Authorization: Basic " in head) is (sent is not None)
    assert sent is None or b"Basic " + sent in head
    assert b"secret" not in head
    assert b"Bearer" not in head


def test_the_bytes_behind_a_proxy_have_a_deadline(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def drip(connection: socket.socket, _: bytes) -> None:
        connection.sendall(OK + b"\r\n")
        while not proxy.closing.wait(0.02):
            connection.sendall(b"x")

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with proxied(with_tls(certificate, drip), "", monkeypatch) as proxy:
        assert fails("https://127.0.0.1:1/", BOUNDS._replace(answer_s=0.5)).fault is HttpFault.TIMEOUT


def test_a_certificate_that_is_not_trusted_ends_the_request(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxied(with_tls(certificate, answering(HELLO)), "", monkeypatch):
        failed = fails("https://127.0.0.1:1/")
    assert failed.fault is HttpFault.UNREACHABLE
    assert "CERTIFICATE_VERIFY_FAILED" in failed.detail


def test_a_host_of_no_proxy_is_asked_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with proxied(answering(b""), "", monkeypatch) as proxy:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert fails(f"https://127.0.0.1:{port}/").fault is HttpFault.REFUSED
    assert proxy.heads == []
