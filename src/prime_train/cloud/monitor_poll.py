"""One poll of the monitor, as a series of steps that its driver carries out. No I/O, no clock of its own.

The steps are values, so tests can interleave any number of polls at every step, and end one anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from prime_train.cloud import monitor_state as state
from prime_train.cloud.monitor import (
    Decision,
    History,
    Job,
    Limits,
    Outcome,
    Reading,
    decide,
    find_best_step,
    record,
)
from prime_train.cloud.monitor_inputs import RunStatus
from prime_train.cloud.monitor_state import Comment, Note

_PAGE = 100
_MOST_PAGES = 30
_LATEST_LAUNCH_S = 600.0  # after its claim, a poll that was suspended must not launch any more


class Ask(NamedTuple):
    """A request to GitHub, below /repos/OWNER/NAME. Its reply is the parsed JSON, None for a deleted comment."""

    method: str
    path: str
    body: dict[str, Any] | None = None


class ReadStatus(NamedTuple):
    """The reply is a RunStatus."""


class ReadQueue(NamedTuple):
    """The reply is a tuple of Job, or None if the queue cannot be read."""


class Settle(NamedTuple):
    """A pause until every replica of GitHub's database has what was written. No reply."""


class Launch(NamedTuple):
    """Start the run again. The reply is "" or the reason why it did not start."""

    number: int


class Cancel(NamedTuple):
    """Cancel a managed job. The reply is "" or the reason why it was not cancelled."""

    job: int


Step = Ask | ReadStatus | ReadQueue | Settle | Launch | Cancel


class Setting(NamedTuple):
    """What a poll is about. `holder` names this poll; `author` is the login of the token, the only writer it believes.

    `dry_run` decides and changes nothing.
    """

    name: str
    holder: str
    author: str
    limits: Limits = Limits()
    dry_run: bool = False


class Result(NamedTuple):
    """The decision of a poll, what it read, and what came of it. `issue` is None if there is none."""

    decision: Decision
    reading: Reading
    issue: int | None
    outcome: str


class _Issue(NamedTuple):
    number: int
    body: str
    comments: tuple[Comment, ...]


Poll = Generator[Step, Any, Result]


def poll(setting: Setting, clock: Callable[[], float]) -> Poll:
    """One poll. Raises what the driver throws into it where a step cannot be carried out.

    The number of a claim follows from the same comments as the decision. So two polls that decide from the same history
    claim the same number, and one that sees a claim waits for it.
    """
    status: RunStatus = yield ReadStatus()
    jobs: tuple[Job, ...] | None = yield ReadQueue()
    reading = Reading(clock(), status.verdict, status.why, status.resumable, status.step, jobs)
    issue = yield from _read_issue(setting)
    if issue is None and not setting.dry_run:
        issue = yield from _open_issue(setting)
    history = state.read_history(issue.body, issue.comments) if issue else History()
    decision = decide(reading, history, setting.limits)
    if issue is None or setting.dry_run:
        return Result(decision, reading, issue.number if issue else None, "nothing was changed")
    outcome = ""
    if decision.action == "resume":
        number = max((comment.number for comment in issue.comments), default=0) + 1
        step = find_best_step(history, reading)
        claim = Note("claim", number, clock(), step, "pending", setting.holder, decision.why)
        outcome = yield from _resume(setting, issue, claim, clock)
    elif decision.action == "give-up":
        outcome = yield from _give_up(setting, issue, decision, clock())
    body = state.write_body(setting.name, decision, (*history.polls, record(reading)))
    yield Ask("PATCH", f"/issues/{issue.number}", {"body": body, **({"state": "closed"} if decision.closes else {})})
    return Result(decision, reading, issue.number, outcome)


def _resume(setting: Setting, issue: _Issue, claim: Note, clock: Callable[[], float]) -> Generator[Step, Any, str]:
    """Claim, look again, launch. Returns what came of it."""
    mine = yield from _post(issue.number, claim)
    yield Settle()
    comments = yield from _read_comments(setting, issue.number)
    first = next((one for one in state.winners(comments) if one.number == claim.number), None)
    if first is None or first.id != mine:
        yield Ask("DELETE", f"/issues/comments/{mine}")
        return "another poll makes this resume"
    jobs: tuple[Job, ...] | None = yield ReadQueue()
    if jobs is None or any(job.is_live for job in jobs):
        why = "the queue cannot be read" if jobs is None else "a managed job of this run is live"
        yield from _resolve(mine, claim, "dropped", why)
        return f"not resumed: {why}"
    if clock() > claim.at_s + _LATEST_LAUNCH_S:
        yield from _resolve(mine, claim, "dropped", "the poll was suspended after its claim")
        return "not resumed: the poll was suspended after its claim"
    failed: str = yield Launch(claim.number)
    yield from _resolve(mine, claim, "failed" if failed else "started", failed or claim.why)
    return f"resume {claim.number} failed: {failed}" if failed else f"resume {claim.number} started"


def _give_up(setting: Setting, issue: _Issue, decision: Decision, now_s: float) -> Generator[Step, Any, str]:
    note = Note("gave-up", 0, now_s, 0, "dropped", setting.holder, decision.why)
    yield from _post(issue.number, note)
    if decision.cancel is None:
        return "given up"
    failed: str = yield Cancel(decision.cancel)
    return f"given up; job {decision.cancel} " + (f"could not be cancelled: {failed}" if failed else "was cancelled")


def _post(issue: int, note: Note) -> Generator[Step, Any, int]:
    created: dict[str, Any] = yield Ask("POST", f"/issues/{issue}/comments", {"body": state.write_comment(note)})
    return int(created["id"])


def _resolve(comment: int, claim: Note, outcome: Outcome, why: str) -> Generator[Step, Any, None]:
    note = claim._replace(outcome=outcome, why=why)
    yield Ask("PATCH", f"/issues/comments/{comment}", {"body": state.write_comment(note)})


def _read_issue(setting: Setting) -> Generator[Step, Any, _Issue | None]:
    """The open issue of the run: of several, the oldest one, which every poll chooses. None if there is none."""
    query = f"/issues?state=open&labels={state.LABEL}&sort=created&direction=asc&per_page={_PAGE}"
    listed: list[dict[str, Any]] = yield Ask("GET", query)
    title = state.title_of(setting.name)
    mine = [one for one in listed if one.get("title") == title and _author(one) == setting.author]
    if not mine:
        return None
    oldest = min(mine, key=lambda one: int(one["number"]))
    number = int(oldest["number"])
    comments = yield from _read_comments(setting, number)
    return _Issue(number, str(oldest.get("body") or ""), comments)


def _read_comments(setting: Setting, issue: int) -> Generator[Step, Any, tuple[Comment, ...]]:
    """The comments of the monitor. Anyone may comment in a public repository, so other authors are not believed."""
    found: list[Comment] = []
    for page in range(1, _MOST_PAGES + 1):
        listed: list[dict[str, Any]] = yield Ask("GET", f"/issues/{issue}/comments?per_page={_PAGE}&page={page}")
        for one in listed:
            comment = state.read_comment(int(one["id"]), str(one.get("body") or ""))
            if comment is not None and _author(one) == setting.author:
                found.append(comment)
        if len(listed) < _PAGE:
            break
    return tuple(found)


def _open_issue(setting: Setting) -> Generator[Step, Any, _Issue]:
    """A new issue. If another poll opened one at the same time, the oldest of them; the other one is closed."""
    body = state.write_body(setting.name, Decision("wait", "the first poll"), ())
    new = {"title": state.title_of(setting.name), "body": body, "labels": [state.LABEL]}
    created: dict[str, Any] = yield Ask("POST", "/issues", new)
    mine = int(created["number"])
    yield Settle()
    found = yield from _read_issue(setting)
    if found is None or found.number == mine:
        return found or _Issue(mine, body, ())
    yield Ask("PATCH", f"/issues/{mine}", {"state": "closed", "state_reason": "not_planned"})
    return found


def _author(document: dict[str, Any]) -> str:
    user = document.get("user")
    return str(user.get("login")) if isinstance(user, dict) else ""
