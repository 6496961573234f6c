"""Asks a server on this machine something over HTTP. Never waits longer than it is told.

http.client and no library: nothing is retried, redirected or pooled, and the watch's program has little else to load.
"""

from __future__ import annotations

import http.client
import json
import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

_KEY = "VLLM_API_KEY"  # as in programs/vllm/server.py, which would load the whole schema


class Answer(NamedTuple):
    """What came back. `status` is 0 where nothing did; `text` then says why."""

    status: int
    text: str

    @property
    def words(self) -> str:
        """One line, of 200 letters at most."""
        shown = " ".join(self.text.split())[:200]
        return f"{self.status} {shown}".strip() if self.status else shown


def ask(method: str, url: str, limit_s: float, body: Mapping[str, object] | None = None) -> Answer:
    """One request, with the key that vLLM has from the environment too. Proxies of the environment are passed by."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=limit_s)
    headers = {"Content-Type": "application/json", "Connection": "close"}
    if key := os.environ.get(_KEY):
        headers["Authorization"] = f"Bearer {key}"
    try:
        connection.request(method, parts.path, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        return Answer(response.status, response.read().decode("utf-8", "replace"))
    except TimeoutError:
        return Answer(0, f"no answer within {limit_s:.0f} s")
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, f"{error}" or type(error).__name__)
    finally:
        connection.close()
