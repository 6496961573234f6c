"""Renders a diagnosis: at most five lines for the cause, later failures in brief, and the JSON document. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prime_train.core.errors import UserError
from prime_train.core.units import counted
from prime_train.diagnose.cause import Cause, Diagnosis
from prime_train.events import AttemptEnded
from prime_train.views.text import Paint, pick, sanitize

_LONGEST = 200
_MOST_FOLLOWING = 4
_MOST_ENDS = 8
_MOST_EARLIER = 3  # failed attempts before the newest one, which are shown


def text(diagnosis: Diagnosis, logs: int, paint: Paint, before: Sequence[AttemptEnded] = ()) -> str:
    """The text of `diagnose`: the cause, the failures that followed it, and what slows the run down.

    `before`: the failed attempts of the run before its newest one.
    """
    lines = _cause(diagnosis.cause, paint) if diagnosis.cause else _no_cause(diagnosis, logs, paint)
    if diagnosis.unordered:
        others = ", ".join(f"{seen.id} {seen.file}:{seen.line}" for seen in diagnosis.unordered[:_MOST_FOLLOWING])
        why = "the files have the same time, so the first of them is not known"
        lines.append(paint(f"or     {sanitize(others)}: {why}", "dim"))
    if diagnosis.cascade:
        more = len(diagnosis.cascade) - _MOST_FOLLOWING
        brief = ", ".join(f"{seen.id} {seen.file}:{seen.line}" for seen in diagnosis.cascade[:_MOST_FOLLOWING])
        lines.append(paint(f"then   {sanitize(brief)}" + (f" and {more} more" if more > 0 else ""), "dim"))
    lines += [f"note[{seen.id}] {sanitize(f'{seen.file}:{seen.line}')}  {seen.what}" for seen in diagnosis.notices]
    if before:
        lines.append(f"before that, {counted(len(before), 'attempt')} failed")
    for ended in before[-_MOST_EARLIER:]:
        lines += [f"  {line}" for line in attempt_lines(ended, paint)]
    return "\n".join(lines)


def _no_cause(diagnosis: Diagnosis, logs: int, paint: Paint) -> list[str]:
    """That no failure was found; or where each log ends that does not report its work as completed."""
    if diagnosis.is_healthy:
        return [f"no failure found in {counted(logs, 'log')}"]
    lines = [f"no known failure in {counted(logs, 'log')}, and no report that the work was completed"]
    for end in diagnosis.ends[:_MOST_ENDS]:
        last = f"{end.file}:{end.line}  {end.text}" if end.text else f"{end.file}  it is empty"
        lines.append(f"  {paint('ends', 'dim')}  {_short(last)}")
    more = len(diagnosis.ends) - _MOST_ENDS
    return lines + ([f"  and {more} more"] if more > 0 else [])


def _cause(cause: Cause, paint: Paint) -> list[str]:
    """Five lines. The log line comes first because users search for it."""
    raised = f"  ({cause.raised[1]})" if len(cause.raised) > 1 else ""
    return [
        f"{paint(f'cause[{cause.id}]', 'red')} {_short(f'{cause.file}:{cause.line}')}  {cause.cause_class}",
        f"  {paint('line', 'dim')}  {_short(cause.text, raised)}",
        f"  {paint('what', 'dim')}  {_short(cause.what)}",
        f"  {paint('why ', 'dim')}  {_short(cause.why)}",
        f"  {paint('fix ', 'dim')}  {_short(cause.fix)}",
    ]


def attempt_lines(ended: AttemptEnded, paint: Paint, then: str = "") -> list[str]:
    """Why an attempt failed, in at most five lines; empty parts are left out. `then`: what the supervisor does next."""
    known = f"[{ended.cause_id}]" if ended.cause_id else ""
    where = f"  {_short(ended.where)}" if ended.where else ""
    lines = [f"{paint(f'attempt {ended.attempt} {ended.outcome}{known}', 'red')}  {ended.cause_class}{where}"]
    parts = (("what", ended.what), ("why ", ended.why), ("fix ", ended.fix), ("then", then))
    return lines + [f"  {paint(name, 'dim')}  {_short(part)}" for name, part in parts if part.strip()]


def _short(part: str, end: str = "") -> str:
    line = " ".join(sanitize(part).split())
    return (line if len(line) <= _LONGEST else line[: _LONGEST - 3] + "...") + sanitize(end)


def as_json(
    diagnosis: Diagnosis, logs: Sequence[str], unread: Sequence[UserError], attempts: Sequence[AttemptEnded] = ()
) -> dict[str, Any]:
    """The document of `diagnose --json`. `attempts`: those of a run that have ended."""
    cause = diagnosis.cause
    return {
        "version": 1,
        "cause": None if cause is None else _cause_json(cause),
        "cascade": [seen._asdict() for seen in diagnosis.cascade],
        "notices": [seen._asdict() for seen in diagnosis.notices],
        "unordered": [seen._asdict() for seen in diagnosis.unordered],
        "ends": [end._asdict() for end in diagnosis.ends],
        "healthy": diagnosis.is_healthy and not unread,
        "attempts": [attempt_document(ended) for ended in attempts],
        "logs": list(logs),
        "unread": [{"file": error.where, **pick(error, "what", "why", "fix")} for error in unread],
    }


def attempt_document(ended: AttemptEnded) -> dict[str, Any]:
    """How an attempt ended, and why, for `diagnose --json` and `logs --json`."""
    return {"class": ended.cause_class, **pick(ended, "attempt", "outcome", "cause_id", "what", "why", "fix", "where")}


def _cause_json(cause: Cause) -> dict[str, Any]:
    return {
        "id": cause.id,
        "class": cause.cause_class,
        **pick(cause, "file", "line", "text", "what", "why", "fix", "retry"),
        "traceback": list(cause.raised),
    }
