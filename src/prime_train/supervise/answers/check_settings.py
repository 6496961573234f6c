"""Checks a change of settings by the schema and the rules of a config. Writes nothing.

As a program it is a child of the supervisor, whose own process has no room for the rules:
`python -m prime_train.supervise.answers.check_settings RUN_DIR` reads a JSON object with `values` and `step` from its
input, and prints one with the `change`, or the `error` in its four parts.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from prime_train.config import detect, run_toml
from prime_train.config.schema import Field, Table, walk_fields
from prime_train.config.validate_value import value_fault
from prime_train.core import outside
from prime_train.core.errors import ExitCode, UserError
from prime_train.core.findings import Finding, Severity
from prime_train.core.outside import CONFIG_BYTES, MARK_BYTES
from prime_train.core.plans import read_plans
from prime_train.core.rundir import RunDir
from prime_train.events.bounds import MOST_STEPS
from prime_train.spec import RunSpec
from prime_train.spec.command import DeclaredSetting
from prime_train.spec.live_keys import LIVE_KEYS, OF_SUPERVISOR, LiveKey, find_fixed, find_live
from prime_train.spec.live_values import describe_values, overlay, read_value, takes_plans, with_values
from prime_train.supervise.core.journal import read_state
from prime_train.supervise.launch.run_directory import Resume, read_run_spec
from prime_train.toml.did_you_mean import nearest
from prime_train.toml.edit import EditRefused, edited

_CONFIG = "config.toml"  # how the rules name the config of the run


def list_declared(run: RunSpec) -> tuple[DeclaredSetting, ...]:
    """The settings that a command declares; none for any other program."""
    return run.command.settings if run.command is not None else ()


@dataclass(frozen=True, slots=True)
class Change:
    """A change that may be made. Dotted key -> value, None for a key that is unset."""

    values: dict[str, Any]
    before: dict[str, Any]  # in force, or accepted and still to come
    config: dict[str, Any]
    texts: tuple[str, ...]  # "optim.lr = 0.0002, was 0.001"


def read_present(run_dir: RunDir) -> tuple[RunSpec, RunSpec]:
    """The run as its config has it, and with all accepted changes. Raises UserError for one without live changes."""
    config = read_run_spec(run_dir)
    if config is None:
        fix = f"prime-train status {run_dir.path.name}"
        raise UserError("the run has not begun", str(run_dir.path), "there is no training whose settings change", fix)
    _refuse_machines(config, run_dir)
    return config, overlay(config, read_plans(run_dir.settings))


def list_live(run: RunSpec) -> tuple[LiveKey, ...]:
    """The keys of this run that change live: without a trainer that reads them, those of the supervisor."""
    has_ranks = takes_plans(run) and run.command is None
    found = (each for each in LIVE_KEYS if run.run.kind in each.kinds)
    return tuple(each for each in found if has_ranks or each.key.startswith(OF_SUPERVISOR))


def list_fields() -> dict[str, Field]:
    """Each key of a config, "table.field", with its type and bounds."""
    found = walk_fields(run_toml.schema())
    return {".".join(path): item for path, _, item in found if not isinstance(item.shape, Table)}


def check(run_dir: RunDir, wanted: Mapping[str, Any], step: int) -> Change:
    """The change to these values, judged as the config is. Raises UserError for the first fault.

    `step`: the last one that the run has reported.
    """
    config, present = read_present(run_dir)
    of_script = {key: value for key, value in wanted.items() if not key.startswith(OF_SUPERVISOR)}
    if config.command is None or not of_script:
        return _check_keys(run_dir, config, present, wanted, step)
    script = _check_declared(run_dir, config, of_script)
    own = {key: value for key, value in wanted.items() if key not in of_script}
    if not own:
        return script
    keys = _check_keys(run_dir, config, present, own, step)
    return Change(script.values | keys.values, script.before | keys.before, keys.config, script.texts + keys.texts)


def _check_keys(run_dir: RunDir, config: RunSpec, present: RunSpec, wanted: Mapping[str, Any], step: int) -> Change:
    """The change of keys of the config. Raises UserError."""
    fields = list_fields()
    for key, value in wanted.items():
        if not key.startswith(OF_SUPERVISOR):
            _refuse_trainer(config, run_dir)
        if (obstacle := find_obstacle(key, present, fields)) is not None:
            raise obstacle
        _refuse_value(fields[key], key, value)
        if key == "parallel.sync_every" and value == 0:
            what, why = "parallel.sync_every = 0 sums in each step", "that is another loop, which starts with the run"
            raise _refusal(what, key, why, "parallel.sync_every=1 or more, or stop the run and edit the config")
        if key == "rl.kl_coef" and value == 0:
            raise _refusal(
                "rl.kl_coef = 0 takes the reference model out", key, "it could not come back", "rl.kl_coef=1e-9"
            )
    try:
        changed = with_values(present, wanted)
    except (ValueError, AttributeError) as error:  # what the schema alone does not see
        raise _refusal(str(error).splitlines()[0], ", ".join(wanted), "the trainer could not read it", "") from None
    values = {key: read_value(changed, key) for key in wanted}
    before = {key: read_value(present, key) for key in wanted}
    if values == before:
        texts = ", ".join(describe_values(values))
        raise _refusal(f"nothing changes: {texts} already", ", ".join(wanted), "a version holds a change", "")
    last = changed.run.max_steps
    if "run.max_steps" in values and last < step:
        what, why = f"run.max_steps = {last} is below the present step {step}", "steps that are done are not undone"
        raise _refusal(what, "run.max_steps", why, f"run.max_steps={step} or more, or prime-train stop")
    _judge(run_dir, config, present, changed, values)
    return Change(values, before, {key: read_value(config, key) for key in wanted}, _describe(values, before))


def read_declared(run_dir: RunDir, declared: Iterable[DeclaredSetting]) -> dict[str, Any]:
    """The present value of each declared setting; None where it is not known."""
    values: dict[str, Any] = {each.name: each.value for each in declared}
    for plan in read_plans(run_dir.settings):
        values |= {name: value for name, value in plan.values.items() if name in values}
    return values


def _check_declared(run_dir: RunDir, config: RunSpec, wanted: Mapping[str, Any]) -> Change:
    """The change of numbers that the config of a command declares. Raises UserError."""
    _refuse_trainer(config, run_dir)
    declared = {each.name: each for each in list_declared(config)}
    values: dict[str, Any] = {}
    for name, value in wanted.items():
        if name not in declared:
            meant = nearest(name, declared)
            why = f"[[command.settings]] has {', '.join(declared)}" + (f"; did you mean {meant}?" if meant else "")
            raise _refusal(f"there is no setting {name[:100]}", name[:100], why, "")
        values[name] = _read_declared_value(declared[name], value)
    present = read_declared(run_dir, declared.values())
    before = {name: present[name] for name in wanted}
    if values == before:
        raise _refusal(
            f"nothing changes: {', '.join(describe_values(values))} already", "", "a version holds a change", ""
        )
    return Change(values, before, {}, _describe(values, before))


def _read_declared_value(setting: DeclaredSetting, value: Any) -> float | int:
    """The value, in the bounds of its setting. Raises UserError."""
    name, kind = setting.name, "a whole number" if setting.whole else "a number"
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or (setting.whole and value != int(value)):
        raise _refusal(
            f"{name} = {json.dumps(value)} is not {kind}", name, "its entry in [[command.settings]] asks for that", ""
        )
    least, most = setting.min, setting.max
    if (least is not None and value < least) or (most is not None and value > most):
        bounds = " and ".join(
            text for text, limit in ((f">= {least}", least), (f"<= {most}", most)) if limit is not None
        )
        raise _refusal(f"{name} = {value} is not {bounds}", name, "[[command.settings]] sets its bounds", "")
    return int(value) if setting.whole else float(value)


def _describe(values: Mapping[str, Any], before: Mapping[str, Any]) -> tuple[str, ...]:
    earlier = (text.partition(" = ")[2] for text in describe_values(before))
    return tuple(f"{text}, was {was}" for text, was in zip(describe_values(values), earlier, strict=True))


def _refusal(what: str, where: str, why: str, fix: str) -> UserError:
    return UserError(what, where, why, fix or "prime-train set RUN lists what changes live, with the present values")


def _refuse_trainer(run: RunSpec, run_dir: RunDir) -> None:
    """Raise UserError for a run whose trainer takes no changes."""
    name = run_dir.path.name
    if not takes_plans(run):
        trainer = {"serve": "vLLM", "command": "the program of [command]"}.get(run.run.kind, "prime-rl")
        what = f"the settings of {name} do not change live"
        why = f"{trainer} reads its settings once, when it starts"
        fix = f"prime-train stop {name}, edit the config, and start it again"
        if run.command is not None:
            fix += "; a script that calls live.settings() names what changes in [[command.settings]]"
        fix += f"; only keys that begin with {OF_SUPERVISOR} change"
        raise UserError(what, str(run_dir.path), why, fix)


def _refuse_machines(run: RunSpec, run_dir: RunDir) -> None:
    """Raise UserError for a command on several machines: the bundled trainer has a relay that sends each plan on."""
    name = run_dir.path.name
    if run.command is not None and run.parallel.machines > 1:
        what = f"{name} starts its command on {run.parallel.machines} machines"
        why = "a plan is a file of this machine, and the processes of the others would never have it"
        fix = f"prime-train stop {name} on each machine, edit the config, and start it again"
        raise UserError(what, str(run_dir.path), why, fix)


def find_obstacle(key: str, run: RunSpec, fields: Mapping[str, Field]) -> UserError | None:
    """Why a key does not exist, or does not change live; None if it may change. `fields`: those of `list_fields`."""
    live, fixed = find_live(key), find_fixed(key)
    if key not in fields:
        return _unknown_key(key, fields)
    if live is None:
        assert fixed is not None  # a test compares the tables with the schema
        again = "start another run with --run-name" if fixed.in_another_run else "start it again"
        fix = f"prime-train stop {run.run.name}, change {key} in the config, and {again}"
        return _refusal(f"{key} does not change while the run trains", key, fixed.why, fix)
    if run.run.kind not in live.kinds:
        what = f"a run of kind {run.run.kind} does not use {key}"
        return _refusal(what, key, f"only runs of kind {' or '.join(live.kinds)} do", "")
    if key == "rl.kl_coef" and not (run.rl and run.rl.kl_coef):
        why = "the reference model is that of the first RL step, and only a run that began with one has it"
        return _refusal("rl.kl_coef is 0, and stays 0", key, why, "start another run with rl.kl_coef above 0")
    if key == "parallel.sync_every" and not run.parallel.sync_every:
        why = "replicas that make steps alone have another loop, which starts with the run"
        fix = f"prime-train stop {run.run.name}, set {key} in the config, and start it again"
        return _refusal(f"{key} is 0, and stays 0", key, why, fix)
    if key == "optim.muon_lr" and run.optim.kind != "muon":
        return _refusal(f"{key} has no effect", key, f"optim.kind is {run.optim.kind}", "set optim.lr")
    return None


def _unknown_key(key: str, fields: Mapping[str, Field]) -> UserError:
    last = key.rpartition(".")[2]
    same = [each for each in fields if each.rpartition(".")[2] == last and find_live(each)]
    meant = same[0] if len(same) == 1 else nearest(key, fields)
    why = "only keys of the config can be set" + (f"; did you mean {meant}?" if meant else "")
    return _refusal(f"there is no key {key[:100]}", key[:100], why, "")


def _refuse_value(item: Field, key: str, value: Any) -> None:
    """Raise UserError for a value that the schema does not allow. None is the default of an optional key."""
    if value is None and item.default is None and not item.required:
        return
    fault = value_fault(item.shape, value, tuple(key.split(".")), item.default)
    if fault is not None:
        raise _refusal(fault.what, key, "the schema of the config sets type and bounds", fault.fix)


def _judge(run_dir: RunDir, config: RunSpec, present: RunSpec, changed: RunSpec, values: Mapping[str, Any]) -> None:
    """Raise UserError for an error that the rules find in the changed config and not in the present one."""
    text = outside.read_text(run_dir.config, CONFIG_BYTES, run_dir.path)
    before = _write_changed(text, config, present)
    for found in _find_new_errors(before, _write_changed(text, config, changed)):
        raise _refusal(f"{found.code}: {found.what}", found.key or ", ".join(values), found.why, found.fix)


def refuse_start(text: str, run: RunSpec, run_dir: RunDir, resume: Resume) -> None:
    """Raise UserError for an error that a config has with the changes in force, and not by itself.

    `text`: the config of `run`. `resume`: where the run starts, which drops the changes that began after it.
    """
    if run.format != "run.toml" or run.command is not None or not run_dir.settings.is_dir():
        return
    last = resume if isinstance(resume, int) else MOST_STEPS
    steps = dict(read_state(run_dir).state.settings_applied)
    present = overlay(run, (plan for plan in read_plans(run_dir.settings) if steps.get(plan.version, 0) <= last))
    for found in _find_new_errors(text, _write_changed(text, run, present)):
        live = [each.key for each in list_live(run) if read_value(run, each.key) != read_value(present, each.key)]
        values = ", ".join(describe_values({key: read_value(present, key) for key in live}))
        why = f"changes that were made while it trained are in force: {values}; {found.why}"
        fix = f"{found.fix}, or another {live[0]} in the config: a key that it changes overrules the change"
        raise UserError(f"{found.code}: {found.what}", found.key or live[0], why, fix, ExitCode.FINDINGS)


def _write_changed(text: str, config: RunSpec, changed: RunSpec) -> str:
    """The text of the config with the values that changed live. Raises UserError."""
    keys = [each.key for each in list_live(config)]
    values = {key: read_value(changed, key) for key in keys if read_value(changed, key) != read_value(config, key)}
    if changed.batch.global_batch != config.batch.global_batch:  # pinned, where the micro-batch changed
        values["batch.global_batch"] = changed.batch.global_batch
    try:
        return edited(text, values)
    except EditRefused as error:
        why = "the config has no place for it"
        raise _refusal(f"it cannot be judged: {error}", ", ".join(values), why, "") from None


def _find_new_errors(before: str, after: str) -> Iterator[Finding]:
    """The errors of a config that another one has not."""
    errors = _find_errors(after) if after != before else ()
    known = {(found.code, found.key) for found in _find_errors(before)} if errors else set()
    return (found for found in errors if (found.code, found.key) not in known)


def _find_errors(text: str) -> tuple[Finding, ...]:
    from prime_train.rules.judge import judge_config  # here, because a wrong key or value needs no rule

    verdict = judge_config(detect.read(text, _CONFIG))
    return tuple(finding for finding in verdict.findings if finding.severity is Severity.ERROR)


def main() -> None:
    run_dir = RunDir(Path(sys.argv[1]))
    asked = outside.parse_json(sys.stdin.buffer.read(MARK_BYTES))
    try:
        answer = {"change": asdict(check(run_dir, asked["values"], int(asked["step"])))}
    except UserError as error:
        answer = {"error": error.parts()}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
