"""Judges each request by its Host and Origin headers and its token, before any route sees it. Reads nothing of a run.

The headers that it adds forbid the browser to load or run anything from elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from prime_train.control.access import SESSION_S, Address, Role, Tokens

# No script, style, picture or connection from elsewhere. plotly sets style attributes, and adds rules to a style
# element that is created empty: the hash is that of no text.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Guard:
    """Refuses a request that is not from this page, or has no token. Adds the headers of _HEADERS to each answer."""

    def __init__(self, app: App, address: Address, tokens: Tokens) -> None:
        self._app, self._address, self._tokens = app, address, tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *added]
            await send(message)

        answer = self._judge(scope)
        await (answer or self._app)(scope, receive, send_guarded)

    def _judge(self, scope: Scope) -> Response | None:
        """The answer to a request that goes no further. Puts the role into the scope."""
        headers, method = Headers(scope=scope), scope["method"]
        if method not in ("GET", "HEAD", "POST"):
            return refuse(405, f"{method[:20]} is not allowed", "the page reads with GET and sends with POST", "")
        bearer = headers.get("authorization", "").partition("Bearer ")[2]
        # A browser sends a cookie by itself, and a bearer never.
        if fault := self._address.find_fault(headers, needs_origin=method == "POST" and not bearer):
            why = "a page of another site must not read or control the runs"
            return refuse(403, fault, why, f"open {self._address.url}")
        request = Request(scope)
        given = request.query_params.get("t", "") if scope["path"] == "/" else ""
        if given and (role := self._tokens.find_role(given)):
            return self._give_cookie(role)
        cookie = request.cookies.get(self._address.cookie, "")
        role = self._tokens.find_role(bearer) if bearer else self._tokens.find_session(cookie, time.time())
        if role is None:
            why = "only those with a token of this controller may see its runs"
            return refuse(
                401, "the token is missing or wrong", why, "open the address that `prime-train control` prints"
            )
        if method == "POST" and role != "owner":
            why = "this token may only read"
            return refuse(403, "a viewer sends no requests", why, "use the address for owners")
        scope["role"] = role
        return None

    def _give_cookie(self, role: Role) -> Response:
        """To the page without the token in its address: an address is kept in the history of a browser."""
        answer = RedirectResponse("/", status_code=303)
        session, is_encrypted = self._tokens.create_session(role, time.time()), self._address.is_encrypted
        name, path = self._address.cookie, "/"
        answer.set_cookie(name, session, SESSION_S, path=path, secure=is_encrypted, httponly=True, samesite="strict")
        return answer


def refuse(status: int, what: str, why: str, fix: str, where: str = "this request") -> JSONResponse:
    return JSONResponse({"error": {"what": what, "where": where, "why": why, "fix": fix}}, status)
