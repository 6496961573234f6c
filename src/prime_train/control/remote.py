"""Follows runs on other machines over a bus, in a thread. Opens no port. `remote_commands.py` speaks with their agents.

The bus may be away for any time: then the runs stay as they were, with a remark. What a thread learned is one value,
which other threads read without a lock.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

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
from prime_train.control.remote_commands import RemoteCommands, Work
from prime_train.control.timeline import shorten
from prime_train.core.errors import UserError

_TURN_S = 0.25
_AGAIN_S = 1.0  # after an error of the bus
_CONFLICT_S = 5.0  # another controller has the bus
_REMARKS_KEPT = 5
_MOST_WORK = 1000
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)  # a document of another version


class Source(Protocol):
    """FleetStore or FleetReader."""

    documents: dict[str, Document]
    drained: dict[str, Document]
    listening_s: float

    def turn(self, timeout_s: float, now_s: float) -> set[str]: ...

    def take_problems(self) -> list[str]: ...

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
    """Its methods may be called from any thread."""

    def __init__(self, link: Link, clock: Callable[[], float] = time.time) -> None:
        self._link = link
        self._clock = clock
        self._known = _Known()
        self._remarks: dict[str, str] = {}  # the latest ones, with their times
        self.commands = RemoteCommands(self)
        self._complete: dict[str, tuple[Document, Document]] = {}  # as the bus has it, and with every section
        self._shown: dict[str, _Shown] = {}
        self._work: deque[Work] = deque(maxlen=_MOST_WORK)
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
            except _UNREADABLE:
                damaged.append(shorten(key))
        self._shown = shown
        remarks = [known.remark, *(f"at {time}: {text}" for text, time in list(self._remarks.items()))]
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
        row = make_remote_row(document, liveness, self._clock())
        machines = map_remote_devices(document, liveness)
        failures = list_remote_failures(document)[-FAILURES_SENT:]
        return _Shown(document, name_remote(document), row, machines, failures)

    def documents(self) -> list[Document]:
        return list(self._known.documents.values())

    def detail(self, name: str) -> Row | None:
        """Everything of one run; None if there is none with this name."""
        known, document = self._known, self.find(name)
        if document is None:
            return None
        try:
            return make_remote_detail(document, self._judge(known, document), self._clock())
        except _UNREADABLE:
            return None

    def _judge(self, known: _Known, document: Document) -> Liveness:
        return judge_silence(document, known.listening_s, self._clock() if known.until_s is None else known.until_s)

    # --- what commands need -------------------------------------------------------------------------

    @property
    def bus(self) -> Bus:
        return self._link.bus

    def find(self, name: str) -> Document | None:
        """The document of a run; None where no agent has reported it."""
        machine, _, job = name.partition("/")
        return self._known.documents.get(f"{job}.{machine}")

    def is_over(self, document: Document) -> bool:
        return self._judge(self._known, document) in ("ended", "failed")

    def do_later(self, work: Work) -> None:
        """Let the thread change what the bus keeps, in the order of these calls, and again until it succeeds."""
        self._work.append(work)

    def wait(self, pause_s: float) -> bool:
        """Whether the controller ends meanwhile."""
        return self._ending.wait(pause_s)

    def now_s(self) -> float:
        return self._clock()

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
                _close(source)
                source, pause_s = None, _CONFLICT_S
            except (BusError, OSError) as error:
                does = "does not answer" if isinstance(error, UnknownOutcome) else "refuses it"
                self._go_deaf(f"the bus {does}: {error}")
            except UserError as error:
                self._go_deaf(f"{error.what}: {error.why}")
            except Exception as error:  # without this thread the page would stand still and look live
                self._go_deaf(f"the bus cannot be followed: {type(error).__name__}: {error}")
                _close(source)
                source, pause_s = None, _CONFLICT_S
            self._note([f"the bus has refused: {remark}" for remark in self._link.take_remarks()])
            self._ending.wait(pause_s)

    def _note(self, remarks: list[str]) -> None:
        for remark in map(shorten, remarks):
            others = {text: at for text, at in self._remarks.items() if text != remark}
            self._remarks = dict([*others.items(), (remark, time.strftime("%H:%M:%S"))][-_REMARKS_KEPT:])

    def _turn(self, source: Source) -> None:
        now_s = self._clock()
        if isinstance(source, FleetStore):
            self._do_work(source)
        source.turn(_TURN_S, now_s)
        self._note(source.take_problems())
        complete: dict[str, tuple[Document, Document]] = {}
        for found, is_drained in ((source.documents, False), (source.drained, True)):
            # Before an agent has spoken there are only decisions.
            spoken = {key: one for key, one in found.items() if "machine" in one and "job" in one}
            for key, one in spoken.items():
                before = self._complete.get(key)
                is_same = before is not None and before[0] is one and before[1]["is_drained"] == is_drained
                complete[key] = before if before and is_same else (one, {**EMPTY, **one, "is_drained": is_drained})
        self._complete = complete
        self._known = _Known({key: pair[1] for key, pair in complete.items()}, source.listening_s)
        self._is_known.set()

    def _do_work(self, store: FleetStore) -> None:
        """What the bus does not take stays for the next turn, and nothing is done before it."""
        while self._work:
            try:
                self._work[0](store)
            except BusError:
                raise
            except Exception:
                self._work.popleft()
                raise
            self._work.popleft()

    def _go_deaf(self, remark: str) -> None:
        known = self._known
        until_s = self._clock() if known.until_s is None else known.until_s
        self._known = _Known(known.documents, known.listening_s, until_s, shorten(remark))


def _close(source: Source | None) -> None:
    """A source that is left open would go on queueing what it hears."""
    if source is not None:
        with suppress(BusError):
            source.close()
