"""Tells an alarm or an end outside the run, by a program or a webhook, from a thread of its own. Decides nothing.

What is told goes out one by one; a program or a server that hangs holds up the next alert, never the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from ipaddress import ip_address
from queue import Empty, Full, Queue, SimpleQueue
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from prime_train.core.errors import UserError
from prime_train.core.process_id import Identity, identify
from prime_train.core.redaction import redact, secrets
from prime_train.events import AlertSent

VERSION = 1
_MARKS = ("PRIME_TRAIN_RUN", "PRIME_TRAIN_SUPERVISOR")  # of processes of an attempt; this one belongs to none
_LONGEST_ERROR = 200
_SLACK, _DISCORD = "hooks.slack.com", ("discord.com", "discordapp.com")


@dataclass(frozen=True, slots=True)
class Limits:
    """How often to tell, and how long to try."""

    same_again_s: float = 600.0  # the same thing is not told again within
    most_at_once: int = 10  # alerts that may follow each other without a pause
    then_every_s: float = 60.0  # pause between further ones
    deadline_s: float = 20.0  # for one run of the command, or one answer of the server
    tries: int = 3
    retry_s: float = 1.0  # wait before the second try; four times as long before each further one
    most_waiting: int = 100


class _Alert(NamedTuple):
    about: str
    document: dict[str, Any]


class Alerts:
    """The way out for alerts. Without a command and an address it takes them and does nothing.

    `webhook_env` names the variable of `environment` that holds the address: https, or http on this machine. The
    address, and every secret of the environment, is masked in what is sent and in what comes back.
    """

    def __init__(
        self,
        command: Sequence[str],
        webhook_env: str | None,
        environment: Mapping[str, str],
        limits: Limits | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._command = tuple(command)
        self._address = environment.get(webhook_env, "") if webhook_env else ""
        self._hidden = (*([self._address] if self._address else []), *secrets(environment, [webhook_env]))
        self._variables = {name: value for name, value in environment.items() if name not in _MARKS}
        self._waiting: Queue[_Alert | None] = Queue(self._limits.most_waiting)
        self._results: SimpleQueue[AlertSent] = SimpleQueue()
        self._throttle = _Throttle(self._limits)
        self._closing = threading.Event()
        self._child: Identity | None = None
        self._thread: threading.Thread | None = None
        self.problem = _problem(webhook_env, self._address) if webhook_env else None
        if self.problem is not None:
            self._address = ""
            self._results.put(AlertSent("webhook", "set-up", self.problem.what))

    def send(self, about: str, document: Mapping[str, Any], *, at_once: bool = False) -> None:
        """Tell it, in the background. What was told lately, or comes too often, is counted and named with the next one;
        `at_once`: the end of a run, which is told whatever came before."""
        if not (self._command or self._address):
            return
        unsaid = self._throttle.unsaid_before(about, time.monotonic(), at_once)
        if unsaid is None:
            return
        told = {"version": VERSION, "about": about, **document, "not_told_before": unsaid}
        try:
            self._waiting.put_nowait(_Alert(about, self._masked(told)))
        except Full:
            self._results.put(AlertSent(self._channels[0], about, f"{self._limits.most_waiting} others still wait"))
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
            self._thread.start()

    def results(self) -> list[AlertSent]:
        """What became of those that were sent, since the last call."""
        found = []
        with contextlib.suppress(Empty):
            while True:
                found.append(self._results.get_nowait())
        return found

    def processes(self) -> tuple[Identity, ...]:
        """The command that runs at present: it belongs to no attempt."""
        child = self._child
        return (child,) if child is not None and child.alive else ()

    def close(self, flush_s: float = 10.0) -> list[AlertSent]:
        """Tell what still waits, for `flush_s` at most, and end what runs then; what became of it."""
        if self._thread is not None:
            with contextlib.suppress(Full):
                self._waiting.put_nowait(None)
            self._thread.join(flush_s)
            self._closing.set()
            if self._thread.is_alive() and self._end_child():
                self._thread.join(1.0)  # a server that does not answer is left to the daemon thread
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
                one = self._run_command if channel == "command" else self._post
                failed = redact(self._tried(one, alert.document), self._hidden)
                self._results.put(AlertSent(channel, alert.about, failed[:_LONGEST_ERROR]))

    def _tried(self, one: Callable[[dict[str, Any]], _Outcome], document: dict[str, Any]) -> str:
        """Why it failed at last; empty where it did not."""
        wait_s = self._limits.retry_s
        for left in reversed(range(self._limits.tries)):
            outcome = one(document)
            if not outcome.failed or not outcome.again or not left:
                return outcome.failed
            if self._closing.wait(wait_s):
                return f"{outcome.failed}; the run ended before another try"
            wait_s *= 4
        return ""

    def _run_command(self, document: dict[str, Any]) -> _Outcome:
        """Run the program with the alert on its input. Its output goes nowhere: it is not the run's to keep."""
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
        request = urllib.request.Request(self._address, body, {"Content-Type": "application/json"}, method="POST")
        try:
            with _OPENER.open(request, timeout=self._limits.deadline_s):
                return _Outcome()
        except urllib.error.HTTPError as error:
            error.close()
            return _Outcome(f"the server answered {error.code}", again=error.code == 429 or error.code >= 500)
        except (OSError, ValueError, HTTPException) as error:
            reason = getattr(error, "reason", error)
            return _Outcome(f"the server cannot be reached: {reason}", again=True)

    def _end_child(self) -> bool:
        """Whether there was a program to end."""
        child = self._child
        if child is None or not child.alive:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        return True

    def _masked(self, document: Mapping[str, Any]) -> dict[str, Any]:
        return {name: _mask(value, self._hidden) for name, value in document.items()}


class _Outcome(NamedTuple):
    failed: str = ""
    again: bool = False


class _Throttle:
    """Counts what is not told."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._told_s: dict[str, float] = {}
        self._credit = float(limits.most_at_once)
        self._at_s: float | None = None
        self._unsaid = 0

    def unsaid_before(self, about: str, now_s: float, at_once: bool) -> int | None:
        """How many were kept back since the last one that was told; None where this one is."""
        if self._at_s is not None:
            grown = (now_s - self._at_s) / self._limits.then_every_s
            self._credit = min(float(self._limits.most_at_once), self._credit + grown)
        self._at_s = now_s
        last_s = self._told_s.get(about)
        is_new = last_s is None or now_s - last_s >= self._limits.same_again_s
        if not at_once and (not is_new or self._credit < 1):
            self._unsaid += 1
            return None
        self._told_s = {
            name: told_s for name, told_s in self._told_s.items() if now_s - told_s < self._limits.same_again_s
        }
        self._told_s[about] = now_s
        self._credit = max(0.0, self._credit - 1)
        unsaid, self._unsaid = self._unsaid, 0
        return unsaid


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """An address that sends elsewhere is not followed: it might lead out of https, or to another machine."""

    def redirect_request(self, *_: object) -> None:
        return None


_OPENER = urllib.request.build_opener(_NoRedirect)


def _mask(value: Any, hidden: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, hidden)
    return [_mask(part, hidden) for part in value] if isinstance(value, (list, tuple)) else value


def _body(address: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """The document; to Slack and Discord, which take no other fields, its text alone."""
    host = urlsplit(address).hostname or ""
    text = str(document.get("text", document["about"]))
    if host == _SLACK:
        return {"text": text}
    if host in _DISCORD:
        return {"content": text[:2000]}
    return dict(document)


def _problem(variable: str, address: str) -> UserError | None:
    """Why nothing can be posted; the address itself is a secret, and not told."""
    fix = f"export {variable}=https://HOST/PATH, or leave prime_train.alerts.webhook_env out"
    where = "prime_train.alerts.webhook_env"
    if not address:
        return UserError(f"{variable} is not set", where, "it is to hold the address that alerts are posted to", fix)
    try:
        parts = urlsplit(address)
        host = parts.hostname or ""
    except ValueError:
        return UserError(f"{variable} holds no address", where, "it cannot be read as one", fix)
    if host and (parts.scheme == "https" or (parts.scheme == "http" and _is_loopback(host))):
        return None
    why = "what an alert says of the run leaves this machine over https alone"
    return UserError(f"{variable} holds no https address", where, why, fix)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
