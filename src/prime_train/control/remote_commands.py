"""Hands requests to the agents of runs on other machines, and reads their logs and what the bus keeps of them.

An answer that does not come is `unknown`: the same id may be sent again. What an agent answers is cut and typed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from prime_train.bus.base import Bus, BusError, UnknownOutcome
from prime_train.bus.fleet_events import Document
from prime_train.bus.fleet_evidence import Files, read_kept
from prime_train.bus.fleet_store import FleetStore
from prime_train.bus.fleet_traces import is_whole, read_trace
from prime_train.control.fleet_rows import Row, name_remote
from prime_train.control.timeline import shorten
from prime_train.core.errors import UserError
from prime_train.supervise.agent.log_tail import join_logs
from prime_train.supervise.processes.ask import LONGEST_S, create_request_id
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, SETTINGS_REQUESTED, STOP_REQUESTED

Work = Callable[[FleetStore], None]
MACHINE_REQUESTED = "machine_requested"  # for every run on a machine: "drain" or "return"
_ANSWER_S = LONGEST_S + 5.0  # the agent waits for its supervisor
_LOG_S = 5.0
_BACK_S, _PAUSE_S = 6.0, 0.5  # an agent connects again within 5 s
_BODY_CHARACTERS = 500  # of a command that is kept
_ATTEMPTS_SHOWN = 100
_LINES_SHOWN = 1000  # of a file beside the log
_KINDS = {STOP_REQUESTED: "stop", SETTINGS_REQUESTED: "settings", COMMAND_REQUESTED: "command"}
_TEXTS = ("outcome", "what", "why", "fix", "where")


class Fleet(Protocol):
    """What is known of runs on other machines: RemoteRuns."""

    @property
    def bus(self) -> Bus: ...

    def find(self, name: str) -> Document | None: ...

    def documents(self) -> list[Document]: ...

    def is_over(self, document: Document) -> bool: ...

    def do_later(self, work: Work) -> None: ...

    def wait(self, pause_s: float) -> bool: ...

    def now_s(self) -> float: ...


class RemoteCommands:
    """Its methods may be called from any thread."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def send(self, name: str, kind: str, body: Mapping[str, Any], request_id: str) -> Row:
        """The answer of the run's supervisor, as its agent returns it; `unknown` where none came. Raises UserError."""
        document = self._require(name)
        key, about = _key(document), {"id": request_id, "kind": kind, "body": str(dict(body))[:_BODY_CHARACTERS]}
        decision = about | {"sent_s": self._fleet.now_s()}
        self._decide(key, decision | {"outcome": "unknown"})
        answer = self._ask(document, _KINDS[kind], body, request_id, _ANSWER_S)
        self._decide(key, decision | {"outcome": answer["outcome"], "what": answer["what"]})
        return answer

    def _decide(self, key: str, decision: Mapping[str, Any]) -> None:
        self._fleet.do_later(lambda store: store.decide(key, decision))

    def command_machine(self, machine: str, body: Mapping[str, Any], request_id: str) -> Row:
        """Drain a machine: each run there saves, frees its GPUs and has them tested. Or return it. Raises UserError."""
        command = body.get("command")
        if command not in ("drain", "return"):
            fix = 'send {"command": "drain"} or {"command": "return"}'
            raise UserError(f"{shorten(str(command))!r} is no command for a machine", machine, "it has two", fix)
        found = [one for one in self._fleet.documents() if one["machine"] == machine and not self._fleet.is_over(one)]
        found = [one for one in found if bool(one.get("is_drained")) == (command == "return")]
        if not found:
            why = "no agent there has reported one" if command == "drain" else "it was not drained"
            raise UserError(f"no run to {command} on {shorten(machine)}", "the bus", why, "reload the page")
        about = {name: body[name] for name in ("by", "why") if name in body}
        step = self._drain if command == "drain" else self._bring_back
        answers = {name_remote(one): step(one, about, f"{request_id[:48]}-{n}") for n, one in enumerate(found)}
        failed = next((one for one in answers.values() if one["outcome"] in ("refused", "unknown")), None)
        what = "; ".join(f"{name}: {answer['what']}" for name, answer in answers.items())
        found_answer = failed or next(iter(answers.values()))
        return {**found_answer, "request_id": request_id, "what": shorten(what)}

    def _drain(self, document: Document, about: Row, request_id: str) -> Row:
        answer = self._command(document, {"command": "pause"} | about, f"{request_id}-pause")
        if answer["outcome"] in ("refused", "unknown"):
            return answer
        key = _key(document)
        self._fleet.do_later(lambda store: store.drain(key))
        uuids = [gpu["uuid"] for gpu in document.get("gpus", []) if gpu["uuid"]]
        # Without the driver's list of processes every GPU of the machine is tested.
        pids = {one["pid"] for one in document["ranks"].values()}
        used = [gpu["uuid"] for gpu in document.get("gpus", []) if pids & {*gpu["pids"]}] or uuids or ["cpu"]
        tested = self._command(document, {"command": "test", "gpus": used} | about, f"{request_id}-test")
        return answer | {"what": f"{answer['what']}; {tested['what']}"}

    def _bring_back(self, document: Document, about: Row, request_id: str) -> Row:
        key = _key(document)
        answer = self._command(document, {"command": "resume"} | about, f"{request_id}-resume")
        if answer["outcome"] != "unknown":  # one that is refused was resumed by another way
            self._fleet.do_later(lambda store: store.bring_back(key))
        return answer

    def _command(self, document: Document, body: Row, request_id: str) -> Row:
        return self.send(name_remote(document), COMMAND_REQUESTED, body, request_id)

    # --- logs and traces ---------------------------------------------------------------------------------------

    def read_log(self, name: str, attempt: int | None, lines: int) -> Row:
        """The last lines of an attempt's log, and the files beside it. Raises UserError.

        Those of a failed attempt are kept by the bus; others the agent returns, masked and cut.
        """
        document = self._fleet.find(name)
        if document is not None and attempt is not None and str(attempt) in document.get("kept", {}):
            kept = self._read_kept(document, attempt)
            if kept:
                return _show_kept(document, attempt, kept, lines)
        body, request_id = {"attempt": attempt, "lines": lines}, create_request_id()
        answer = self._ask(self._require(name), "log", body, request_id, _LOG_S)
        if answer["outcome"] != "done":
            raise UserError(answer["what"], name, answer["why"], answer["fix"])
        log = answer.get("log")
        found: Mapping[str, Any] = log if isinstance(log, dict) else {}
        text = [shorten(line) for line in _list(found.get("lines")) if isinstance(line, str)][-2 * lines :]
        attempts = [one for one in _list(found.get("attempts")) if type(one) is int][-_ATTEMPTS_SHOWN:]
        shown = found.get("attempt") if type(found.get("attempt")) is int else None
        return {"problem": None, "attempt": shown, "attempts": attempts, "lines": text}

    def _read_kept(self, document: Document, attempt: int) -> Files:
        try:
            return read_kept(self._fleet.bus, _key(document), attempt)
        except (BusError, ValueError):  # the agent may have it
            return []

    def read_trace(self, name: str, trace: str) -> bytes:
        """The bytes of a trace that was kept, also of a machine that is gone. Raises UserError."""
        document = self._fleet.find(name)
        about = document.get("traces", {}).get(trace) if document is not None else None
        if document is None or about is None or not is_whole(about):
            why = about["note"] or "not every part has come" if about else "the controller has none with this name"
            raise UserError(f"there is no trace {shorten(trace)!r}", shorten(name), why, "reload the page")
        try:
            return read_trace(self._fleet.bus, _key(document), trace, about)
        except (BusError, ValueError) as error:
            fix = f"copy profile/{trace} from the folder of the run on {document['machine']}"
            raise UserError("the trace cannot be read", shorten(name), str(error), fix) from error

    # --- the bus ------------------------------------------------------------------------------------

    def _require(self, name: str) -> Document:
        document = self._fleet.find(name)
        if document is None:
            machines = ", ".join(sorted({one["machine"] for one in self._fleet.documents()})[:8]) or "none yet"
            why = f"no agent has reported it; the machines on the bus are: {machines}"
            raise UserError(f"no run {shorten(name)!r}", "the bus", why, "reload the page, or start its agent again")
        if self._fleet.is_over(document):
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
            return dict(zip(_TEXTS, ("unknown", what, why, fix, subject), strict=True)) | {"request_id": request_id}
        except (BusError, ValueError) as error:
            what, fix = "the request cannot be sent", "use the controller's credentials, and send less"
            raise UserError(what, subject, str(error), fix) from error
        answer: Row = shorten({"request_id": request_id, **{name: str(found.get(name, "")) for name in _TEXTS}})
        return answer | ({"log": found["log"]} if kind == "log" and "log" in found else {})

    def _request(self, subject: str, message: Row, request_id: str, longest_s: float) -> Mapping[str, Any]:
        """The answer. Where no agent listens it is sent again for a while, because agents come back within seconds."""
        until_s = time.monotonic() + _BACK_S
        while True:
            try:
                return self._fleet.bus.request(subject, message, request_id, longest_s).body
            except UnknownOutcome:
                if time.monotonic() > until_s or self._fleet.wait(_PAUSE_S):
                    raise


def _key(document: Document) -> str:
    return f"{document['job']}.{document['machine']}"


def _show_kept(document: Document, attempt: int, kept: Files, lines: int) -> Row:
    logs = [
        (one["name"].removesuffix(".log"), one["text"].splitlines()) for one in kept if one["name"].endswith(".log")
    ]
    attempts = list(range(1, document.get("attempt", attempt) + 1))[-_ATTEMPTS_SHOWN:]
    text = [shorten(line) for line in join_logs([(role, all_lines[-lines:]) for role, all_lines in logs])]
    others = [one for one in kept if not one["name"].endswith(".log")]
    shown = {"problem": None, "attempt": attempt, "attempts": attempts, "lines": text[-2 * lines :]}
    return shown | {"evidence": show_evidence(others)}


def show_evidence(files: Files) -> list[Row]:
    """Name and lines of each file, as the page shows them."""
    return [
        {"name": shorten(one["name"]), "lines": [shorten(line) for line in one["text"].splitlines()[:_LINES_SHOWN]]}
        for one in files
    ]


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []
