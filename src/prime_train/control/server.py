"""Serves the page, the documents and the stream of changes over HTTP. Reads no file of a run itself.

Every request passes `Guard`, which judges its Host and Origin headers and its token, and forbids the browser to load or
run anything from elsewhere. A GET changes nothing; the only POST hands a request to a supervisor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import time
from collections.abc import AsyncIterator
from functools import partial
from importlib.resources import files
from pathlib import Path

import plotly
from anyio import CapacityLimiter, to_thread
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from prime_train.bus.base import to_word
from prime_train.control.access import Address, Role, Tokens
from prime_train.control.editor import judge_change
from prime_train.control.guard import App, Guard, refuse
from prime_train.control.logs import EVIDENCE_LINES, LINES, read_log, read_remote_log
from prime_train.control.prometheus import write_metrics
from prime_train.control.requests import hand_on
from prime_train.control.stream import DocumentChange
from prime_train.control.watcher import Watcher
from prime_train.core.errors import UserError
from prime_train.core.outside import MARK_BYTES, parse_json
from prime_train.supervise.agent.traces import read_local_trace

MOST_READERS = 32  # of the stream
_LOGGER = logging.getLogger("uvicorn.error")  # the log of the server, on stderr
_AT_WORK = 16  # requests that wait for a supervisor; more are refused
_JUDGED = 2  # changes at a time, each by a program of its own; others wait
_LOADED = 2  # traces at a time; others wait
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}


def _refuse_by(error: UserError) -> JSONResponse:
    return refuse(409, error.what, error.why, error.fix, error.where)


class Controller:
    """The routes. `close` ends the thread that follows the runs."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._page = _load_page()
        self._readers = 0
        self._at_work = CapacityLimiter(_AT_WORK)
        self._judging, self._loading = CapacityLimiter(_JUDGED), CapacityLimiter(_LOADED)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="watcher", daemon=True)

    def _follow(self) -> None:
        told = ""
        while not self._ending.is_set():
            began_s = time.monotonic()
            try:
                self._watcher.look()
            except Exception as error:  # without this thread the page would stand still and look live
                problem = f"{type(error).__name__}: {error}"
                # Once, because a look that fails is repeated five times per second.
                if problem != told:
                    _LOGGER.exception("the runs cannot be read")
                told = problem
                self._watcher.report(problem)
            self._ending.wait(self._watcher.pause_s(time.monotonic() - began_s))

    @contextlib.asynccontextmanager
    async def live(self, _app: Starlette) -> AsyncIterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ending.set()
            await to_thread.run_sync(self._thread.join)

    def routes(self) -> list[Route]:
        return [
            *(Route(path, self.page, methods=["GET"]) for path in self._page),
            Route("/api/state", self.state, methods=["GET"]),
            Route("/api/run", self.run, methods=["GET"]),
            Route("/api/preview", self.preview, methods=["GET"]),
            Route("/api/log", self.log, methods=["GET"]),
            Route("/api/trace", self.trace, methods=["GET"]),
            Route("/api/stream", self.stream, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/api/request", self.request, methods=["POST"]),
        ]

    async def page(self, request: Request) -> Response:
        content, kind = self._page[request.url.path]
        return Response(content, media_type=kind)

    async def state(self, request: Request) -> Response:
        found = self._watcher.stream.snapshot()
        role: Role = request.scope["role"]
        return JSONResponse({"version": 1, "id": found.id, "role": role, **found.document})

    async def run(self, request: Request) -> Response:
        found = await to_thread.run_sync(self._watcher.detail, request.query_params.get("name", ""))
        if found is None:
            return refuse(404, "there is no such run", "its folder is gone, or was never here", "reload the page")
        return JSONResponse(found)

    async def preview(self, request: Request) -> Response:
        """`values`: a JSON object of settings. Whether the supervisor would accept them, with what changes."""
        name = request.query_params.get("name", "")
        run_dir, row = self._watcher.run_dir(name), self._watcher.row(name)
        if run_dir is None or row is None or request.scope["role"] != "owner":
            return refuse(
                404, "there is no such editor", "the run is not here, or this token may only read", "reload the page"
            )
        values = request.query_params.get("values", "")
        try:
            found = await to_thread.run_sync(judge_change, run_dir, values, row["step"] or 0, limiter=self._judging)
        except UserError as error:
            return _refuse_by(error)
        return JSONResponse(found)

    async def log(self, request: Request) -> Response:
        """`attempt`: its number, the latest without it. `lines`: few beside a failure, else many."""
        name = request.query_params.get("name", "")
        run_dir = self._watcher.run_dir(name)
        attempt = request.query_params.get("attempt", "")
        if (run_dir is None and self._watcher.name_on_bus(name) is None) or not (
            attempt == "" or (attempt.isascii() and attempt.isdecimal() and len(attempt) < 8)
        ):
            return refuse(404, "there is no such log", "the run or the attempt is not here", "reload the page")
        lines = EVIDENCE_LINES if request.query_params.get("lines") == "few" else LINES
        number = int(attempt) if attempt else None
        read = partial(read_log, run_dir) if run_dir else partial(read_remote_log, self._watcher, name)
        try:
            return JSONResponse(await to_thread.run_sync(read, number, lines))
        except (UserError, OSError) as error:
            problem = error.what if isinstance(error, UserError) else f"the log cannot be read: {error.strerror}"
            return JSONResponse({"attempt": None, "attempts": [], "lines": [], "problem": problem})

    async def trace(self, request: Request) -> Response:
        """The bytes of a trace, packed as they are. A browser saves them, and shows or runs nothing that is in them."""
        name, trace = request.query_params.get("name", ""), request.query_params.get("trace", "")
        run_dir, on_bus, remote = self._watcher.run_dir(name), self._watcher.name_on_bus(name), self._watcher.remote
        try:
            if run_dir is not None:
                content = await to_thread.run_sync(read_local_trace, run_dir, trace, limiter=self._loading)
            elif remote is not None and on_bus is not None:
                content = await to_thread.run_sync(remote.commands.read_trace, on_bus, trace, limiter=self._loading)
            else:
                return refuse(404, "there is no such trace", "the run is not here", "reload the page")
        except UserError as error:
            return refuse(404, error.what, error.why, error.fix, error.where)
        saved_as = {"Content-Disposition": f'attachment; filename="{to_word(name)}-{trace}"'}
        return Response(content, media_type="application/gzip", headers=saved_as)

    async def metrics(self, _request: Request) -> Response:
        text = write_metrics(self._watcher.stream.snapshot().document)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def stream(self, request: Request) -> Response:
        if self._readers >= MOST_READERS:
            why = f"{MOST_READERS} readers follow the changes"
            return refuse(503, "no further page can be served", why, "close a page")
        last = request.headers.get("last-event-id", "") or request.query_params.get("since", "")
        return EventSourceResponse(self._changes(last), ping=15, headers={"Cache-Control": "no-store"})

    async def _changes(self, last_id: str) -> AsyncIterator[ServerSentEvent]:
        """Every change after `last_id`. Changes that came meanwhile follow each other without a pause."""
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(woken.set)

        stop_listening = self._watcher.stream.listen(wake)
        self._readers += 1
        try:
            while True:
                woken.clear()
                for change in self._watcher.stream.since(last_id):
                    last_id = change.id
                    yield _as_event(change)
                await woken.wait()
        finally:
            self._readers -= 1
            stop_listening()

    async def request(self, request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return refuse(
                415, "the body is no JSON", "a form of another site cannot send JSON", "send application/json"
            )
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MARK_BYTES:
                return refuse(413, "the body is too long", "a request has at most 64 KiB", "send less")
        try:
            found = parse_json(body)
        except ValueError as error:
            return refuse(400, "the body is no JSON", str(error)[:200], "send one JSON object")
        if self._at_work.available_tokens <= 0:
            why = f"{_AT_WORK} requests wait for their supervisors"
            return refuse(503, "too many requests at once", why, "wait a second, and send it again with the same id")
        try:
            return JSONResponse(await to_thread.run_sync(hand_on, self._watcher, found, limiter=self._at_work))
        except UserError as error:
            return _refuse_by(error)


def _as_event(change: DocumentChange) -> ServerSentEvent:
    data = json.dumps(change.document, separators=(",", ":"))
    return ServerSentEvent(data=data, event=change.kind, id=change.id)


def _load_page() -> dict[str, tuple[bytes, str]]:
    """The files of the page by their paths, with their kinds. plotly's script is that of the installed package."""
    folder = files("prime_train.control") / "page"
    found = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _PAGE.items()}
    script = Path(str(plotly.__file__)).parent / "package_data" / "plotly.min.js"
    return found | {"/plotly.min.js": (script.read_bytes(), "text/javascript; charset=utf-8")}


def create_app(watcher: Watcher, address: Address, tokens: Tokens) -> App:
    """The application that a server runs."""
    controller = Controller(watcher)
    app = Starlette(routes=controller.routes(), lifespan=controller.live)
    return Guard(app, address, tokens)
