"""Decides which open commands of a person are over, and with which answer. Pure."""

from __future__ import annotations

from prime_train.core.machines import find_machine
from prime_train.events import RequestAnswered
from prime_train.supervise.core.fold_commands import DRAINS
from prime_train.supervise.core.fold_instability import describe_proposal, is_made
from prime_train.supervise.core.state import CPU, Live, OpenCommand, State
from prime_train.supervise.processes.requests import COMMAND_REQUESTED

_LOOK = "look at it with `prime-train status`, then repeat the command"


def find_answer(state: State) -> RequestAnswered | None:
    """The answer to the oldest command that is over."""
    found = (_answer(one, state) for one in state.commands)
    return next((answer for answer in found if answer is not None), None)


def find_unsent_save(state: State, live: Live) -> str | None:
    """The reason of the first request for a checkpoint that the trainer has not got; None without one."""
    if not live.all_started:
        return None
    waiting = (one.accepted for one in state.commands if one.accepted.command == "checkpoint" and not one.is_sent)
    return next((f"asked by {accepted.by}" for accepted in waiting), None)


def _answer(command: OpenCommand, state: State) -> RequestAnswered | None:
    match command.accepted.command:
        case "pause":
            return _answer_pause(command, state)
        case "resume":
            return _answer_resume(command, state)
        case "checkpoint":
            return _answer_checkpoint(command, state)
        case "go_back":
            return _answer_go_back(command, state)
        case "accept":
            return _answer_accept(command, state)
        case "return":
            again = f"; to continue: prime-train resume {state.run}" if state.is_paused else ""
            return _done(command, f"used again from the next attempt on: {', '.join(command.accepted.gpus)}{again}")
        case "drain" | "drain_replica" | "test":
            return _answer_test(command, state)
        case other:  # of another version of prime-train
            return _fail(command, f"the command {other} is not known", "another version of prime-train accepted it")


def _answer_pause(command: OpenCommand, state: State) -> RequestAnswered | None:
    if not state.is_paused:
        why = "a later command, or the end of the run, came before the pause"
        return _fail(command, "the run does not stay paused", why)
    if state.live is not None:
        return None
    if state.attempt is not None and state.attempt.outcome == "finished":
        return _fail(command, "the run has finished", "its last step was reached before the pause")
    reached = state.attempt.last_step if state.attempt is not None else 0
    newest = f"checkpoint of step {state.newest_complete:,}" if state.newest_complete else "no checkpoint"
    return _done(command, f"paused at step {reached:,} with {newest}: {describe_reach(state)} ended, its GPUs are free")


def _answer_resume(command: OpenCommand, state: State) -> RequestAnswered | None:
    attempt = state.attempt
    if attempt is not None and attempt.number > command.attempt:
        return _done(command, f"attempt {attempt.number} is launched from {attempt.describe_origin()}")
    if state.halt is None or not state.halt.launches:
        return _fail(command, "no attempt followed", "the run was stopped, or paused again, before it began")
    return None


def _answer_checkpoint(command: OpenCommand, state: State) -> RequestAnswered | None:
    is_same = state.attempt_number == command.attempt
    if is_same and state.newest_complete > command.accepted.step:
        return _done(command, f"the checkpoint of step {state.newest_complete:,} is complete: {describe_reach(state)}")
    if not is_same or state.live is None:
        what = f"attempt {command.attempt} ended before the checkpoint was complete"
        return _fail(command, what, "only a trainer that trains can save")
    return None


def _answer_go_back(command: OpenCommand, state: State) -> RequestAnswered | None:
    attempt, step = state.attempt, command.accepted.step
    if attempt is not None and attempt.number > command.attempt:
        if attempt.resume_step == step:
            return _done(command, f"attempt {attempt.number} is launched from step {step:,} on every rank")
        return _fail(
            command, f"attempt {attempt.number} starts from {attempt.describe_origin()}", "it could not go back"
        )
    if state.go_back_to != step:
        return _fail(command, f"no attempt started from step {step:,}", "a later command, or a stop, came before it")
    return None


def _answer_accept(command: OpenCommand, state: State) -> RequestAnswered | None:
    found = state.instability
    if found is None or found.number != command.accepted.step or not state.accepted_by:
        why = "it was refused, or a later proposal took its place"
        return _fail(command, f"the change of proposal {command.accepted.step} is not made", why)
    return _done(command, describe_proposal(found)) if is_made(state) else None


def find_unsent_test(state: State) -> OpenCommand | None:
    """The first command whose GPUs are to be tested now: one at a time, and none that the live attempt may use."""
    tests = _list_tests(state)
    if any(one.is_sent for one in tests):
        return None
    busy = _list_busy(state)
    return next((one for one in tests if not busy & {*one.accepted.gpus}), None)


def awaits_test(state: State) -> bool:
    """Whether a GPU that the next attempt may use is still to be tested: both would want its memory and its time."""
    return any(_is_usable(gpu, state) for one in _list_tests(state) for gpu in one.accepted.gpus)


def _list_tests(state: State) -> list[OpenCommand]:
    return [one for one in state.commands if one.accepted.command in (*DRAINS, "test")]


def _is_usable(gpu: str, state: State) -> bool:
    return gpu != CPU and gpu not in state.left_out


def _list_busy(state: State) -> set[str]:
    """The GPUs of open tests that the live attempt may use, also those that it loses at its end."""
    if state.live is None:
        return set()
    own = [one for one in state.commands if one.accepted.command in DRAINS and one.attempt == state.attempt_number]
    drained = {gpu for one in own for gpu in one.accepted.gpus} - {*state.live.freed_gpus}
    asked = {gpu for one in _list_tests(state) for gpu in one.accepted.gpus}
    return drained | {gpu for gpu in asked if _is_usable(gpu, state)}


def _answer_test(command: OpenCommand, state: State) -> RequestAnswered | None:
    accepted = command.accepted
    found = {one.gpu: one for one in state.gpu_tests if one.request_id == accepted.request_id}
    if not command.is_sent or found.keys() != set(accepted.gpus):
        return None
    what = "; ".join(f"{gpu} {'passed' if one.passed else 'FAILED'}: {one.what}" for gpu, one in found.items())
    if accepted.command == "drain":
        what = f"left out since attempt {command.attempt} ended; tested: {what}"
        if any(find_machine(gpu) >= 0 for gpu in accepted.gpus):
            back = f"prime-train gpu return {state.run} {' '.join(accepted.gpus)}"
            what = f"{what}; the run is paused, and goes on after `{back}` and `prime-train resume {state.run}`"
    elif accepted.command == "drain_replica":
        what = f"the replica on it left attempt {command.attempt}; tested: {what}"
    if all(one.passed for one in found.values()):
        return _done(command, what)
    return _fail(command, what, "a GPU that computes or copies wrongly ruins the weights", "have it replaced")


def describe_reach(state: State) -> str:
    """The attempt, and how many ranks a trainer that reports them has: "attempt 2 on 4 ranks"."""
    started = state.started
    is_same = started is not None and started.attempt == state.attempt_number
    ranks = f" on {started.world_size} ranks" if is_same and started and started.world_size > 1 else ""
    return f"attempt {state.attempt_number}{ranks}"


def _done(command: OpenCommand, what: str) -> RequestAnswered:
    return RequestAnswered(command.accepted.request_id, COMMAND_REQUESTED, "done", what)


def _fail(command: OpenCommand, what: str, why: str, fix: str = _LOOK) -> RequestAnswered:
    return RequestAnswered(command.accepted.request_id, COMMAND_REQUESTED, "failed", what, why, fix)
