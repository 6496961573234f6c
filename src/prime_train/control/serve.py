"""Opens the port and runs the server until a signal ends it."""

from __future__ import annotations

import errno
import logging
import socket
from pathlib import Path
from typing import Any

import uvicorn

from prime_train.control.access import Address, Tokens
from prime_train.control.encryption import Encryption
from prime_train.control.server import create_app
from prime_train.control.watcher import Watcher
from prime_train.core.errors import ExitCode, UserError

LOOPBACK = "127.0.0.1"
_MOST_PORT = 65_535
_MOST_CONNECTIONS = 512
_END_S = 2  # for answers that are on their way; a stream ends at once


def open_port(port: int, host: str = LOOPBACK) -> socket.socket:
    """A socket that listens on one address; any free port for 0. Raises UserError where that is not possible."""
    if not 0 <= port <= _MOST_PORT:
        why, fix = "a port is a number of 16 bits", f"--port N with N from 0 to {_MOST_PORT}; 0 takes a free one"
        raise UserError(f"{port} is no port", f"--port {port}", why, fix)
    family, place = _find_address(host, port)
    listener = socket.socket(family, socket.SOCK_STREAM)
    # A controller that was killed leaves connections behind, which must not keep the next one from its port.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
        listener.listen(128)
    except OSError as error:
        listener.close()
        where, fix = f"{host}:{port}", "end that program, or choose another port with --port N; 0 takes a free one"
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there; it may be a controller"
            raise UserError(f"port {port} is in use", where, why, fix, ExitCode.OUT_OF_REACH) from error
        if error.errno == errno.EADDRNOTAVAIL:
            raise _no_address(host, "no network of this machine has this address") from error
        what = f"port {port} cannot be opened: {error.strerror}"
        raise UserError(what, where, "the system refuses it", fix, ExitCode.OUT_OF_REACH) from error
    return listener


def _find_address(host: str, port: int) -> tuple[socket.AddressFamily, Any]:
    """Family and address for a socket. Raises UserError for a name that is not known, and for all addresses at once."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise _no_address(host, getattr(error, "strerror", None) or str(error)) from error
    if place[0] in ("0.0.0.0", "::"):  # noqa: S104 - it is refused
        raise _no_address(host, "the page knows its own requests by its one address")
    return family, place


def _no_address(host: str, why: str) -> UserError:
    fix = "`ip address` lists them; or leave --host out"
    return UserError(f"{host[:100]} is no address to listen on", f"--host {host[:100]}", why, fix)


def serve(
    watcher: Watcher, listener: socket.socket, address: Address, tokens: Tokens, encryption: Encryption | None = None
) -> None:
    """Serve until SIGINT or SIGTERM."""
    app = create_app(watcher, address, tokens)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # an address may hold the token
        server_header=False,
        proxy_headers=False,  # no proxy stands between the page and this machine
        ws="none",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
        ssl_certfile=encryption.certificate if encryption else None,
        ssl_keyfile=encryption.key if encryption else None,
    )
    server = uvicorn.Server(config)
    logging.getLogger("uvicorn.error").addFilter(lambda line: not _is_cut_stream(server, line))
    server.run(sockets=[listener])


def _is_cut_stream(server: uvicorn.Server, line: logging.LogRecord) -> bool:
    """Whether uvicorn reports the end of a stream as an error, although the end of the controller was requested."""
    return server.should_exit and "without completing response" in line.getMessage()


def control_folder(root: Path) -> Path:
    """Where a controller keeps its tokens and its index: beside the runs that it shows."""
    return root / ".control"
