"""A server that speaks what vLLM's does: /health, /v1/completions, /metrics, and an engine in a process of its own.

python server.py PORT FOLDER [key=value...]     at_death = end | stay | hide | close: what follows the engine's death

It counts as if requests ran all the time. The engine counts tokens into a file while it lives and is not stopped.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_ENGINE = """
import mmap, struct, sys, time
with open(sys.argv[1], "r+b") as file:
    counted = mmap.mmap(file.fileno(), 8)
while True:
    counted[:] = struct.pack("q", struct.unpack("q", counted)[0] + 7)
    time.sleep(0.05)
"""
_DEAD = """(APIServer pid=1) ERROR 11-21 10:00:00 [async_llm.py:700] AsyncLLM output_handler failed.
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.
"""


class Engine:
    """The engine's process, and how far it has counted."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"tokens-{os.getpid()}"
        path.write_bytes(bytes(8))
        self.process = subprocess.Popen([sys.executable, "-c", _ENGINE, str(path)])
        with open(path, "r+b") as file:
            self._counted = mmap.mmap(file.fileno(), 8)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def tokens(self) -> int:
        return int(struct.unpack("q", self._counted[:])[0])


def main() -> None:
    port, folder, *pairs = sys.argv[1:]
    given = dict(pair.split("=", 1) for pair in pairs)
    at_death = given.get("at_death", "end")

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                well = (engine.alive or at_death == "hide") and given.get("health") != "503"
                self._answer(200 if well else 503, "")
            elif self.path == "/metrics":
                self._answer(200, _metrics(engine.tokens))
            else:
                self._answer(404, "")

        def do_POST(self) -> None:
            before, give_up_s = engine.tokens, time.monotonic() + 30.0
            while engine.tokens == before and time.monotonic() < give_up_s:
                time.sleep(0.05)
            self._answer(200, json.dumps({"choices": [{"text": " b"}]}))

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *_: object) -> None:
            """Nothing: its log is looked through for causes."""

    server = ThreadingHTTPServer(("127.0.0.1", int(port)), Answers)
    engine = Engine(Path(folder))
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while engine.alive or at_death not in ("end", "close"):
        time.sleep(0.05)
    sys.stderr.write(_DEAD)
    sys.stderr.flush()
    if at_death == "close":  # it waits for an answer of the engine, as after a death during a weight update
        server.shutdown()
        server.server_close()
        threading.Event().wait()
    os._exit(1)


def _metrics(tokens: int) -> str:
    labels = '{engine="0",model_name="tiny"}'
    values = {
        "num_requests_running": 2,
        "num_requests_waiting": 0,
        "kv_cache_usage_perc": 0.25,
        "num_preemptions_total": 0,
        "prompt_tokens_total": 16,
        "generation_tokens_total": tokens,
    }
    return "".join(f"vllm:{name}{labels} {float(value)}\n" for name, value in values.items())


if __name__ == "__main__":
    main()
