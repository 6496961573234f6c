"""Asks a server of the run on this machine, with its key. Repeats nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple

from prime_train.core.http import HttpBounds, HttpFault, HttpRequest, NoReplyError, send

_KEY = "VLLM_API_KEY"  # as in programs/vllm/program.py, which would load the whole schema
_MOST_BYTES = 64 * 2**20


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
    if key := os.environ.get(_KEY):
        headers["Authorization"] = f"Bearer {key}"
    request = HttpRequest(method, url, headers, None if body is None else json.dumps(body).encode())
    try:
        reply = send(request, HttpBounds(limit_s, limit_s, _MOST_BYTES))
    except NoReplyError as error:
        return Answer(0, error.detail, error.fault is HttpFault.REFUSED)
    return Answer(reply.status, reply.body.decode("utf-8", "replace"))
