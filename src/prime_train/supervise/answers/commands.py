"""Checks a person's command, and returns its events: accepted, or refused with the way. Sets pins, and does no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prime_train.checkpoints import pins
from prime_train.core.drained_gpus import write_drained
from prime_train.core.errors import UserError, explain_disk_error
from prime_train.core.machines import find_machine
from prime_train.events import CheckpointPinned, CommandAccepted, Event, GpuLeftOut, GpuReturned, RequestAnswered
from prime_train.events.bounds import MOST_STEPS
from prime_train.supervise.answers import machine_commands
from prime_train.supervise.answers.command_scene import CommandRefusal, CommandScene
from prime_train.supervise.core.command_answers import describe_reach
from prime_train.supervise.core.fold_instability import describe_proposal
from prime_train.supervise.core.state import CPU
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, Request

_MOST_OPEN = 16  # at once
_MOST_GPUS = 64  # of one machine
_LONGEST_TEXT = 200
_PINS = ("pin", "unpin")


class _AlreadyDone(Exception):
    """Nothing is left to do."""


def answer_command(request: Request, scene: CommandScene) -> Iterator[Event]:
    """CommandAccepted with the answer "accepted"; or an answer alone: "done" where nothing is left to do, "refused"."""
    name, state = request.body.get("command"), scene.state
    try:
        if name in _PINS:
            _refuse_bad_text(request.body)
            yield from _pin(request, scene)
            return
        check = _CHECKS.get(name) if isinstance(name, str) else None
        if check is None:
            what = f"there is no command {_short(name)}"
            raise CommandRefusal(
                what, "the body of the request names none of those", f"one of {', '.join((*_CHECKS, *_PINS))}"
            )
        _refuse_bad_text(request.body)
        if len(state.commands) >= _MOST_OPEN:
            what = f"{len(state.commands)} commands are not done yet"
            raise CommandRefusal(what, "each waits for the trainer", "wait for their answers, then repeat the command")
        if state.stop_requested_s is not None and state.halt is None:
            what, why = "the run is being stopped", f"{state.stop_by} requested it, and a stop is not taken back"
            raise CommandRefusal(what, why, "start it again with the command that started it, when it has ended")
        accepted, what = check(request, scene)
    except CommandRefusal as refusal:
        about = (refusal.what, refusal.why, refusal.fix, str(scene.run_dir.path))
        yield RequestAnswered(request.id, COMMAND_REQUESTED, "refused", *about)
    except UserError as error:
        about = (error.what, error.why, error.fix, error.where)
        yield RequestAnswered(request.id, COMMAND_REQUESTED, "refused", *about)
    except _AlreadyDone as done:
        yield RequestAnswered(request.id, COMMAND_REQUESTED, "done", str(done))
    else:
        yield accepted
        match accepted.command:
            case "drain" | "drain_replica":
                yield from (GpuLeftOut(gpu, f"drained by {accepted.by}") for gpu in accepted.gpus)
            case "return":
                yield from (GpuReturned(gpu, f"by {accepted.by}") for gpu in accepted.gpus)
        yield RequestAnswered(request.id, COMMAND_REQUESTED, "accepted", what)


def _refuse_bad_text(body: Any) -> None:
    for key in ("by", "why"):
        text = body.get(key, "")
        if not isinstance(text, str) or not (text.isprintable() and len(text) <= _LONGEST_TEXT):
            what = f"{key} is not a printable text of at most {_LONGEST_TEXT} characters"
            raise CommandRefusal(what, "it is shown in the status and the report of the run", f"give a shorter {key}")


def _accept(request: Request, command: str, step: int = 0, gpus: tuple[str, ...] = ()) -> CommandAccepted:
    body = request.body
    return CommandAccepted(request.id, command, body.get("by", "") or "not known", step, body.get("why", ""), gpus)


def _short(value: object) -> str:
    return repr(value)[:80]


_Accepted = tuple[CommandAccepted, str]


def _check_pause(request: Request, scene: CommandScene) -> _Accepted:
    state = scene.state
    if state.halt is not None and state.is_paused:
        is_over = "paused" if state.live is None else "about to pause"
        raise _AlreadyDone(f"the run is {is_over} already, by {state.halt.by}")
    if not (state.live is not None and state.live.serves_only):
        _refuse_unknown_checkpoints(scene, "the run cannot pause")
    begun = "saves at its next step and ends" if scene.program.saves_by_file else "is asked to save, and ends"
    what = f"{describe_reach(state)} {begun}" if state.live is not None else "no attempt is live; none is launched"
    return _accept(request, "pause"), what


def _refuse_unknown_checkpoints(scene: CommandScene, what: str) -> None:
    if not scene.program.knows_checkpoints(scene.run, scene.run_dir):
        why = "where its trainer saves is not known, so nothing shows from which step it would go on"
        fix = (
            "name the folder in command.checkpoints; a script that calls live.checkpoint() is known after its first one"
        )
        raise CommandRefusal(what, why, fix)


def _check_resume(request: Request, scene: CommandScene) -> _Accepted:
    state = scene.state
    if state.halt is None:
        what = f"the run is not paused: its state is {state.state}"
        raise CommandRefusal(what, "only a paused run is resumed", f"prime-train status {scene.name}")
    if not state.is_paused:
        raise _AlreadyDone("the next attempt is about to be launched already")
    machine_commands.refuse_without_machines(scene)
    after = "when the present one has ended" if state.live is not None else "from the newest complete checkpoint"
    return _accept(request, "resume"), f"attempt {state.attempt_number + 1} is launched {after}"


def _check_checkpoint(request: Request, scene: CommandScene) -> _Accepted:
    state, live = scene.state, scene.state.live
    if live is None or state.stop_requested_s is not None:
        newest = f"the newest is that of step {state.newest_complete:,}" if state.newest_complete else "there is none"
        what = f"no trainer trains: the state is {state.state}"
        raise CommandRefusal(
            what, f"a checkpoint is of a trainer's weights; {newest}", f"prime-train status {scene.name}"
        )
    if live.serves_only:
        raise CommandRefusal("a server has no checkpoint", "its weights do not change", "nothing is to be done")
    if not (scene.program.saves_by_file or live.saves):
        what = f"{scene.program.title} does not save on request"
        why = "it saves at its own intervals; nothing in it looks for a request"
        fix = "call prime_train.live.should_save() after live.step(), or shorten its interval of checkpoints"
        raise CommandRefusal(what, why, fix)
    # A save that is under way has the weights of an earlier step.
    newest_step = max(state.newest_complete, state.saving_step or 0)
    return _accept(request, "checkpoint", newest_step), f"{describe_reach(state)} saves after its next step"


def _read_step(request: Request, scene: CommandScene) -> int:
    step = request.body.get("step")
    if type(step) is not int or not 0 < step <= MOST_STEPS:
        raise CommandRefusal(
            f"{_short(step)} is no step", "a step is a whole number from 1", f"prime-train ckpt list {scene.name}"
        )
    return step


def _pin(request: Request, scene: CommandScene) -> Iterator[Event]:
    """Sets the mark at once, because a controller on another machine cannot. Raises CommandRefusal, UserError."""
    step, is_pin = _read_step(request, scene), request.body["command"] == "pin"
    found = next((one for one in scene.program.checkpoints(scene.run, scene.run_dir) if one.step == step), None)
    if found is None:
        what = f"there is no checkpoint of step {step:,}"
        raise CommandRefusal(what, "only what is saved can be pinned", f"prime-train ckpt list {scene.name}")
    what = (pins.pin if is_pin else pins.unpin)(found, scene.name)
    if found.pinned != is_pin:
        yield CheckpointPinned(step, is_pin, request.body.get("by", "") or "not known")
    yield RequestAnswered(request.id, COMMAND_REQUESTED, "done", what)


def _check_go_back(request: Request, scene: CommandScene) -> _Accepted:
    step = _read_step(request, scene)
    found = scene.program.checkpoints(scene.run, scene.run_dir)
    named = next((one for one in found if one.step == step), None)
    problem = "there is no such checkpoint" if named is None else named.problem
    if step in scene.state.unreadable:
        problem = "the trainer could not load it"
    if problem:
        have = ", ".join(str(one.step) for one in reversed(found) if one.complete) or "none"
        what = f"step {step:,} cannot be resumed from: {problem}"
        why = "only a complete checkpoint holds the whole state of a run"
        raise CommandRefusal(what, why, f"complete checkpoints: {have[-400:]}")
    machine_commands.refuse_without_machines(scene)
    what = f"the next attempt starts from step {step:,}; later checkpoints are set aside by name"
    if scene.state.live is not None:
        what = f"{describe_reach(scene.state)} is asked to save and to end; {what}"
    return _accept(request, "go_back", step), what


def _check_drain(request: Request, scene: CommandScene) -> _Accepted:
    state, asked = scene.state, _read_gpus(request, scene)
    if CPU in asked:
        raise CommandRefusal(
            "a CPU cannot be drained", "an attempt needs one", f"prime-train gpu test {scene.name} cpu"
        )
    machine_commands.refuse_names(asked, scene)
    asked = tuple(gpu for gpu in asked if gpu not in state.left_out)
    if not asked:
        raise _AlreadyDone("these GPUs are left out already")
    leaves_one = state.live is not None and scene.run.parallel.replicas > 0 and find_machine(asked[0]) <= 0
    # Where nothing ends for the drain, it throws no training away.
    if not leaves_one and state.live is not None and not state.live.serves_only:
        _refuse_unknown_checkpoints(scene, "no GPU of the run can be drained")
    if find_machine(asked[0]) > 0:
        return _accept(request, "drain", gpus=asked), machine_commands.describe_drain(asked, scene)
    used = [uuid for _, uuid in scene.list_gpus() if uuid not in state.left_out]
    left = len(used) - len(asked)
    roles = scene.program.roles(scene.run)
    most = max((role.gpus for role in roles), default=0)
    # Roles that share GPUs already go on sharing them; no drain makes them share.
    least = sum(role.gpus if role.least_gpus is None else role.least_gpus for role in roles)
    needed = least if len(used) >= least else most
    if left < needed:
        what = f"{left} GPUs would remain, and the run needs {needed}"
        why = ", ".join(f"{role.name} works on {role.gpus}" for role in roles)
        fix = f"prime-train pause {scene.name} frees all of them; for good: stop it, and start it with fewer processes"
        raise CommandRefusal(what, why, fix)
    if leaves_one:
        _write_drained(scene, {*state.left_out, *asked})
        return _accept(request, "drain_replica", gpus=asked), "the replica on it ends, and the others train on"
    reach = f"{describe_reach(state)} is asked to save and to end; " if state.live is not None else ""
    return _accept(request, "drain", gpus=asked), f"{reach}the next attempt has the other {left} GPUs"


def _check_test(request: Request, scene: CommandScene) -> _Accepted:
    state, asked = scene.state, _read_gpus(request, scene)
    machine_commands.refuse_names(asked, scene)
    used = [gpu for gpu in asked if gpu != CPU and gpu not in state.left_out]
    # A test for a run that is about to pause begins when its attempt has ended.
    if used and state.live is not None and not state.is_paused:
        what = f"attempt {state.attempt_number} may use {', '.join(used)}"
        why = "a test beside a training takes its memory and its time"
        raise CommandRefusal(what, why, f"prime-train gpu drain {scene.name} {' '.join(used)}, which tests them too")
    return _accept(request, "test", gpus=asked), f"testing {', '.join(asked)}"


def _check_return(request: Request, scene: CommandScene) -> _Accepted:
    asked = tuple(gpu for gpu in _read_gpus(request, scene) if gpu in scene.state.left_out)
    if not asked:
        raise _AlreadyDone("none of these GPUs is left out")
    if scene.state.live is not None and scene.run.parallel.replicas:
        _write_drained(scene, {*scene.state.left_out} - {*asked})
        return _accept(
            request, "return", gpus=asked
        ), f"a replica starts on {', '.join(asked)}, at the latest in the next attempt"
    return _accept(request, "return", gpus=asked), f"the next attempt may use {', '.join(asked)} again"


def _write_drained(scene: CommandScene, gpus: set[str]) -> None:
    """Ask the launcher of replicas at once: it lives and ends with the supervisor. Raises CommandRefusal."""
    try:
        write_drained(scene.run_dir, scene.state.attempt_number, gpus)
    except OSError as error:
        problem = explain_disk_error(error.errno or 0, scene.run_dir.path)
        raise CommandRefusal(problem.what, problem.why, problem.fix) from None


def _read_gpus(request: Request, scene: CommandScene) -> tuple[str, ...]:
    """The UUIDs of the GPUs that the request names, by number or by UUID. "cpu" is known where there is no GPU."""
    named, known = request.body.get("gpus"), scene.list_gpus()
    if (
        not isinstance(named, list)
        or not 0 < len(named) <= _MOST_GPUS
        or not all(isinstance(one, str) for one in named)
    ):
        why = "the request names them by their numbers or UUIDs"
        raise CommandRefusal(f"{_short(named)} is no list of GPUs", why, "name one, such as 0 or GPU-1f6a...")
    by_name = {name: uuid for number, uuid in known for name in (number, uuid)} if known else {CPU: CPU}
    by_name |= {name: name for name in machine_commands.list_machines(scene)}
    # A GPU that fell off the bus may be known by its events alone, and a machine that the config dropped too.
    by_name |= {uuid: uuid for uuid in scene.state.left_out}
    for name in named:
        if name not in by_name:
            listed = ", ".join(f"{number} ({uuid})" for number, uuid in known[:16])
            why = f"the GPUs of the run are: {listed}" if known else "the GPU watch knows no GPU on this machine"
            fix = (
                "use one of these numbers or UUIDs"
                if known
                else f"the stand-in is: prime-train gpu test {scene.name} cpu"
            )
            if machines := machine_commands.list_machines(scene)[1:]:
                fix = f"{fix}; the GPUs of another machine are named together: {machines[0]}"
            raise CommandRefusal(f"no GPU {_short(name)}", why, fix)
    return tuple(dict.fromkeys(by_name[name] for name in named))


def _check_accept(request: Request, scene: CommandScene) -> _Accepted:
    found, number = scene.state.instability, request.body.get("step")
    if found is None or not scene.state.is_proposed:
        why = "each proposal is answered once, and a change by a person takes its place"
        raise CommandRefusal("no change is proposed", why, f"prime-train set {scene.name} --history")
    if number != found.number:
        why = "another one came after it, and its values differ"
        raise CommandRefusal(f"proposal {_short(number)} is not the latest", why, f"accept proposal {found.number}")
    return _accept(request, "accept", found.number), describe_proposal(found)


_CHECKS: dict[str, Callable[[Request, CommandScene], _Accepted]] = {
    "accept": _check_accept,
    "pause": _check_pause,
    "resume": _check_resume,
    "checkpoint": _check_checkpoint,
    "go_back": _check_go_back,
    "drain": _check_drain,
    "test": _check_test,
    "return": _check_return,
}
