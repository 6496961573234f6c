"""Says of which events someone is told who does not look at the console, and in which words. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from prime_train.events import AlarmRaised, AttemptEnded, Event, HangFound, RunClosed
from prime_train.supervise.state import State


class Alert(NamedTuple):
    """`about` is what it is known by: the same thing is not told again and again. `at_once`: whatever came before."""

    about: str
    document: dict[str, Any]
    at_once: bool = False


def alert(state: State, event: Event, run_path: Path) -> Alert | None:
    """What is told of an event; None of most. `state` as it is after it."""
    match event:
        case AlarmRaised(answer=answer) as alarm if answer != "note":
            about = f"{alarm.watch}: {alarm.name} {alarm.subject}".strip()
            words = {"what": alarm.what, "why": alarm.why, "fix": alarm.fix, "where": alarm.where}
            return _alert(state, run_path, about, words | {"watch": alarm.watch, "name": alarm.name, "answer": answer})
        case HangFound() as hang:
            what = f"no sign of life for {hang.silent_s:.0f} s in phase {hang.phase}"
            return _alert(state, run_path, "hang", {"what": what, "why": hang.activity, "watch": "hang"})
        case AttemptEnded(outcome="failed") as ended:
            words = {"what": ended.what, "why": ended.why, "fix": ended.fix, "where": ended.where}
            return _alert(state, run_path, f"attempt failed: {ended.what}", words | {"cause": ended.cause_class})
        case RunClosed(state=end) as closed:
            told = {"what": f"{end}: {closed.reason}", "exit_code": closed.exit_code}
            return _alert(state, run_path, f"run {end}", told)._replace(at_once=True)
        case _:
            return None


def _alert(state: State, run_path: Path, about: str, words: dict[str, Any]) -> Alert:
    name = state.run or run_path.name
    known = {"run": name, "directory": str(run_path), "attempt": state.attempt_number, "step": state.step}
    text = f"{name}, step {state.step:,}: {words['what']}"
    return Alert(about, known | words | {"text": text, "look": f"prime-train status {run_path}"})
