"""One poll of the monitor: reads, decides, writes its issue, and resumes or cancels. No I/O and no clock of its own.

What it reads is output of other programs, so every field is checked, and a document that is not understood is "not
known".
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeGuard, get_args

from prime_train.away.monitor import history as state
from prime_train.away.monitor.decide import (
    BegunResume,
    Decision,
    MonitoredJob,
    MonitorLimits,
    PollHistory,
    PollReading,
    Verdict,
    decide,
    find_best_step,
    record,
)
from prime_train.away.sky.queue import parse_records
from prime_train.core.errors import UserError
from prime_train.views.text import plain, sanitize, table

MOST_BYTES = 16 * 2**20
_LONGEST_WHY = 300
_MOST_STEPS = 10**12
_LONG_NAME = 36  # letters and digits of a name that may have been cut to 48 characters
_NO_LETTER = re.compile(r"[\W_]+")
_PAGE = 100


class RunStatus(NamedTuple):
    """The part of the status document that the monitor uses."""

    verdict: Verdict
    why: str
    resumable: bool
    step: int | None


def parse_status(text: str) -> RunStatus:
    """The verdict of `status --wandb --json`: {"verdict": "crashed", "why": "...", "resumable": true, "step": 1200}.

    A document without a known verdict is "unknown". `resumable` is true only if it is exactly true.
    """
    document = _parse(text)
    if not isinstance(document, dict):
        return RunStatus("unknown", "the status is no JSON object", False, None)
    verdict: Any = document.get("verdict")
    if verdict not in get_args(Verdict):
        return RunStatus("unknown", "the status has no verdict", False, None)
    why = document.get("why")
    shown = sanitize(why)[:_LONGEST_WHY] if isinstance(why, str) else ""
    step = document.get("step")
    return RunStatus(verdict, shown, document.get("resumable") is True, step if _is_count(step) else None)


def parse_queue(text: str, name: str) -> tuple[MonitoredJob, ...] | None:
    """The managed jobs of the run `name`; None if the queue is not understood, because then none can be excluded.

    A job with several tasks has several records, and is live while one of them is.
    """
    try:
        records = parse_records(text)
    except UserError:
        return None
    found: dict[int, MonitoredJob] = {}
    for job in records:
        if job is None:
            return None
        if _is_called(job.name, name) and (job.id not in found or not found[job.id].is_live):
            found[job.id] = MonitoredJob(job.id, job.state[:40], job.recoveries)
    return tuple(sorted(found.values()))


def _is_called(job_name: str, run_name: str) -> bool:
    """Whether a job is that of the run. Names of jobs allow fewer characters than names of runs, and are shorter.

    Letters and digits are compared. A job that is wrongly taken for the run's delays a resume; one that is wrongly
    taken for another's would get a second one beside it.
    """
    job, run = (_NO_LETTER.sub("", one).lower() for one in (job_name, run_name))
    return job == run or (len(job) >= _LONG_NAME and run.startswith(job))


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST_STEPS


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
    """What a poll is about.

    `author` is the login of the token, the only writer of issues that a poll believes. `dry_run` decides and changes
    nothing.
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


def as_json(name: str, result: PollResult) -> dict[str, Any]:
    """The document of `monitor --json`."""
    reading, decision = result.reading, result.decision
    return {
        "version": 1,
        "run": name,
        "action": decision.action,
        "why": decision.why,
        "fix": decision.fix or None,
        "outcome": result.outcome or None,
        "issue": result.issue,
        "verdict": reading.verdict,
        "verdict_why": reading.why or None,
        "resumable": reading.resumable,
        "step": reading.step,
        "jobs": None if reading.jobs is None else [job._asdict() for job in reading.jobs],
    }


def as_lines(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    step = "" if document["step"] is None else f" at step {document['step']:,}"
    why = f": {document['verdict_why']}" if document["verdict_why"] else ""
    lines = [
        ("run", f"{document['verdict']}{step}{why}"),
        ("jobs", _jobs(document["jobs"])),
        ("action", f"{document['action']}: {document['why']}"),
        ("outcome", document["outcome"]),
        ("fix", document["fix"]),
        ("issue", None if document["issue"] is None else f"#{document['issue']}"),
    ]
    return [(label, text) for label, text in lines if text]


def as_summary(document: Mapping[str, Any]) -> str:
    """Markdown for $GITHUB_STEP_SUMMARY. Text from outside is shown as code."""
    rows = [(label, f"`{plain(text).replace('`', chr(39))}`") for label, text in as_lines(document)]
    return f"## prime-train monitor: {plain(document['run'])}\n\n{table(('', ''), rows)}\n"


def _jobs(jobs: Sequence[Mapping[str, Any]] | None) -> str:
    if jobs is None:
        return "the queue cannot be read"
    shown = [f"{job['id']} {job['state']}, {job['recoveries']} recoveries" for job in jobs[-3:]]
    return "; ".join(shown) or "none"
