"""Sends one HTTP request to a server on this machine, with a time limit.

It uses http.client, because that retries, redirects and pools nothing and the engine watch's program loads it fast.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

_KEY = "VLLM_API_KEY"  # as in programs/vllm/program.py, which would load the whole schema


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
    """Send one request with vLLM's API key from the environment. Proxies of the environment are not used."""
    import http.client  # lazy, because a supervisor without a server sends nothing, and it takes 2 MiB

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
        return Answer(0, f"{error}" or type(error).__name__, isinstance(error, ConnectionRefusedError))
    finally:
        connection.close()
