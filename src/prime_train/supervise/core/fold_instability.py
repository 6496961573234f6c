"""Folds an instability and the answers to it into the State, and finds the request that its change needs next. Pure.

A change that is accepted has up to two requests, which the answers of the run check like a person's: first the
run goes back, then its rate is lowered. A plan that is older than the way back would be dropped with it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from prime_train.events import CommandAccepted, InstabilityFound, RequestAnswered
from prime_train.supervise.core.state import POLICY, State, evolve
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, SETTINGS_REQUESTED, Request


def find(state: State, event: InstabilityFound) -> State:
    by, is_open = (POLICY, False) if event.auto else ("", bool(event.values or event.go_back_to))
    made = state.policy_changes + event.auto
    return evolve(state, instability=event, is_proposed=is_open, accepted_by=by, policy_changes=made)


def accept(state: State, event: CommandAccepted) -> State:
    if event.command == "go_back":  # a person has chosen another way
        return evolve(state, is_proposed=False) if state.is_proposed else state
    found = state.instability
    if event.command != "accept" or found is None or found.number != event.step:
        return state
    return evolve(state, is_proposed=False, accepted_by=event.by)


def answer(state: State, event: RequestAnswered) -> State:
    """A refused request ends its change."""
    found = state.instability
    is_own = found is not None and event.request_id in (_name(found, "back"), _name(found, "rate"))
    return evolve(state, accepted_by="") if is_own and event.outcome in ("refused", "failed") else state


def find_request(state: State) -> Request | None:
    """The next request for the change that is being made; None without one, or while the run goes back."""
    found = state.instability
    if found is None or not state.accepted_by:
        return None
    why = f"instability {found.number}: {found.what}"[:200]
    about = {"by": state.accepted_by, "why": why}
    if found.go_back_to and _name(found, "back") not in state.answered:
        body = {"command": "go_back", "step": found.go_back_to} | about
        return Request(COMMAND_REQUESTED, _name(found, "back"), body)
    is_back = not found.go_back_to or state.live is None or state.attempt_number > found.attempt
    if found.values and is_back and _name(found, "rate") not in state.answered:
        body = {"values": parse_texts(found.values), "expected": state.settings_version} | about
        return Request(SETTINGS_REQUESTED, _name(found, "rate"), body)
    return None


def is_made(state: State) -> bool:
    """Whether every request for the accepted change is answered."""
    found = state.instability
    last = found and _name(found, "rate" if found.values else "back")
    return bool(state.accepted_by) and last in state.answered


def describe_proposal(found: InstabilityFound) -> str:
    """ "go back to step 100, then optim.lr = 0.0001"; "" without a change."""
    back = [f"go back to step {found.go_back_to:,}"] if found.go_back_to else []
    return ", then ".join([*back, *([", ".join(found.values)] if found.values else [])])


def _name(found: InstabilityFound, part: str) -> str:
    return f"instability-{found.number}-{part}"


def parse_texts(texts: tuple[str, ...]) -> dict[str, Any]:
    """ "optim.lr = 0.0001" as key and value."""
    found: dict[str, Any] = {}
    for key, _, value in (text.partition(" = ") for text in texts):
        with suppress(ValueError):  # a line that another program wrote
            found[key] = json.loads(value)
    return found
