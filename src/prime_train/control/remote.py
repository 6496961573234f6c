"""Follows runs on other machines over a bus, in a thread, and hands requests to their agents. Opens no port.

The bus may be away for any time: then the runs stay as they were, with a remark. What a thread learned is one value,
which other threads read without a lock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, Protocol

from prime_train.bus.base import Bus, BusError, RevisionConflict, UnknownOutcome
from prime_train.bus.fleet import EMPTY, Liveness, judge_silence
from prime_train.bus.fleet_events import Document
from prime_train.bus.fleet_store import FleetStore
from prime_train.control.fleet_rows import (
    FAILURES_SENT,
    Row,
    list_remote_failures,
    make_remote_detail,
    make_remote_row,
    map_remote_devices,
    name_remote,
)
from prime_train.control.timeline import shorten
from prime_train.core.errors import UserError
from prime_train.supervise.processes.ask import LONGEST_S, create_request_id
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, SETTINGS_REQUESTED, STOP_REQUESTED

_TURN_S = 0.25
_AGAIN_S = 1.0  # after an error of the bus
_CONFLICT_S = 5.0  # another controller has the bus
_ANSWER_S = LONGEST_S + 5.0  # the agent waits for its supervisor
_LOG_S = 5.0
_BACK_S, _PAUSE_S = 6.0, 0.5  # an agent connects again within 5 s
_BODY_CHARACTERS = 500  # of a command that is kept
_KINDS = {STOP_REQUESTED: "stop", SETTINGS_REQUESTED: "settings", COMMAND_REQUESTED: "command"}


class Source(Protocol):
    """FleetStore or FleetReader."""

    documents: dict[str, Document]
    listening_s: float

    def turn(self, timeout_s: float, now_s: float) -> set[str]: ...

    def close(self) -> None: ...


class Link(Protocol):
    """A connection with a bus, which may be away."""

    @property
    def bus(self) -> Bus: ...

    def keep(self) -> str:
        """Look after the server. Returns why the bus is away; "" if it is there. Raises BusError and UserError."""

    def open(self, now_s: float) -> Source:
        """What is known about machines. Raises BusError."""

    def take_remarks(self) -> list[str]: ...

    def close(self) -> None: ...


class RemoteView(NamedTuple):
    """Runs on other machines by their names. `remark`: what is missing, and why."""

    rows: dict[str, Row]
    machines: dict[str, dict[str, Row]]  # for each run
    failures: dict[str, list[Row]]
    remark: str = ""


class _Shown(NamedTuple):
    """What a document is shown as, made once for each."""

    document: Document
    name: str
    row: Row
    machines: dict[str, Row]
    failures: list[Row]


@dataclass(frozen=True)
class _Known:
    """What the thread has learned. `until_s`: up to when it heard the bus, so that later silence means nothing."""

    documents: Mapping[str, Document] = field(default_factory=dict)
    listening_s: float = 0.0
    until_s: float | None = None  # None: it hears
    remark: str = ""


class RemoteRuns:
    """`view`, `detail`, `send` and `read_log` may be called from any thread."""

    def __init__(self, link: Link, clock: Callable[[], float] = time.time) -> None:
        self._link = link
        self._clock = clock
        self._known = _Known()
        self._refusal = ""
        self._complete: dict[str, tuple[Document, Document]] = {}  # as the bus has it, and with every section
        self._shown: dict[str, _Shown] = {}
        self._decisions: SimpleQueue[tuple[str, dict[str, Any]]] = SimpleQueue()
        self._ending = threading.Event()
        self._is_known = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="fleet", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_known(self, timeout_s: float) -> bool:
        """Whether the machines on the bus are known, at the latest after the time."""
        return self._is_known.wait(timeout_s)

    def close(self) -> None:
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        self._link.close()

    # --- what is shown ------------------------------------------------------------------------------

    def view(self) -> RemoteView:
        known, shown, damaged = self._known, {}, []
        for key, document in known.documents.items():
            try:
                shown[key] = self._show(self._shown.get(key), document, self._judge(known, document))
            except (KeyError, TypeError, ValueError, AttributeError):  # of another version
                damaged.append(shorten(key))
        self._shown = shown
        remarks = [known.remark, self._refusal]
        if damaged:
            remarks.append(f"what the bus keeps about {', '.join(damaged[:5])} cannot be read")
        return RemoteView(
            {one.name: one.row for one in shown.values()},
            {one.name: one.machines for one in shown.values()},
            {one.name: one.failures for one in shown.values() if one.failures},
            "; ".join(filter(None, remarks)),
        )

    def _show(self, before: _Shown | None, document: Document, liveness: Liveness) -> _Shown:
        if before is not None and before.document is document and before.row["liveness"] == liveness:
            return before
        row, machines = make_remote_row(document, liveness), map_remote_devices(document, liveness)
        failures = list_remote_failures(document)[-FAILURES_SENT:]
        return _Shown(document, name_remote(document), row, machines, failures)

    def documents(self) -> list[Document]:
        return list(self._known.documents.values())

    def detail(self, name: str) -> Row | None:
        """Everything of one run; None if there is none with this name."""
        known, document = self._known, self._find(name)
        if document is None:
            return None
        return make_remote_detail(document, self._judge(known, document), self._clock())

    def _find(self, name: str) -> Document | None:
        return next((one for one in self._known.documents.values() if name_remote(one) == name), None)

    def _judge(self, known: _Known, document: Document) -> Liveness:
        return judge_silence(document, known.listening_s, self._clock() if known.until_s is None else known.until_s)

    # --- requests -----------------------------------------------------------------------------------

    def send(self, name: str, kind: str, body: Mapping[str, Any], request_id: str) -> Row:
        """The answer of the run's supervisor, as its agent returns it; `unknown` where none came. Raises UserError."""
        document = self._require(name)
        key = f"{document['job']}.{document['machine']}"
        decision = {"id": request_id, "kind": kind, "body": str(dict(body))[:_BODY_CHARACTERS], "sent_s": self._clock()}
        self._decisions.put((key, decision | {"outcome": "unknown"}))
        answer = self._ask(document, _KINDS[kind], body, request_id, _ANSWER_S)
        self._decisions.put((key, decision | {"outcome": answer["outcome"], "what": answer["what"]}))
        return answer

    def read_log(self, name: str, attempt: int | None, lines: int) -> Row:
        """The last lines of an attempt's log, which the agent masks and cuts. Raises UserError."""
        body, request_id = {"attempt": attempt, "lines": lines}, create_request_id()
        answer = self._ask(self._require(name), "log", body, request_id, _LOG_S)
        if answer["outcome"] != "done":
            raise UserError(answer["what"], name, answer["why"], answer["fix"])
        found = answer.get("log")
        log: Mapping[str, Any] = found if isinstance(found, dict) else {}
        attempts = [one for one in log.get("attempts", []) if type(one) is int][-100:]
        text = [shorten(line) for line in log.get("lines", []) if isinstance(line, str)][-2 * lines :]
        return {"problem": None, "attempt": log.get("attempt"), "attempts": attempts, "lines": text}

    def _require(self, name: str) -> Document:
        document = self._find(name)
        if document is None:
            machines = ", ".join(sorted({one["machine"] for one in self._known.documents.values()})[:8]) or "none yet"
            why = f"no agent has reported it; the machines on the bus are: {machines}"
            raise UserError(f"no run {shorten(name)!r}", "the bus", why, "reload the page, or start its agent again")
        if self._judge(self._known, document) in ("ended", "failed"):
            fix = f"start it again on {document['machine']}"
            raise UserError("no supervisor runs it", name, "the run has ended, as its agent has reported", fix)
        return document

    def _ask(self, document: Document, kind: str, body: Mapping[str, Any], request_id: str, longest_s: float) -> Row:
        subject = f"pt.{document['job']}.cmd.{document['machine']}"
        try:
            found = self._request(subject, {"kind": kind, "body": dict(body)}, request_id, longest_s)
        except UnknownOutcome as error:
            why = f"{error}; it may have happened, or happen later"
            fix = f"look at the events of the run, then repeat it with the id {request_id}"
            what = f"no answer came from {document['machine']}"
            return {
                "outcome": "unknown",
                "request_id": request_id,
                "what": what,
                "why": why,
                "fix": fix,
                "where": subject,
            }
        except (BusError, ValueError) as error:
            what, fix = "the request cannot be sent", "use the controller's credentials, and send less"
            raise UserError(what, subject, str(error), fix) from error
        texts = {name: str(found.get(name, "")) for name in ("outcome", "what", "why", "fix", "where")}
        answer: Row = shorten({"request_id": request_id, **texts})
        return answer | ({"log": found["log"]} if kind == "log" and "log" in found else {})

    def _request(self, subject: str, message: Row, request_id: str, longest_s: float) -> Mapping[str, Any]:
        """The answer. Where no agent listens it is sent again for a while, because agents come back within seconds."""
        until_s = time.monotonic() + _BACK_S
        while True:
            try:
                return self._link.bus.request(subject, message, request_id, longest_s).body
            except UnknownOutcome:
                if time.monotonic() > until_s or self._ending.wait(_PAUSE_S):
                    raise

    # --- the thread ---------------------------------------------------------------------------------

    def _follow(self) -> None:
        source: Source | None = None
        while not self._ending.is_set():
            pause_s = _AGAIN_S
            try:
                if away := self._link.keep():
                    self._go_deaf(away)
                else:
                    if source is None:
                        source = self._link.open(self._clock())
                    elif self._known.until_s is not None:  # while it was away, silence meant nothing
                        source.listening_s = self._clock()
                    self._turn(source)
                    pause_s = 0.0
            except RevisionConflict:
                self._go_deaf("another controller keeps what is known about machines; end one")
                source, pause_s = None, _CONFLICT_S
            except (BusError, OSError) as error:
                does = "does not answer" if isinstance(error, UnknownOutcome) else "refuses it"
                self._go_deaf(f"the bus {does}: {error}")
            except UserError as error:
                self._go_deaf(f"{error.what}: {error.why}")
            except Exception as error:  # without this thread the page would stand still and look live
                self._go_deaf(f"the bus cannot be followed: {type(error).__name__}: {error}")
                source, pause_s = None, _CONFLICT_S
            for remark in self._link.take_remarks():
                self._refusal = f"the bus has refused, at {time.strftime('%H:%M:%S')}: {shorten(remark)}"
            self._ending.wait(pause_s)

    def _turn(self, source: Source) -> None:
        now_s = self._clock()
        if isinstance(source, FleetStore):
            self._keep_decisions(source)
        source.turn(_TURN_S, now_s)
        complete = {}
        for key, one in source.documents.items():
            before = self._complete.get(key)
            if "machine" in one:  # an agent has spoken
                complete[key] = before if before is not None and before[0] is one else (one, {**EMPTY, **one})
        self._complete = complete
        self._known = _Known({key: pair[1] for key, pair in complete.items()}, source.listening_s)
        self._is_known.set()

    def _keep_decisions(self, store: FleetStore) -> None:
        """Write the commands that were given into the keys, each when it was sent and when it was answered."""
        with suppress(Empty):
            while True:
                key, decision = self._decisions.get_nowait()
                try:
                    store.decide(key, decision)
                except BusError:
                    self._decisions.put((key, decision))
                    raise

    def _go_deaf(self, remark: str) -> None:
        known = self._known
        until_s = self._clock() if known.until_s is None else known.until_s
        self._known = _Known(known.documents, known.listening_s, until_s, shorten(remark))
