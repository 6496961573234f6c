"""Hands a request of the page to the supervisor of its run, and returns the answer as JSON.

Only a pin is set here, because a run that has ended has no supervisor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from prime_train.checkpoints import pins
from prime_train.control.remote_commands import MACHINE_REQUESTED
from prime_train.control.timeline import shorten
from prime_train.control.watcher import Watcher
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events.bounds import MOST_STEPS
from prime_train.supervise.processes.ask import ask, create_request_id
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, KINDS, REQUEST_ID, STOP_REQUESTED, request_stop
from prime_train.views.run.checkpoints import find_checkpoint

_KEYS = {"run", "kind", "id", "body"}
_PINS = {"pin": pins.pin, "unpin": pins.unpin}


def hand_on(watcher: Watcher, found: Any) -> dict[str, Any]:
    """The answer to a request {run, kind, id, body}: outcome, what, why, fix, where. Raises UserError.

    The same `id` may be sent again when no answer came: the supervisor acts on it once.
    """
    if not isinstance(found, dict) or found.keys() - _KEYS or not isinstance(found.get("run"), str):
        raise _fault("it is no object with the keys run, kind, id and body", "send one as docs/control.md shows")
    name, kind = found["run"], found.get("kind")
    body, request_id = found.get("body", {}), found.get("id") or create_request_id()
    kinds = (*KINDS, MACHINE_REQUESTED)
    if kind not in kinds:
        raise _fault(f"the kind {shorten(kind)!r} is not known", f"use one of {', '.join(kinds)}")
    if not isinstance(body, dict):
        raise _fault("its body is no object", "send one as docs/control.md shows")
    if not isinstance(request_id, str) or not REQUEST_ID.fullmatch(request_id):
        raise _fault("its id is not made of up to 64 letters, digits, - and _", "leave it out, or send a random one")
    if kind == MACHINE_REQUESTED:
        if watcher.remote is None:
            why = "only the agents of a bus report machines"
            raise UserError(f"no machine {shorten(name)!r}", "POST /api/request", why, "prime-train control --bus nats")
        return watcher.remote.commands.command_machine(name, body, request_id)
    if watcher.remote is not None and (remote_name := watcher.name_on_bus(name)) is not None:
        return watcher.remote.commands.send(remote_name, kind, body, request_id)
    run_dir, row = watcher.run_dir(name), watcher.row(name)
    if run_dir is None or row is None:
        raise UserError(
            f"no run {shorten(name)!r}",
            str(watcher.root),
            "no run here has this name, or not any more",
            "reload the page",
        )
    if kind == COMMAND_REQUESTED and body.get("command") in tuple(_PINS):  # it may be a list, which has no hash
        return _answer("done", request_id, _set_pin(run_dir, body), run_dir)
    if kind == STOP_REQUESTED:
        holder = request_stop(run_dir, row["attempt"], request_id)
        what = f"process {holder.identity.pid} saves a checkpoint and ends the run"
        return _answer("accepted", request_id, what, run_dir)
    answer: dict[str, Any] = shorten(asdict(ask(run_dir, row["attempt"], kind, body, request_id)))
    return answer


def _set_pin(run_dir: RunDir, body: Mapping[str, Any]) -> str:
    step = body.get("step")
    if type(step) is not int or not 0 < step <= MOST_STEPS:
        raise _fault("its body names no step", "send the step of a checkpoint")
    return _PINS[body["command"]](find_checkpoint(run_dir, step), run_dir.path.name)


def _answer(outcome: str, request_id: str, what: str, run_dir: RunDir) -> dict[str, Any]:
    about = {"what": shorten(what), "why": "", "fix": "", "where": shorten(str(run_dir.path))}
    return {"outcome": outcome, "request_id": request_id, **about}


def _fault(what: str, fix: str) -> UserError:
    return UserError(what, "POST /api/request", "only known requests reach a supervisor", fix)
