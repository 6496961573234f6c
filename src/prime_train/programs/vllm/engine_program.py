"""Run as a program: asks a vLLM server how it is, again and again, one JSON object to a line. Judges nothing.

engine_program.py URL INTERVAL_S MODEL

Where no token has come for a while it sends a request of one token itself: an engine that died before the first
request, or between two, counts nothing by which that could be seen, and /health stays 200 (vllm#17972, #1492). One such
request is open at a time, and none is sent to a server that sleeps or is paused.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package

import json
import os
import threading
import time
from typing import Any

from prime_train.programs.vllm.engine_metrics import engines
from prime_train.supervise.local_http import Answer, send_request

_DEADLINE_S = 5.0  # for one answer; an API server that is starved of CPU may take a second
_ASK_AFTER_S = 15.0  # of no token
_GIVE_UP_S = 600.0  # on a request of our own


class Asked:
    """The one request of our own that is open. Written by its thread, read by the loop."""

    def __init__(self) -> None:
        self.since_s: float | None = None
        self.status = 0  # of the last one that was answered; 0 = none was

    def send(self, url: str, model: str) -> None:
        self.since_s = time.monotonic()
        threading.Thread(target=self._send, args=(url, model), daemon=True).start()

    def _send(self, url: str, model: str) -> None:
        body = {"model": model, "prompt": "a", "max_tokens": 1}
        self.status = send_request("POST", f"{url}/v1/completions", _GIVE_UP_S, body).status
        self.since_s = None


def sample(url: str, asked: Asked) -> dict[str, Any]:
    """One look. What a server outside development mode does not have (a weight version, a pause) is null."""
    health = send_request("GET", f"{url}/health", _DEADLINE_S)
    metrics = send_request("GET", f"{url}/metrics", _DEADLINE_S) if health.status else Answer(0, "")
    development = os.environ.get("VLLM_SERVER_DEV_MODE") == "1" and health.status == 200
    return {
        "at_s": time.monotonic(),
        "health": health.status,
        "fault": "" if health.status == 200 else health.words,
        "metrics": metrics.status,
        "engines": [engine._asdict() for engine in engines(metrics.text)] if metrics.status == 200 else [],
        "asked_s": time.monotonic() - asked.since_s if asked.since_s is not None else None,
        "answered": asked.status,
        "paused": _field(f"{url}/is_paused", "is_paused") is True if development else False,
        "weight_version": _field(f"{url}/weight_info", "weight_version") if development else None,
    }


def _field(url: str, name: str) -> object:
    answer = send_request("GET", url, _DEADLINE_S)
    try:
        found = json.loads(answer.text) if answer.status == 200 else None
    except json.JSONDecodeError:
        return None
    return found.get(name) if isinstance(found, dict) else None


def main(url: str, interval_s: float, model: str) -> None:
    asked = Asked()
    tokens, moved_s = -1.0, time.monotonic()
    while True:
        began_s = time.monotonic()
        look = sample(url, asked)
        print(json.dumps(look), flush=True)  # noqa: T201 - the answer
        counted = sum(engine["tokens"] for engine in look["engines"])
        if counted != tokens or not look["engines"]:
            tokens, moved_s = counted, time.monotonic()
        idle = all(not engine["asleep"] for engine in look["engines"]) and not look["paused"]
        if model and idle and asked.since_s is None and time.monotonic() - moved_s >= _ASK_AFTER_S:
            asked.send(url, model)
        time.sleep(max(0.0, interval_s - (time.monotonic() - began_s)))  # vLLM tells nothing unasked


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), sys.argv[3])
