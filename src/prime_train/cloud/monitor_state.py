"""Keeps the history of the monitor in an issue of the user's repository. Pure: texts in, texts out.

The history lives outside the workflow, because artifacts and caches of two runs race, and in an issue rather than in a
repository variable, for three reasons: the workflow's own token may write issues and may not write variables, people
see an issue, and comments have an order that the server gives. The body holds the polls: the last writer wins, and a
lost poll only delays a decision. Claims are comments, so that of two polls only one can be first.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

from prime_train.cloud.monitor import Claim, Decision, History, Outcome, Poll
from prime_train.views.text import date, plain, table

VERSION = 1
LABEL = "prime-train-monitor"
_MARK = "prime-train-monitor"
_HIDDEN = re.compile(rf"<!-- {_MARK} (\{{.*?\}}) -->", re.DOTALL)
_MOST_POLLS = 100
_SHOWN_POLLS = 8
_MOST_TEXT = 60_000  # GitHub accepts 65,536 characters
_MOST = 10**15

Kind = Literal["claim", "gave-up"]


class Comment(NamedTuple):
    """A comment of the monitor. `id` is GitHub's, in the order of creation; `holder` names the poll that wrote it."""

    id: int
    kind: Kind
    number: int
    at_s: float
    step: int
    outcome: Outcome
    holder: str
    why: str


class Note(NamedTuple):
    """What a comment holds, before GitHub gives it an id."""

    kind: Kind
    number: int
    at_s: float
    step: int
    outcome: Outcome
    holder: str
    why: str


def title_of(name: str) -> str:
    """The title of the issue of a run."""
    return f"Training {name}"


def write_body(name: str, decision: Decision, polls: tuple[Poll, ...]) -> str:
    """The body of the issue: the decision and the last polls for people, all kept polls as hidden JSON."""
    kept = polls[-_MOST_POLLS:]
    rows = [
        (date(poll.at_s), poll.verdict, _shown(poll.step), _shown(poll.job), str(poll.recoveries))
        for poll in kept[-_SHOWN_POLLS:]
    ]
    parts = [
        f"`prime-train monitor` watches the run `{_code(name)}` and keeps what it knows in this issue.",
        f"**{decision.action}**: {_quiet(decision.why)}"
        + (f"\n\nWhat to do: {_quiet(decision.fix)}" if decision.fix else ""),
        table(("poll", "verdict", "step", "job", "recoveries"), rows),
        "Closing this issue makes the monitor begin anew: it forgets earlier resumes.",
        _hide({"version": VERSION, "polls": [poll._asdict() for poll in kept]}),
    ]
    return "\n\n".join(parts)[:_MOST_TEXT]


def read_polls(body: str) -> tuple[Poll, ...]:
    """The polls in the body of an issue; none if it holds none, or was edited into something else."""
    document = _reveal(body)
    listed = document.get("polls") if document else None
    if not isinstance(listed, list):
        return ()
    polls = [_read_poll(row) for row in listed[-_MOST_POLLS:] if isinstance(row, dict)]
    return tuple(sorted((poll for poll in polls if poll is not None), key=lambda poll: poll.at_s))


def write_comment(note: Note) -> str:
    """The text of a comment: a sentence for people, the values as hidden JSON."""
    if note.kind == "gave-up":
        words = f"The monitor gave up: {_quiet(note.why)}"
    else:
        words = f"Resume {note.number} from step {note.step:,}: **{note.outcome}**. {_quiet(note.why)}"
    return f"{words}\n\n{_hide({'version': VERSION, **note._asdict()})}"


def read_comment(comment_id: int, body: str) -> Comment | None:
    """The comment in a text; None if the monitor did not write it."""
    found = _reveal(body)
    if not found or found.get("kind") not in get_args(Kind) or found.get("outcome") not in get_args(Outcome):
        return None
    number, step = _whole(found.get("number")), _whole(found.get("step"))
    at_s, holder, why = found.get("at_s"), found.get("holder"), found.get("why")
    if number is None or step is None or not _is_time(at_s) or not isinstance(holder, str) or not isinstance(why, str):
        return None
    return Comment(comment_id, found["kind"], number, float(at_s), step, found["outcome"], holder, why)


def winners(comments: tuple[Comment, ...]) -> tuple[Comment, ...]:
    """The claim that counts for each number, oldest first: the one with the lowest id."""
    first: dict[int, Comment] = {}
    for comment in sorted((one for one in comments if one.kind == "claim"), key=lambda one: one.id):
        first.setdefault(comment.number, comment)
    return tuple(first[number] for number in sorted(first))


def read_history(body: str, comments: tuple[Comment, ...]) -> History:
    """The history in an issue."""
    claims = tuple(Claim(one.number, one.at_s, one.step, one.outcome) for one in winners(comments))
    gave_up = next((one.why for one in comments if one.kind == "gave-up"), None)
    return History(read_polls(body), claims, gave_up)


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


def _read_poll(row: dict[str, Any]) -> Poll | None:
    at_s, verdict, recoveries = row.get("at_s"), row.get("verdict"), _whole(row.get("recoveries"))
    if not _is_time(at_s) or not isinstance(verdict, str) or recoveries is None:
        return None
    return Poll(float(at_s), verdict[:20], _whole(row.get("step")), _whole(row.get("job")), recoveries)


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
