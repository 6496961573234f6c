"""Opens the port and runs the server until a signal ends it."""

from __future__ import annotations

import errno
import logging
import socket
from pathlib import Path

import uvicorn

from prime_train.control.access import Address, Tokens
from prime_train.control.server import create_app
from prime_train.control.watcher import Watcher
from prime_train.core.errors import ExitCode, UserError

_MOST_CONNECTIONS = 512
_END_S = 2  # for answers that are on their way; a stream ends at once


def open_port(port: int) -> socket.socket:
    """A socket that listens on loopback; any free port for 0. Raises UserError if the port is in use."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A controller that was killed leaves connections behind, which must not keep the next one from its port.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        where, fix = f"127.0.0.1:{port}", "end that program, or choose another port with --port N; 0 takes a free one"
        if error.errno == errno.EADDRINUSE:
            why = "another program listens there; it may be a controller"
            raise UserError(f"port {port} is in use", where, why, fix, ExitCode.OUT_OF_REACH) from error
        what = f"port {port} cannot be opened: {error.strerror}"
        raise UserError(what, where, "the system refuses it", fix, ExitCode.OUT_OF_REACH) from error
    return listener


def serve(watcher: Watcher, listener: socket.socket, tokens: Tokens) -> None:
    """Serve until SIGINT or SIGTERM."""
    app = create_app(watcher, Address(listener.getsockname()[1]), tokens)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # an address may hold the token
        server_header=False,
        proxy_headers=False,  # no proxy stands between the page and this machine
        ws="none",
        limit_concurrency=_MOST_CONNECTIONS,
        timeout_graceful_shutdown=_END_S,
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
