"""One poll of the monitor: reads, decides, writes its issue, and resumes or cancels. No I/O and no clock of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from prime_train.away.monitor import history as state
from prime_train.away.monitor.decide import (
    BegunResume,
    Decision,
    MonitoredJob,
    MonitorLimits,
    PollHistory,
    PollReading,
    decide,
    find_best_step,
    record,
)
from prime_train.away.monitor.inputs import RunStatus

_PAGE = 100


class Services(Protocol):
    """What a poll reads and starts. Each method raises UserError if GitHub is out of reach."""

    def read_status(self) -> RunStatus: ...

    def read_queue(self) -> tuple[MonitoredJob, ...] | None:
        """The managed jobs of the run; None if the queue cannot be read."""

    def launch(self) -> str:
        """Start the run again. Returns "" or the reason why it did not start."""

    def cancel(self, job: int) -> str:
        """Cancel a managed job. Returns "" or the reason why it was not cancelled."""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The parsed answer of GitHub to a request below /repos/OWNER/NAME."""


class PollSetting(NamedTuple):
    """What a poll is about. `author` is the login of the token, the only writer of issues that a poll believes.

    `dry_run` decides and changes nothing.
    """

    name: str
    author: str
    limits: MonitorLimits = MonitorLimits()
    dry_run: bool = False


class PollResult(NamedTuple):
    """The decision of a poll, what it read, and what came of it. `issue` is None if there is none."""

    decision: Decision
    reading: PollReading
    issue: int | None
    outcome: str


@dataclass(frozen=True, slots=True)
class _Issue:
    """The issue of the run. Its body is what the monitor knows; comments are for people and are never read."""

    services: Services
    name: str
    number: int
    body: str

    def write(self, decision: Decision, history: PollHistory) -> None:
        body = {"body": state.write_body(self.name, decision, history)}
        closed = {"state": "closed"} if decision.closes else {}
        self.services.ask("PATCH", f"/issues/{self.number}", {**body, **closed})

    def comment(self, words: str, why: str) -> None:
        body = {"body": state.write_comment(words, why)}
        self.services.ask("POST", f"/issues/{self.number}/comments", body)


def poll(setting: PollSetting, services: Services, clock: Callable[[], float]) -> PollResult:
    """One poll. Raises UserError if GitHub is out of reach."""
    status = services.read_status()
    jobs = services.read_queue()
    reading = PollReading(clock(), status.verdict, status.why, status.resumable, status.step, jobs)
    issue = _find_issue(setting, services)
    history = state.read_history(issue.body) if issue else PollHistory()
    decision = decide(reading, history, setting.limits)
    if setting.dry_run:
        return PollResult(decision, reading, issue.number if issue else None, "nothing was changed")
    if issue is None:
        issue = _open_issue(setting, services)
    history = history._replace(polls=(*history.polls, record(reading)))
    match decision.action:
        case "resume":
            outcome = _resume(issue, decision, history, reading.at_s)
        case "give-up":
            outcome = _give_up(issue, decision, history)
        case _:
            issue.write(decision, history)
            outcome = ""
    return PollResult(decision, reading, issue.number, outcome)


def _resume(issue: _Issue, decision: Decision, history: PollHistory, at_s: float) -> str:
    """Look at the queue again, write the resume down, launch. Returns what came of it.

    The body is written before the launch, because a poll may be killed meanwhile. So a resume that nobody saw the end
    of counts, and the next one waits for its time.
    """
    jobs = issue.services.read_queue()
    if jobs is None or any(job.is_live for job in jobs):
        issue.write(decision, history)
        return "not resumed: " + ("the queue cannot be read" if jobs is None else "a managed job of this run is live")
    number = max((resume.number for resume in history.resumes), default=0) + 1
    resume = BegunResume(number, at_s, find_best_step(history))
    issue.write(decision, history._replace(resumes=(*history.resumes, resume)))
    failed = issue.services.launch()
    words = f"Resume {number} from step {resume.step:,}: **{'failed' if failed else 'started'}**."
    issue.comment(words, failed or decision.why)
    return f"resume {number} failed: {failed}" if failed else f"resume {number} started"


def _give_up(issue: _Issue, decision: Decision, history: PollHistory) -> str:
    issue.write(decision, history._replace(gave_up=decision.why))
    issue.comment("The monitor gave up:", decision.why)
    if decision.cancel is None:
        return "given up"
    failed = issue.services.cancel(decision.cancel)
    return f"given up; job {decision.cancel} " + (f"could not be cancelled: {failed}" if failed else "was cancelled")


def _find_issue(setting: PollSetting, services: Services) -> _Issue | None:
    """The open issue of the run, the oldest one if a person opened others. None if there is none."""
    query = f"/issues?state=open&labels={state.LABEL}&sort=created&direction=asc&per_page={_PAGE}"
    listed: list[dict[str, Any]] = services.ask("GET", query)
    title = state.title_of(setting.name)
    mine = [one for one in listed if one.get("title") == title and _author(one) == setting.author]
    if not mine:
        return None
    oldest = min(mine, key=lambda one: int(one["number"]))
    return _Issue(services, setting.name, int(oldest["number"]), str(oldest.get("body") or ""))


def _open_issue(setting: PollSetting, services: Services) -> _Issue:
    body = state.write_body(setting.name, Decision("wait", "the first poll"), PollHistory())
    new = {"title": state.title_of(setting.name), "body": body, "labels": [state.LABEL]}
    created: dict[str, Any] = services.ask("POST", "/issues", new)
    return _Issue(services, setting.name, int(created["number"]), body)


def _author(document: dict[str, Any]) -> str:
    user = document.get("user")
    return str(user.get("login")) if isinstance(user, dict) else ""
