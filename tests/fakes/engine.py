"""A server that answers as vLLM does as far as a supervisor asks: /health, /v1/completions, /metrics. It has no model.

python engine.py PORT [BEHAVIOUR] [once=FILE]

serves: it answers, and its counters grow with each look. deaf: nothing ever listens. dies: it ends by itself soon after
it has answered a completion. refuses: health is good, completions fail with 500. dead: health is good, requests are
running, and its token counters stand still. With once=FILE the behaviour holds while FILE is not there, and makes it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_METRICS = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} 0.0
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{{engine="0",model_name="tiny"}} {generated}
# TYPE vllm:prompt_tokens counter
vllm:prompt_tokens_total{{engine="0",model_name="tiny"}} {prompted}
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{{engine="0",model_name="tiny"}} 0.0
"""


class Engine(ThreadingHTTPServer):
    """The state that the answers share."""

    def __init__(self, port: int, behaviour: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.behaviour = behaviour
        self.looks = 0


class Handler(BaseHTTPRequestHandler):
    server: Engine

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self.server.looks += 1
            dead = self.server.behaviour == "dead"
            tokens = 64.0 if dead else 64.0 * self.server.looks
            self._answer(200, _METRICS.format(running=1.0, generated=tokens, prompted=tokens))
        else:
            self._answer(200 if self.path in ("/health", "/version", "/v1/models") else 404, "")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.behaviour == "refuses":
            self._answer(500, '{"error": {"message": "EngineCore encountered an issue."}}')
            return
        self._answer(200, json.dumps({"object": "text_completion", "choices": [{"text": " the", "index": 0}]}))
        if self.server.behaviour == "dies":
            sys.stderr.write("RuntimeError: Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.\n")
            sys.stderr.flush()
            threading.Timer(0.5, os._exit, (1,)).start()

    def _answer(self, code: int, body: str) -> None:
        data = body.encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Silence: nobody reads it."""


def main() -> None:
    port, *rest = sys.argv[1:]
    behaviour = next((word for word in rest if "=" not in word), "serves")
    once = next((Path(word.removeprefix("once=")) for word in rest if word.startswith("once=")), None)
    if once is not None:
        behaviour = "serves" if once.exists() else behaviour
        once.touch()
    if behaviour == "deaf":
        threading.Event().wait()
    Engine(int(port), behaviour).serve_forever()


if __name__ == "__main__":
    main()
