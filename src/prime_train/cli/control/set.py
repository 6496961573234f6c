"""`prime-train set`: changes settings of a run while it trains, at the same step on every rank."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from prime_train.cli.run.preflight import parse_overrides
from prime_train.cli.terminal.options import AsJson, DryRun, NoColor, RunName
from prime_train.cli.terminal.render import json_text
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.plans import ChangePlan, list_versions, read_plan, read_plans
from prime_train.core.process_id import own_user
from prime_train.core.rundir import RunDir
from prime_train.spec.live_values import describe_values, read_value
from prime_train.supervise.answers.check_settings import check, list_declared, list_live, read_declared, read_present
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.run_directory import read_run_spec
from prime_train.supervise.processes.ask import ask, create_request_id
from prime_train.supervise.processes.requests import COMMAND_REQUESTED, SETTINGS_REQUESTED
from prime_train.views.run.runs import find
from prime_train.views.run.status import read_status
from prime_train.views.run.status_document import describe_open_proposal, had_no_step

_POLL_S = 0.2
_WHEN = {  # a change in the history
    "in_force": "in force{}",
    "to_come": "to come{}",
    "dropped": "no step",
    "ended_before": "never: the run ended before it",
}
_UNSET = "unset"  # the word for a key without a value, which TOML cannot write


def set(
    run: RunName,
    assignments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Keys of the config that change live.", show_default=False),
    ] = None,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept with the change.")] = "",
    expect: Annotated[
        int | None,
        typer.Option("--expect", metavar="VERSION", min=0, help="Refuse if there is a later version than this."),
    ] = None,
    undo: Annotated[
        int | None,
        typer.Option(
            "--undo", metavar="VERSION", min=0, help="Take back a change: the values before it. 0: the newest."
        ),
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the change is in force.")] = False,
    accept: Annotated[bool, typer.Option("--accept", help="Make the change that is proposed.")] = False,
    history: Annotated[bool, typer.Option("--history", help="List all changes.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _no_color: NoColor = False,
) -> None:
    """Change settings of a run while it trains, or list what can change.

    Every rank applies a change at the same step, and a resumed run makes the same changes at the same steps. A change
    is checked like a config. KEY=unset takes a value out.

    Examples:

      prime-train set quickstart

      prime-train set quickstart optim.lr=2e-4 --why 'the loss is flat'

      prime-train set quickstart --undo 0

      prime-train set quickstart --accept
    """
    run_dir = find(run, Path.cwd())
    state = read_status(run_dir, time.time()).state
    if history:
        _show(_history_document(run_dir, state), as_json)
        return
    if accept:
        _show(_accept(run_dir, state, bool(assignments) or undo is not None, why), as_json)
        return
    values = _read_values(assignments or [], run_dir)
    if undo is not None:
        values, why = _read_undone(run_dir, undo, values, why)
    if not values:
        _show(_live_document(run_dir, state), as_json)
        return
    if dry_run:
        change = check(run_dir, values, state.step)
        document = {"version": 1, "run": run_dir.path.name, "changes": list(change.texts), "accepted": None}
        _show(document, as_json)
        return
    expected = _find_version(run_dir, state) if expect is None else expect
    body = {"values": values, "expected": expected, "by": own_user(), "why": why}
    _show(_ask(run_dir, state, SETTINGS_REQUESTED, body, wait=wait), as_json)


def _ask(run_dir: RunDir, state: State, kind: str, body: Mapping[str, Any], *, wait: bool = False) -> dict[str, Any]:
    """The document of an accepted request. Raises UserError for a refused one."""
    answer = ask(run_dir, state.attempt_number, kind, body, create_request_id())
    if answer.outcome != "accepted":
        where = answer.where or str(run_dir.path)
        raise UserError(answer.what, where, answer.why, answer.fix, ExitCode.FINDINGS)
    if wait:
        answer = replace(answer, what=f"{answer.what}; {_await_step(run_dir, answer.request_id)}")
    return {"version": 1, "run": run_dir.path.name, "changes": [answer.what], "accepted": True}


def _accept(run_dir: RunDir, state: State, is_more_given: bool, why: str) -> dict[str, Any]:
    """Have the latest proposal made. Raises UserError."""
    name, proposal = run_dir.path.name, state.instability
    if is_more_given:
        fix = f"prime-train set {name} --accept, then the other command"
        raise UserError("--accept and another change are given", "--accept", "each is a change of its own", fix)
    number = proposal.number if proposal is not None else 0
    body = {"command": "accept", "step": number, "by": own_user(), "why": why}
    return _ask(run_dir, state, COMMAND_REQUESTED, body)


def _await_step(run_dir: RunDir, request_id: str) -> str:
    """From which step on the change is in force. Raises UserError if the run ends before it."""
    version = next(plan.version for plan in read_plans(run_dir.settings) if plan.id == request_id)
    while True:
        status = read_status(run_dir, time.time())
        step = dict(status.state.settings_applied).get(version)
        if step is not None:
            return f"in force from step {step:,} on"
        if had_no_step(version, status.state):
            what, why = f"settings version {version} was never in force", "the run ended before it"
            raise UserError(what, str(run_dir.path), why, "set it in the config of a longer run", ExitCode.FINDINGS)
        if status.state.closed or not status.supervised:
            what, why = f"settings version {version} is not in force yet", f"the run is {status.word}"
            fix = "start the run again: the change comes with its first steps"
            raise UserError(what, str(run_dir.path), why, fix, ExitCode.RESUMABLE)
        time.sleep(_POLL_S)


def _find_version(run_dir: RunDir, state: State) -> int:
    """The newest change that this command has seen."""
    return max([state.settings_version, *list_versions(run_dir.settings)[-1:]])


def _read_values(assignments: list[str], run_dir: RunDir) -> dict[str, Any]:
    """Keys to values; None for `unset`. Those of a command are plain names. Raises UserError."""
    config = read_run_spec(run_dir) if assignments else None
    plain_keys = config is not None and config.command is not None
    given = parse_overrides(assignments, plain_keys=plain_keys, option="")
    return {key: None if value == _UNSET else value for key, value in given.items()}


def _read_undone(run_dir: RunDir, version: int, given: Mapping[str, Any], why: str) -> tuple[dict[str, Any], str]:
    """The values before a change, and the reason. Raises UserError."""
    name = run_dir.path.name
    if given:
        fix = f"prime-train set {name} --undo {version}, then the other command"
        raise UserError("--undo and an assignment are given", f"--undo {version}", "each is a change of its own", fix)
    version = version or max(list_versions(run_dir.settings), default=0)
    try:
        plan = read_plan(run_dir.settings, version)
    except (OSError, ValueError):
        have = ", ".join(map(str, list_versions(run_dir.settings))) or "none"
        fix = f"prime-train set {name} --history lists them"
        raise UserError(f"there is no version {version}", f"--undo {version}", f"versions: {have}", fix) from None
    return dict(plan.before), why or f"takes version {version} back"


def _live_document(run_dir: RunDir, state: State) -> dict[str, Any]:
    config, present = read_present(run_dir)
    head = {"version": 1, "run": run_dir.path.name, "settings_version": _find_version(run_dir, state)}
    declared = list_declared(config)
    values = read_declared(run_dir, declared)
    keys = [
        *(
            {"key": one.name, "value": values[one.name], "in_config": one.value, "effect": "for the script"}
            for one in declared
        ),
        *(
            {
                "key": each.key,
                "value": read_value(present, each.key),
                "in_config": read_value(config, each.key),
                "effect": each.effect,
            }
            for each in list_live(present)
        ),
    ]
    return head | {"keys": keys}


def _history_document(run_dir: RunDir, state: State) -> dict[str, Any]:
    changes = [_describe_plan(plan, state) for plan in read_plans(run_dir.settings)]
    document = {"version": 1, "run": run_dir.path.name, "history": changes}
    return document | {"proposal": describe_open_proposal(state)}


def _describe_plan(plan: ChangePlan, state: State) -> dict[str, Any]:
    """`step`: the first one with the values; null for a change that no step has, or has any more."""
    step = dict(state.settings_applied).get(plan.version) if plan.values else None
    when = {"version": plan.version, "step": step, "state": _find_change_state(plan, state)}
    about = {"requested_s": plan.requested_s, "by": plan.by, "why": plan.why}
    return when | about | {"values": dict(plan.values), "before": dict(plan.before)}


def _find_change_state(plan: ChangePlan, state: State) -> str:
    if not plan.values:
        return "dropped"
    if had_no_step(plan.version, state):
        return "ended_before"
    return "in_force" if plan.version <= state.settings_in_force[0] else "to_come"


def _show(document: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json_text(document))
        return
    from prime_train.views.text import sanitize

    for line in _describe(document):
        typer.echo(sanitize(line))


def _describe(document: Mapping[str, Any]) -> list[str]:
    name = document["run"]
    if "changes" in document:
        head = "would change:" if document["accepted"] is None else "accepted:"
        return [f"{name}: {head} {text}" for text in document["changes"]]
    if "history" in document:
        lines = [_describe_change(change) for change in document["history"]]
        if proposal := document["proposal"]:
            lines.append(f"proposal {proposal['number']}: {proposal['change']}, because {proposal['what']}")
            lines.append(f"to make it: prime-train set {name} --accept")
        return lines or [f"{name}: its settings are those of its config"]
    head = f"{name}: settings version {document['settings_version']}; these keys change live:"
    return [head, *(f"  {_describe_key(each)}" for each in document["keys"])]


def _describe_key(key: Mapping[str, Any]) -> str:
    (now,), (began,) = (describe_values({key["key"]: key[name]}) for name in ("value", "in_config"))
    changed = "" if key["value"] == key["in_config"] else f" (in the config {began.partition(' = ')[2]})"
    return f"{now}{changed}: {key['effect']}"


def _describe_change(change: Mapping[str, Any]) -> str:
    step = "" if change["step"] is None else f" from step {change['step']:,}"
    when = _WHEN[change["state"]].format(step)
    date = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(change["requested_s"]))
    why = f": {change['why']}" if change["why"] else ""
    texts = ", ".join(describe_values(change["values"])) or "dropped: the run went back to a step before it"
    return f"{change['version']:>4}  {date}  {when}  {texts}  by {change['by']}{why}"
