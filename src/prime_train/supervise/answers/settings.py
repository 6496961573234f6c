"""Answers requests to change settings: checks them one after the other in a child, and writes the plan of each change.

A version is one change. A request names the version that its author has seen; a later one refuses it, so no change
overwrites one that its author did not know.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, NamedTuple

from prime_train.core.errors import explain_disk_error
from prime_train.core.outside import parse_json
from prime_train.core.plans import MOST_VALUES, MOST_VERSIONS, ChangePlan, list_versions, read_plan, write_plan
from prime_train.core.process_id import Identity, identify, own_user
from prime_train.core.python_child import own_module
from prime_train.core.rundir import RunDir
from prime_train.events import Event, RequestAnswered, SettingsAccepted, SettingsApplied
from prime_train.spec import RunSpec
from prime_train.spec.live_values import describe_values, takes_plans
from prime_train.supervise.core.state import State
from prime_train.supervise.processes.requests import SETTINGS_REQUESTED, Request

_MOST_WAITING = 100  # requests; further ones are refused
_LONGEST_KEY, _LONGEST_TEXT, _MOST_ITEMS = 200, 500, 64
_CHECK_S = 60.0  # a check takes about a second; a machine that swaps takes longer
_OTHER = "look at it with `prime-train set RUN`, and give the command again"


class SettingsChecked(NamedTuple):
    """Put into the inbox when the child has ended. `answer`: what it printed; empty where it failed."""

    request_id: str
    answer: Mapping[str, Any]
    problem: str = ""


class ChangeRequest(NamedTuple):
    """A request whose body has the right types."""

    id: str
    values: Mapping[str, Any]
    expected: int
    by: str
    why: str


class SettingsRequests:
    """The requests to change the settings of one run."""

    def __init__(self, run_dir: RunDir, inbox: SimpleQueue[object]) -> None:
        self._run_dir = run_dir
        self._inbox = inbox
        self._waiting: deque[ChangeRequest] = deque()  # the first one is being checked, if there is a child
        self._child: Identity | None = None

    def processes(self) -> tuple[Identity, ...]:
        return (self._child,) if self._child is not None else ()

    def take(self, request: Request, state: State) -> Iterator[Event]:
        """Answer a request at once if it cannot be accepted, else check it after those before it."""
        if any(each.id == request.id for each in self._waiting):  # its writer repeats it
            return
        asked = read_change(request)
        if isinstance(asked, RequestAnswered):
            yield asked
        elif len(self._waiting) >= _MOST_WAITING:
            what, why = f"{len(self._waiting)} changes wait to be checked", "each is checked like a config, one by one"
            yield _refuse(request.id, what, why, "give the command again in a minute")
        elif (refused := self._refuse_stale(asked, state)) is not None:
            yield refused
        else:
            self._waiting.append(asked)
            if self._child is None:
                yield from self._begin_next(state)

    def finish(self, checked: SettingsChecked, state: State) -> Iterator[Event]:
        """The answer to the request whose check has ended, and the beginning of the next check."""
        self._child = None
        if not self._waiting:  # the run has closed
            return
        asked = self._waiting.popleft()
        yield from self._conclude(asked, checked, state)
        yield from self._begin_next(state)

    def close(self, state: State, *, finished: bool) -> Iterator[Event]:
        """The answers to requests that the end of the run leaves open, and to changes that no step has had."""
        while self._waiting:
            what, why = "the run ended before the change was checked", "only a run that trains is changed"
            yield _refuse(self._waiting.popleft().id, what, why, "edit the config before the run is started again")
        # A run that was stopped or has failed may go on, and the change comes then.
        versions = list_versions(self._run_dir.settings) if finished else []
        for version in versions:
            if version > max((one for one, _ in state.settings_applied), default=0):
                with suppress(OSError, ValueError):
                    yield _answer_unused(read_plan(self._run_dir.settings, version))

    def _begin_next(self, state: State) -> Iterator[Event]:
        while self._waiting and self._child is None:
            asked = self._waiting[0]
            # Once more, because the change before it may have been accepted meanwhile.
            refused = self._refuse_stale(asked, state)
            if refused is None:
                refused = self._start(asked, state)
            if refused is not None:
                self._waiting.popleft()
                yield refused

    def _start(self, asked: ChangeRequest, state: State) -> RequestAnswered | None:
        """Start the child from this thread, which lives as long as the supervisor; another thread waits for its end."""
        command = own_module("prime_train.supervise.answers.check_settings", str(self._run_dir.path))
        pipe = subprocess.PIPE
        try:
            child = subprocess.Popen(command, cwd="/", stdin=pipe, stdout=pipe, stderr=pipe)
        except OSError as error:
            what = f"no program can be started: {error.strerror}"
            return _refuse(asked.id, what, "a change is checked by a program of its own", _OTHER)
        self._child = identify(child.pid)
        content = SettingsChild(child, asked.id, {"values": dict(asked.values), "step": state.step}, self._inbox)
        threading.Thread(target=content.wait, name="settings-check", daemon=True).start()
        return None

    def _refuse_stale(self, asked: ChangeRequest, state: State) -> RequestAnswered | None:
        """The answer to a request whose author has not seen the newest version; None if there is no later one."""
        newest = self._find_newest(state)
        if asked.expected == newest:
            if newest < MOST_VERSIONS:
                return None
            what = f"the settings of this run have changed {MOST_VERSIONS} times"
            return _refuse(asked.id, what, "each checkpoint holds every change", "stop it, edit the config, start it")
        if asked.expected > newest:
            what, fix = f"the settings are at version {newest}, not {asked.expected}", "give a version that there is"
            return _refuse(asked.id, what, "no change has this number", f"{fix}: --expect {newest}")
        try:
            plan = read_plan(self._run_dir.settings, newest)
        except (OSError, ValueError):
            return _refuse(asked.id, f"the settings are at version {newest}, not {asked.expected}", _STALE, _OTHER)
        texts = ", ".join(describe_values(plan.values))
        if plan.id == asked.id:  # the supervisor died between the plan and its answer
            return _accept(asked.id, plan.version, texts)
        what = f"the settings are at version {newest}, not {asked.expected}: {plan.by} set {texts}"
        what += f" ({plan.why})" if plan.why else ""
        return _refuse(asked.id, what, _STALE, f"look at it, and give the command again with --expect {newest}")

    def _find_newest(self, state: State) -> int:
        """The newest version. A run that came from another machine may have its events or its plans alone."""
        return max([state.settings_version, *list_versions(self._run_dir.settings)[-1:]])

    def _conclude(self, asked: ChangeRequest, checked: SettingsChecked, state: State) -> Iterator[Event]:
        error, change = checked.answer.get("error"), checked.answer.get("change")
        if error is not None:
            yield _refuse(asked.id, error["what"], error["why"], error["fix"], error["where"])
            return
        if change is None:
            yield _refuse(asked.id, f"the change could not be checked: {checked.problem}", "its check failed", _OTHER)
            return
        version = self._find_newest(state) + 1
        plan = ChangePlan(
            version=version,
            **{name: change[name] for name in ("values", "before", "config")},
            by=asked.by,
            why=asked.why,
            requested_s=round(time.time(), 3),
            id=asked.id,
        )
        try:
            write_plan(self._run_dir.settings, plan)
        except OSError as failure:
            found = explain_disk_error(failure.errno or 0, self._run_dir.path)
            yield _refuse(asked.id, found.what, found.why, found.fix, str(self._run_dir.settings))
            return
        # After its file: the ranks may have it by now, and a supervisor that dies here finds it again.
        yield SettingsAccepted(version, describe_values(plan.values), plan.by, plan.why)
        yield _accept(asked.id, version, "; ".join(change["texts"]))


_STALE = "another change came first, and its author's values would be lost unseen"


class SettingsChild(NamedTuple):
    """The child that checks a request."""

    child: subprocess.Popen[bytes]
    request_id: str
    question: Mapping[str, Any]
    inbox: SimpleQueue[object]

    def wait(self) -> None:
        """Wait for its end, and put its answer into the inbox."""
        answer: Any = {}
        try:
            output, errors = self.child.communicate(json.dumps(self.question).encode(), timeout=_CHECK_S)
            problem = errors.decode(errors="replace").strip().rpartition("\n")[2][:_LONGEST_TEXT]
            with suppress(ValueError):
                answer = parse_json(output)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.communicate()
            problem = f"it took more than {_CHECK_S:.0f} s"
        self.inbox.put(SettingsChecked(self.request_id, answer if isinstance(answer, dict) else {}, problem))


def read_change(request: Request) -> ChangeRequest | RequestAnswered:
    """The request, or the answer to a body that is none: any process of the user may have written it."""
    values, expected = request.body.get("values"), request.body.get("expected")
    by, why = request.body.get("by", ""), request.body.get("why", "")
    is_sound = (
        isinstance(values, dict)
        and 0 < len(values) <= MOST_VALUES
        and all(len(key) <= _LONGEST_KEY and _is_value(value) for key, value in values.items())
        and isinstance(expected, int)
        and all(isinstance(text, str) and len(text) <= _LONGEST_TEXT for text in (by, why))
    )
    if not is_sound or not isinstance(values, dict) or not isinstance(expected, int):
        what = "the request has no values and expected version, or texts that are too long"
        why = f"it has up to {MOST_VALUES} keys, each with a plain value, and texts of {_LONGEST_TEXT} characters"
        return _refuse(request.id, what, why, "make the change with prime-train set")
    return ChangeRequest(request.id, values, expected, by or own_user(), why)


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= _MOST_ITEMS and not any(isinstance(item, list) or not _is_value(item) for item in value)
    return value is None or (isinstance(value, bool | int | float | str) and len(str(value)) <= _LONGEST_TEXT)


def _accept(request_id: str, version: int, texts: str) -> RequestAnswered:
    why = "every rank applies it at the same step, the first at which all have it"
    return RequestAnswered(request_id, SETTINGS_REQUESTED, "accepted", f"settings version {version}: {texts}", why)


def _answer_unused(plan: ChangePlan) -> RequestAnswered:
    what = f"settings version {plan.version} was never in force: the run ended before it"
    why = "a change needs a step after the one at which all ranks have it"
    return RequestAnswered(plan.id, SETTINGS_REQUESTED, "done", what, why, "set it in the config of a longer run")


def report_own(run: RunSpec, plans: Iterable[ChangePlan], state: State) -> Iterator[SettingsApplied]:
    """The changes that the supervisor alone has to take: with the next step they are in force. Ranks report theirs."""
    known = dict(state.settings_applied)
    for plan in () if takes_plans(run) else plans:
        if plan.values and plan.version not in known:
            texts = describe_values(plan.values)
            yield SettingsApplied(state.attempt_number, plan.version, state.step + 1, texts, state.max_steps)


def _refuse(request_id: str, what: str, why: str, fix: str, where: str = "") -> RequestAnswered:
    return RequestAnswered(request_id, SETTINGS_REQUESTED, "refused", what, why, fix, where)
