"""Sends one JSON document to a webhook."""

from __future__ import annotations

from functools import cache
from typing import Any


def post(address: str, body: bytes, limit_s: float) -> tuple[str, bool]:
    """("", False) if the server took the document, else the reason, and whether a later try may succeed."""
    import http.client  # lazy, because most runs have no webhook, and these take 2 MiB
    import urllib.error
    import urllib.request

    request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="POST")
    try:
        with _create_opener().open(request, timeout=limit_s):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"the server answered {error.code}", error.code == 429 or error.code >= 500
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"the server cannot be reached: {getattr(error, 'reason', error)}", True


@cache
def _create_opener() -> Any:
    """Redirects are not followed, because they might lead out of https or to another machine."""
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: object) -> None:
            return None

    return urllib.request.build_opener(NoRedirect)
