"""Keeps the history of the monitor in the body of an issue of the user's repository. Pure: texts in, texts out.

The history lives outside the workflow, because a runner keeps no files. It is in an issue rather than in a repository
variable, because the workflow's own token may write issues and may not write variables, and people see an issue.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeGuard

from prime_train.away.monitor.decide import BegunResume, Decision, Poll, PollHistory
from prime_train.views.text import date, plain, table

VERSION = 1
LABEL = "prime-train-monitor"
_MARK = "prime-train-monitor"
_HIDDEN = re.compile(rf"<!-- {_MARK} (\{{.*?\}}) -->", re.DOTALL)
_MOST_POLLS = 100
_MOST_RESUMES = 100
_SHOWN_POLLS = 8
_MOST_TEXT = 60_000  # GitHub accepts 65,536 characters
_MOST_WHY = 500
_MOST = 10**15


def title_of(name: str) -> str:
    return f"Training {name}"


def write_body(name: str, decision: Decision, history: PollHistory) -> str:
    """The body of the issue: the decision and the last polls for people, the history as hidden JSON."""
    polls, resumes = history.polls[-_MOST_POLLS:], history.resumes[-_MOST_RESUMES:]
    rows = [
        (date(poll.at_s), poll.verdict, _shown(poll.step), _shown(poll.job), str(poll.recoveries))
        for poll in polls[-_SHOWN_POLLS:]
    ]
    document = {
        "version": VERSION,
        "polls": [poll._asdict() for poll in polls],
        "resumes": [resume._asdict() for resume in resumes],
        "gave_up": history.gave_up and history.gave_up[:_MOST_WHY],
    }
    parts = [
        f"`prime-train monitor` watches the run `{_code(name)}` and keeps what it knows in this issue.",
        f"**{decision.action}**: {_quiet(decision.why)}"
        + (f"\n\nWhat to do: {_quiet(decision.fix)}" if decision.fix else ""),
        table(("poll", "verdict", "step", "job", "recoveries"), rows),
        "Closing this issue makes the monitor begin anew: it forgets earlier resumes.",
    ]
    hidden = _hide(document)
    shown = "\n\n".join(parts)[: _MOST_TEXT - len(hidden) - 2]
    return f"{shown}\n\n{hidden}"


def write_comment(words: str, why: str) -> str:
    """The text of a comment. `why` may come from outside."""
    return f"{words} {_quiet(why)}"[:_MOST_TEXT]


def read_history(body: str) -> PollHistory:
    """The history in the body of an issue; an empty one if it holds none, or was edited into something else."""
    document = _reveal(body)
    if document is None:
        return PollHistory()
    polls = [poll for row in _rows(document.get("polls"), _MOST_POLLS) if (poll := _read_poll(row)) is not None]
    resumes = [one for row in _rows(document.get("resumes"), _MOST_RESUMES) if (one := _read_resume(row)) is not None]
    gave_up = document.get("gave_up")
    return PollHistory(
        tuple(sorted(polls, key=lambda poll: poll.at_s)),
        tuple(sorted(resumes, key=lambda resume: resume.number)),
        gave_up[:_MOST_WHY] if isinstance(gave_up, str) else None,
    )


def _hide(document: dict[str, Any]) -> str:
    """JSON inside an HTML comment. No two hyphens follow each other, because they would end the comment."""
    text = json.dumps(document).replace("--", r"-\u002d")
    return f"<!-- {_MARK} {text} -->"


def _reveal(body: str) -> dict[str, Any] | None:
    found = _HIDDEN.findall(body[:_MOST_TEXT])
    if len(found) != 1:  # a text with two was not written by the monitor
        return None
    try:
        document = json.loads(found[0])
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) and document.get("version") == VERSION else None


def _rows(listed: Any, most: int) -> list[dict[str, Any]]:
    return [row for row in listed[-most:] if isinstance(row, dict)] if isinstance(listed, list) else []


def _read_poll(row: dict[str, Any]) -> Poll | None:
    at_s, verdict, recoveries = row.get("at_s"), row.get("verdict"), _whole(row.get("recoveries"))
    if not _is_time(at_s) or not isinstance(verdict, str) or recoveries is None:
        return None
    return Poll(float(at_s), verdict[:20], _whole(row.get("step")), _whole(row.get("job")), recoveries)


def _read_resume(row: dict[str, Any]) -> BegunResume | None:
    number, at_s, step = _whole(row.get("number")), row.get("at_s"), _whole(row.get("step"))
    if number is None or not _is_time(at_s) or step is None:
        return None
    return BegunResume(number, float(at_s), step)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


def _is_time(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < _MOST


def _shown(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _code(words: str) -> str:
    return plain(words).replace("`", "'").replace("<!--", "<!- -")


def _quiet(words: str) -> str:
    """Text from outside on one line, as code: it mentions no user, links nothing and opens no comment."""
    return f"`{_code(words)}`"
