"""Sends alerts of alarms and ends by a command or a webhook, in its own thread. Decides nothing.

Alerts are sent one by one. A command or a server that hangs delays the next alert, and never the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prime_train.core.http import HttpBounds, HttpRequest, NoReplyError, is_safe, send
from prime_train.core.process_id import Identity, identify
from prime_train.core.redaction import own_secrets, redact
from prime_train.events import AlertSent
from prime_train.supervise.core.event_text import Alert

VERSION = 1
_MARKS = ("PRIME_TRAIN_RUN", "PRIME_TRAIN_SUPERVISOR")  # the alert command is no process of the attempt
_LONGEST_ERROR = 200
_SLACK, _DISCORD = "hooks.slack.com", ("discord.com", "discordapp.com")


@dataclass(frozen=True, slots=True)
class AlertLimits:
    """How often alerts are sent, and for how long a failed one is tried again."""

    same_again_s: float = 600.0  # the same alert is not sent again within this time
    most_at_once: int = 10  # alerts that are sent without a pause
    then_every_s: float = 60.0  # pause between more alerts
    deadline_s: float = 20.0  # for one run of the command or one answer of the server
    tries: int = 3
    retry_s: float = 1.0  # before the second try; each next wait is four times longer
    most_waiting: int = 100


class AlertSender:
    """Sends alerts. Without a command and an address it drops them.

    `webhook_env` names the variable of `environment` that holds the address: https, or http on this machine. The
    address and every secret of the environment are masked in each alert and in each error.
    """

    def __init__(
        self,
        command: Sequence[str],
        webhook_env: str | None,
        environment: Mapping[str, str],
        limits: AlertLimits | None = None,
    ) -> None:
        self._limits = limits or AlertLimits()
        self._command = tuple(command)
        self._address = environment.get(webhook_env, "") if webhook_env else ""
        self._hidden = (*([self._address] if self._address else []), *own_secrets([webhook_env], environment))
        self._variables = {name: value for name, value in environment.items() if name not in _MARKS}
        self._waiting: Queue[Alert | None] = Queue(self._limits.most_waiting)
        self._results: SimpleQueue[AlertSent] = SimpleQueue()
        self._throttle = _Throttle(self._limits)
        self._closing = threading.Event()
        self._child: Identity | None = None
        self._thread: threading.Thread | None = None
        if webhook_env and (problem := _check_address(webhook_env, self._address)):
            self._address = ""
            self._results.put(AlertSent("webhook", "set-up", problem))

    def send(self, about: str, document: Mapping[str, Any], *, at_once: bool = False) -> None:
        """Send it in the background.

        An alert that was sent recently, or comes too often, is only counted, and the next alert has that count.
        `at_once`: never hold this one back.
        """
        if not (self._command or self._address):
            return
        dropped = self._throttle.count_dropped(about, time.monotonic(), at_once)
        if dropped is None:
            return
        document = {"version": VERSION, "about": about, **document, "not_told_before": dropped}
        masked = {name: _mask(part, self._hidden) for name, part in document.items()}
        try:
            self._waiting.put_nowait(Alert(about, masked))
        except Full:
            self._results.put(AlertSent(self._channels[0], about, f"{self._limits.most_waiting} others still wait"))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
            self._thread.start()

    def results(self) -> list[AlertSent]:
        found = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._results.get_nowait())
        return found

    def processes(self) -> tuple[Identity, ...]:
        """The command that runs now; it belongs to no attempt."""
        child = self._child
        return (child,) if child is not None and child.alive else ()

    def close(self, flush_s: float = 10.0) -> list[AlertSent]:
        """Send the waiting alerts for at most `flush_s`, then end the command. Returns the results."""
        if self._thread is not None:
            with contextlib.suppress(Full):
                self._waiting.put_nowait(None)
            self._thread.join(flush_s)
            self._closing.set()
            if self._thread.is_alive() and self._end_child():
                self._thread.join(1.0)  # the daemon thread may stay, if a server does not answer
            while self._thread.is_alive() or not self._waiting.empty():
                try:
                    left = self._waiting.get_nowait()
                except Empty:
                    break
                if left is not None:
                    self._results.put(AlertSent(self._channels[0], left.about, "the run ended before it was sent"))
        return self.results()

    @property
    def _channels(self) -> tuple[str, ...]:
        return tuple(name for name, has in (("command", self._command), ("webhook", self._address)) if has)

    def _work(self) -> None:
        while not self._closing.is_set() and (alert := self._waiting.get()) is not None:
            for channel in self._channels:
                send = self._run_command if channel == "command" else self._post
                failed = redact(self._try(send, alert.document), self._hidden)
                self._results.put(AlertSent(channel, alert.about, failed[:_LONGEST_ERROR]))

    def _try(self, send: Callable[[dict[str, Any]], _Outcome], document: dict[str, Any]) -> str:
        """Send with several tries. Returns the last error; empty on success."""
        wait_s = self._limits.retry_s
        for left in reversed(range(self._limits.tries)):
            outcome = send(document)
            if not outcome.failed or not outcome.again or not left:
                return outcome.failed
            if self._closing.wait(wait_s):
                return f"{outcome.failed}; the run ended before another try"
            wait_s *= 4
        return ""

    def _run_command(self, document: dict[str, Any]) -> _Outcome:
        """Run the command with the alert as its input. Its output is dropped."""
        try:
            child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._variables,
                start_new_session=True,
            )
        except OSError as error:
            return _Outcome(f"it cannot be started: {error.strerror}", again=False)
        self._child = identify(child.pid)
        try:
            child.communicate(json.dumps(document).encode(), timeout=self._limits.deadline_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return _Outcome(f"it ran longer than {self._limits.deadline_s:g} s and was ended", again=False)
        finally:
            self._child = None
        if child.returncode == 0:
            return _Outcome()
        if child.returncode < 0:
            return _Outcome(f"it was killed by signal {-child.returncode}", again=True)
        return _Outcome(f"it exited with {child.returncode}", again=False)

    def _post(self, document: dict[str, Any]) -> _Outcome:
        body = json.dumps(_body(self._address, document)).encode()
        request = HttpRequest("POST", self._address, {"Content-Type": "application/json"}, body)
        limit_s = self._limits.deadline_s
        try:
            status = send(request, HttpBounds(limit_s, limit_s, most_bytes=0)).status
        except NoReplyError as error:
            return _Outcome(f"the server cannot be reached: {error.detail}", again=True)
        if status < 300:
            return _Outcome()
        return _Outcome(f"the server answered {status}", again=status == 429 or status >= 500)

    def _end_child(self) -> bool:
        """Whether a command was running."""
        child = self._child
        if child is None or not child.alive:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return True


class _Outcome(NamedTuple):
    failed: str = ""
    again: bool = False


class _Throttle:
    """Limits the number of alerts, and counts those that are not sent."""

    def __init__(self, limits: AlertLimits) -> None:
        self._limits = limits
        self._sent_s: dict[str, float] = {}
        self._credit = float(limits.most_at_once)
        self._at_s: float | None = None
        self._dropped = 0

    def count_dropped(self, about: str, now_s: float, at_once: bool) -> int | None:
        """How many alerts were dropped since the last one that was sent; None if this one is dropped too."""
        if self._at_s is not None:
            grown = (now_s - self._at_s) / self._limits.then_every_s
            self._credit = min(float(self._limits.most_at_once), self._credit + grown)
        self._at_s = now_s
        last_s = self._sent_s.get(about)
        is_new = last_s is None or now_s - last_s >= self._limits.same_again_s
        if not at_once and (not is_new or self._credit < 1):
            self._dropped += 1
            return None
        self._sent_s = {
            name: sent_s for name, sent_s in self._sent_s.items() if now_s - sent_s < self._limits.same_again_s
        }
        self._sent_s[about] = now_s
        self._credit = max(0.0, self._credit - 1)
        dropped, self._dropped = self._dropped, 0
        return dropped


def _mask(value: Any, hidden: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, hidden)
    return [_mask(part, hidden) for part in value] if isinstance(value, (list, tuple)) else value


def _body(address: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document; only its text for Slack and Discord, which accept no other fields."""
    host = urlsplit(address).hostname or ""
    text = str(document.get("text", document["about"]))
    if host == _SLACK:
        return {"text": text}
    if host in _DISCORD:
        return {"content": text[:2000]}
    return dict(document)


def _check_address(variable: str, address: str) -> str:
    """Why the webhook cannot be used; empty if it can. The address is a secret, so it is not shown."""
    if not address:
        return f"{variable} is not set"
    return "" if is_safe(address) else f"{variable} holds no https address"
