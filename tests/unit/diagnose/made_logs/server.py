"""A server on this machine that answers each path with the status in it. Copied into the folder of a made program."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_REASONS = {
    401: ("", "Invalid username or password."),
    402: ("", "You have exceeded your monthly included credits."),
    403: ("GatedRepo", "Access to model is restricted and you are not in the authorized list."),
    404: ("RepoNotFound", "Repository not found"),
    429: ("", "We had to rate limit your IP. To continue using our service, create a HF account."),
    503: ("", "Service Unavailable"),
}


class _Answers(BaseHTTPRequestHandler):
    status = 503

    def _answer(self) -> None:
        code, reason = _REASONS.get(self.status, ("", "error"))
        body = f'{{"error": "{reason}"}}'.encode()
        self.send_response(self.status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", reason)
        self.send_header("X-Request-Id", "Root=1-69b4a0c1-4d1f5f6a0d3b1c2e")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        """Write nothing: the log belongs to the client."""


def answer(status: int) -> str:
    """Start the server in a thread; returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"status": status}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_address[1]}/hub"
