"""Folds the commands of a person into the State: accepted ones, their answers, and attempts that end for one. Pure."""

from __future__ import annotations

from prime_train.core.machines import find_machine
from prime_train.events import CommandAccepted, RequestAnswered
from prime_train.supervise.core.state import POLICY, Halt, OpenCommand, State, evolve

# By the second one a replica leaves its GPU while the others train on, so no attempt ends.
DRAINS = ("drain", "drain_replica")
COMMANDS_KEPT = 64  # a supervisor that runs refuses more, so only forged events have them


def accept(state: State, event: CommandAccepted, time_s: float) -> State:
    opened = OpenCommand(event, state.attempt_number)
    state = evolve(state, commands=(*state.commands, opened)[-COMMANDS_KEPT:])
    if event.command in DRAINS and event.by == POLICY:
        state = evolve(state, drained_s=time_s)
    match event.command:
        # Of two commands that end the attempt, the later one counts. No attempt goes on without a machine.
        case "pause" | "drain" if event.command == "pause" or any(find_machine(one) >= 0 for one in event.gpus):
            return _halt(evolve(state, go_back_to=0), event, Halt(event.by, time_s))
        case "resume" if state.halt is not None:
            # A trainer that is still saving ends first: two attempts of a run never live at once.
            state = evolve(state, halt=evolve(state.halt, launches=True))
            return evolve(state, state="starting") if state.live is None else state
        case "drain" if state.live is not None and state.halt is None:
            return _halt(state, event, Halt(event.by, time_s, launches=True))
        case "go_back":
            return _halt(evolve(state, go_back_to=event.step), event, Halt(event.by, time_s, launches=True))
        case _:
            return state


def answer(state: State, event: RequestAnswered, time_s: float) -> State:
    """The command is over, unless the answer is only that it was accepted."""
    about = next((one.accepted for one in state.commands if one.accepted.request_id == event.request_id), None)
    if about is None or event.outcome == "accepted":
        return state
    state = evolve(state, commands=tuple(one for one in state.commands if one.accepted is not about))
    if about.command == "go_back" and event.outcome == "failed" and state.go_back_to == about.step:
        # No attempt starts from another step than the one that a person named.
        return end_attempt(evolve(state, go_back_to=0, halt=Halt(about.by, time_s)))
    return state


def mark_sent(state: State) -> State:
    """The trainer was asked for a checkpoint."""
    asked = tuple(evolve(one, is_sent=True) if one.accepted.command == "checkpoint" else one for one in state.commands)
    return evolve(state, commands=asked)


def mark_test(state: State, request_id: str) -> State:
    """The test of this command was begun."""
    begun = tuple(evolve(one, is_sent=True) if one.accepted.request_id == request_id else one for one in state.commands)
    return evolve(state, commands=begun)


def _halt(state: State, event: CommandAccepted, halt: Halt) -> State:
    """Ends the live attempt as a stop does. A stop of the run that is requested already stays one."""
    if state.stop_requested_s is not None and state.halt is None:
        return state
    state = evolve(state, halt=halt)
    if state.live is None:
        return end_attempt(state)
    if state.stop_requested_s is not None:  # it ends already
        return state
    by = f"{event.command.replace('_', ' ')} by {event.by}"
    return evolve(state, stop_requested_s=halt.since_s, stop_by=by, stop_saves=True)


def end_attempt(state: State) -> State:
    """After the end of an attempt: where it ended for a command, the run is not to stop."""
    if state.halt is None:
        return state
    state = evolve(state, stop_requested_s=None, stop_by="", stop_saves=True, stop_at_once=False)
    return evolve(state, state="paused" if state.is_paused else "starting")
