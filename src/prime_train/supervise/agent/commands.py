"""Carries commands from the bus to the supervisor, as request files, and its answers back. Acts once for each id.

A command names what it wants: stop, settings, command, or the end of a log. A controller that saw no answer repeats it
with the same id.
"""

from __future__ import annotations

import json
import queue
import re
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from prime_train.bus.base import Bus, BusError, BusMessage
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.outside import RECORD_BYTES, read_json
from prime_train.core.rundir import RunDir, make_folder, write_atomic
from prime_train.supervise.agent.log_tail import read_log_tail
from prime_train.supervise.core.journal import read_state
from prime_train.supervise.processes import requests
from prime_train.supervise.processes.ask import ask

MOST_WAITING = 100  # commands; a controller that sends more at once gets a refusal for each
_ANSWERS_KEPT = 1000
_MOST_REPORTED = 32
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_REQUESTS = {"settings": requests.SETTINGS_REQUESTED, "command": requests.COMMAND_REQUESTED}
_LOG = "log"
_KINDS = ("stop", _LOG, *_REQUESTS)
Answer = dict[str, Any]  # outcome, what, why, fix, where


class Commands:
    """Answers in a thread, because a supervisor may take seconds. `bus` sends the answers.

    `report`: what an unexpected error is written with, each kind once. `hidden`: secrets that no log on the bus has.
    """

    def __init__(self, run_dir: RunDir, bus: Bus, report: Callable[[str], None], hidden: Sequence[str] = ()) -> None:
        self._run_dir = run_dir
        self._hidden = hidden
        self._bus = bus
        self._report = report
        self._reported: set[str] = set()
        self._file = run_dir.bus / "answers.json"
        self._answers = self._load()
        self._waiting: queue.Queue[BusMessage] = queue.Queue(MOST_WAITING)
        threading.Thread(target=self._work, name="commands", daemon=True).start()

    def receive(self, message: BusMessage) -> None:
        """Answer a command later, or refuse it at once if too many wait. A log waits for no supervisor."""
        if message.body.get("kind") == _LOG:
            self._reply(message, self.answer(message))
            return
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            why = f"{MOST_WAITING} commands wait for the supervisor"
            self._reply(message, refuse("too many commands at once", why, "repeat it later with the same id"))

    def _work(self) -> None:
        while True:
            message = self._waiting.get()
            # Any error: without this thread every later command would wait for ever.
            try:
                answer = self.answer(message)
            except Exception as error:
                answer = self._describe(error)
            try:
                self._reply(message, answer)
            except Exception as error:
                self._describe(error)

    def _describe(self, error: Exception) -> Answer:
        """The answer to a command that failed by an unexpected error, which the log has once."""
        what = f"{type(error).__name__}: {error}"[:200]
        if what not in self._reported and len(self._reported) < _MOST_REPORTED:
            self._reported.add(what)
            self._report(f"a command failed by an unexpected error: {what}\n{traceback.format_exc()}")
        why, fix = "the agent of the run met an unexpected error", "look at agent.log in the folder of the run"
        return refuse(f"the command failed: {what}", why, fix, str(self._run_dir.bus)) | {"outcome": "unknown"}

    def _reply(self, message: BusMessage, answer: Answer) -> None:
        # A controller that is gone gets the answer when it repeats the command.
        with suppress(BusError, ValueError):
            if message.reply:
                self._bus.publish(message.reply, answer, message.id)

    def answer(self, message: BusMessage) -> Answer:
        """Do what a command wants, unless it was done before. Returns its answer."""
        known = self._answers.get(message.id)
        if known is not None:
            return known
        kind, body = message.body.get("kind"), message.body.get("body", {})
        if kind not in _KINDS or not isinstance(body, dict) or not _ID.fullmatch(message.id):
            what = "this is no command"
            why = (
                f"its kind is one of {', '.join(_KINDS)}, its body an object, its id up to 64 letters, digits, - and _"
            )
            return refuse(what, why, "install one prime-train everywhere")
        try:
            if kind == _LOG:  # it changes nothing, so it is not remembered
                log = read_log_tail(self._run_dir, body, self._hidden)
                return {**dict.fromkeys(("what", "why", "fix", "where"), ""), "outcome": "done", "log": log}
            found = self._stop(message.id) if kind == "stop" else self._ask(_REQUESTS[kind], body, message.id)
        except UserError as error:
            # Nothing is remembered: the same command may be repeated, and the supervisor knows what it has done.
            outcome = "unknown" if error.exit_code == ExitCode.OUT_OF_REACH else "refused"
            return refuse(error.what, error.why, error.fix, error.where) | {"outcome": outcome}
        self._keep(message.id, found)
        return found

    def _stop(self, command_id: str) -> Answer:
        answer = {"outcome": "accepted", "what": "the run saves a checkpoint and ends"}
        # Remembered before it is done: a second stop would end the run without a checkpoint.
        self._keep(command_id, answer)
        try:
            requests.request_stop(self._run_dir, read_state(self._run_dir).state.attempt_number, command_id)
        except UserError:
            del self._answers[command_id]
            raise
        return answer

    def _ask(self, kind: str, body: Mapping[str, Any], command_id: str) -> Answer:
        found = ask(self._run_dir, read_state(self._run_dir).state.attempt_number, kind, body, command_id)
        return {name: getattr(found, name) for name in ("outcome", "what", "why", "fix", "where")}

    def _keep(self, command_id: str, answer: Answer) -> None:
        self._answers[command_id] = answer
        while len(self._answers) > _ANSWERS_KEPT:
            del self._answers[next(iter(self._answers))]
        with suppress(OSError):  # a full disk; the supervisor too knows which requests it has answered
            make_folder(self._file.parent)
            write_atomic(self._file, json.dumps(self._answers))

    def _load(self) -> dict[str, Answer]:
        try:
            found = read_json(self._file, RECORD_BYTES, within=self._run_dir.path)
        except (OSError, ValueError):
            return {}
        return (
            {name: answer for name, answer in found.items() if isinstance(answer, dict)}
            if isinstance(found, dict)
            else {}
        )


def refuse(what: str, why: str, fix: str, where: str = "") -> Answer:
    return {"outcome": "refused", "what": what, "why": why, "fix": fix, "where": where}
