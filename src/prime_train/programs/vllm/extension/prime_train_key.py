"""Asks every request for the key of the run. vLLM's server imports it, in an environment without prime_train.

The server gets `--middleware prime_train_key.KeyGuard` and this folder in PYTHONPATH. vLLM's own check covers the
routes below /v1 alone, and in development mode others load weights, pause the engine and call its workers. Written
against vLLM 0.32, which adds a class by Starlette's add_middleware.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

_KEY = "VLLM_API_KEY"
_OPEN = ("/health", "/metrics")  # they change nothing, and what scrapes metrics has no key
_REFUSAL = b'{"error": "this request does not carry the key of the run"}'

_Send = Callable[[Mapping[str, Any]], Awaitable[None]]
_Receive = Callable[[], Awaitable[Mapping[str, Any]]]
_App = Callable[[Mapping[str, Any], _Receive, _Send], Awaitable[None]]


class KeyGuard:
    """An ASGI application around another one, which answers 401 for it. Raises KeyError without a key to ask for."""

    def __init__(self, app: _App) -> None:
        self._app = app
        self._expected = f"Bearer {os.environ[_KEY]}".encode()

    async def __call__(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
        if scope["type"] == "lifespan" or scope["path"] in _OPEN or self._has_key(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_REFUSAL))]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSAL})
        else:
            await send({"type": "websocket.close", "code": 1008})  # RFC 6455: the policy is violated

    def _has_key(self, scope: Mapping[str, Any]) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
