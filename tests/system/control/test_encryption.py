"""The page beyond loopback: with TLS on one address, and refused without it."""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import stat
from pathlib import Path

import psutil
import pytest

from prime_train.bus.base import to_word
from tests.system.control.served import ANSWER_S, Served, serve
from tests.unit.cli.commands import prime_train
from tests.unit.views.written_runs import WHOLE_LIFE, write_run

pytest.importorskip("sse_starlette", reason="the extra `control` is not installed")
pytest.importorskip("cryptography", reason="the extra `control` is not installed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    return tmp_path


def find_address() -> str:
    """An address of this machine that is not loopback; "" without a network."""
    found = [one for addresses in psutil.net_if_addrs().values() for one in addresses]
    others = [one.address for one in found if one.family == socket.AF_INET and not one.address.startswith("127.")]
    return next(iter(others), "")


def ask(served: Served, host: str, headers: dict[str, str], certificate: Path) -> tuple[int, bytes]:
    """Status and certificate of an answer. The certificate alone is trusted."""
    context = ssl.create_default_context(cafile=str(certificate))
    connection = http.client.HTTPSConnection(host, served.port, timeout=ANSWER_S, context=context)
    connection.request("GET", "/api/state", headers=headers)
    assert isinstance(connection.sock, ssl.SSLSocket)
    shown = connection.sock.getpeercert(binary_form=True) or b""
    status = connection.getresponse().status
    connection.close()
    return status, shown


@pytest.mark.parametrize("host", ["127.0.0.1", find_address()])
def test_with_its_own_certificate_only_the_owner_of_a_token_reads(folder: Path, host: str) -> None:
    if not host:
        pytest.skip("this machine has no network")
    certificate = folder / "runs" / ".control" / f"{to_word(host)}.pem"
    with serve(folder, 0, "--host", host, "--tls", "auto") as served:
        assert served.url.startswith(f"https://{host}:{served.port}/?t=")
        status, shown = ask(served, host, served.owner, certificate)
        assert status == 200
        assert hashlib.sha256(shown).hexdigest().upper() == (served.fingerprint or "").replace(":", "")
        assert ask(served, host, {}, certificate)[0] == 401
        assert ask(served, host, served.owner | {"Host": f"other.example:{served.port}"}, certificate)[0] == 403
        plain = http.client.HTTPConnection(host, served.port, timeout=ANSWER_S)
        plain.request("GET", "/api/state", headers=served.owner)
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        fingerprint = served.fingerprint
    assert stat.S_IMODE(certificate.with_suffix(".key").stat().st_mode) == 0o600
    with serve(folder, 0, "--host", host, "--tls", "auto") as served:
        assert ask(served, host, served.viewer, certificate)[0] == 200
        assert served.fingerprint == fingerprint, "browsers trust the certificate, so it stays"


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--host", "192.0.2.77"], ["192.0.2.77 is not encrypted", "read the token", "--tls auto"]),
        (["--host", "192.0.2.77", "--tls", "auto"], ["no address to listen on", "no network of this machine"]),
        (["--host", "0.0.0.0", "--tls", "auto"], ["no address to listen on", "its one address"]),
        (["--host", "::", "--tls", "auto"], ["no address to listen on", "its one address"]),
        (["--host", "no.such.invalid", "--tls", "auto"], ["no address to listen on", "--host no.such.invalid"]),
        (["--tls", "yes"], ["--tls yes is not known", "--tls auto"]),
        (["--tls-cert", "x.pem"], ["do not go together", "both --tls-cert and --tls-key"]),
        (["--tls", "auto", "--tls-cert", "x.pem", "--tls-key", "x.key"], ["do not go together"]),
        (["--tls-cert", "x.pem", "--tls-key", "x.key"], ["the certificate cannot be used", "No such file"]),
        (["--tls-cert", "runs/small.pem", "--tls-key", "open.key"], ["the key is no secret", "chmod 600"]),
        (["--tls-cert", "bad.pem", "--tls-key", "bad.pem"], ["the certificate cannot be used", "as PEM"]),
    ],
)
def test_what_cannot_be_encrypted_is_refused(folder: Path, options: list[str], parts: list[str]) -> None:
    (folder / "open.key").write_text("x", encoding="ascii")
    (folder / "open.key").chmod(0o644)
    (folder / "bad.pem").write_text("x", encoding="ascii")
    (folder / "bad.pem").chmod(0o600)
    done = prime_train("control", "--port", "0", *options, cwd=folder)
    assert done.returncode in (2, 4)
    for part in parts:
        assert part in done.stderr
