"""One row of the table of faults: what is done, what has to follow, and what did follow."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from prime_train.checkpoints import layout
from prime_train.events import (
    AlarmRaised,
    AttemptEnded,
    CheckpointSaved,
    ClockJumped,
    GpuLeftOut,
    HangFound,
    LaunchAsked,
    Progress,
    Record,
    RunClosed,
    SpaceFreed,
    read,
)
from tests import fork_server
from tests.drills import faults, rewards, supervisor
from tests.drills.scene import DEADLINE_S, PROGRAM, REPOSITORY, Scene
from tests.fakes.prime_rl_launcher import behaviour
from tests.fakes.prime_rl_launcher.config import config as prime_rl_config

Act = Callable[[Scene, int], None]  # with the pid of the supervisor
ACTED = "acted"  # a file: the fault from outside has been done, and its attempt has ended
FINISHES = 0


Do = Callable[[Scene], None]


def nothing(_scene: Scene) -> None:
    pass


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _taken(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def by_itself(_scene: Scene, _supervisor: int) -> None:
    """The victim harms itself."""


@dataclass(frozen=True, slots=True)
class Row:
    """A fault. `found`: the cause class of the attempt that ends by it, or the name of an alarm; "" = nothing is wrong.

    Strings in `options` and `variables` may name the "{folder}" of the drill.
    """

    group: str
    name: str
    found: str
    says: tuple[str, ...] = ()  # words that the cause, the reason of the end or the message holds
    exit_code: int = FINISHES
    attempts: int = 2
    victim: str = "nothing"  # a fault of victim.py
    act: Act = by_itself
    prepare: Do = nothing  # before anything is started
    again: Do | None = None  # the command is given again after the first supervisor has ended and this was done
    after: Do = nothing  # at the end, whatever came
    # "trainer": the bundled one under `prime-train run`, and `options` are tables of its config.
    # "prime_rl": a stand-in of its launcher, which does as `options` say.
    # "rewards": the bundled trainer in a run that learns from rewards, with the `options` of rewards.py.
    stage: Literal["victim", "trainer", "prime_rl", "rewards"] = "victim"
    options: Mapping[str, str] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    max_steps: int = supervisor.MAX_STEPS
    fork_from_attempt: int = 2  # of the bundled trainer, see fork_server.py: from there on nobody harms its process
    watches: Mapping[str, float] = field(default_factory=dict)  # seconds between two looks
    deletes: bool = True
    server: Mapping[str, str] | None = None  # beside the trainer; faults of server.py
    needs: Callable[[], str] | None = None  # why it cannot be done here; "" = it can

    def scene(self, folder: Path, cache: Path) -> Scene:
        """What is started for it. Nothing is, and nothing is written yet."""
        variables = {name: value.format(folder=folder) for name, value in self.variables.items()}
        match self.stage:
            case "trainer":
                scene = faults.drill_in(folder, cache, is_silent=self.found == "hang")
                tables = (f"\n[{table}]\n{keys}\n" for table, keys in self.options.items())
                files = {**scene.files, "run.toml": scene.files["run.toml"] + "".join(tables)}
                forked = fork_server.variables(self.fork_from_attempt)
                return replace(scene, files=files, variables={**scene.variables, **forked, **variables})
            case "rewards":
                return rewards.drill_of_rewards(folder, cache, self.options, variables)
            case "prime_rl":
                config = prime_rl_config("rl", folder / "env" / "bin" / "python", ours=self.files.get("ours", ""))
                words = (str(PROGRAM), "run", "words.toml", "--no-validate", "--run-name", "drill")
                return Scene(folder, words, {"words.toml": config}, behaviour(folder / "starts", **self.options))
        acted = {} if self.act is by_itself else {"waits_for": str(folder / ACTED)}
        options = {name: value.format(folder=folder) for name, value in self.options.items()}
        setting = {
            "run_dir": str((folder / "runs" / "drill").resolve()),
            "fault": self.victim,
            "options": options | acted,
            "policy": dict(self.policy),
            "max_steps": self.max_steps,
            "watches": dict(self.watches),
            "deletes": self.deletes,
            "server": dict(self.server) if self.server is not None else None,
            "port": _free_port() if self.server is not None else 0,
        }
        # A supervisor that nobody harms is forked, because it imports for as long as it works.
        is_forked = self.act is by_itself and self.again is None and not self.variables
        python = fork_server.interpreter() if is_forked else sys.executable
        command = (python, str(REPOSITORY / "tests" / "drills" / "supervisor.py"), "setting.json")
        return Scene(folder, command, {"setting.json": json.dumps(setting), **self.files}, variables)


@dataclass(frozen=True, slots=True)
class Result:
    """What followed. Times are seconds after the fault; None = it did not come to that."""

    exit_code: int
    found: tuple[str, ...]  # cause classes of failed attempts, and alarms, in their order
    told: str  # everything that was said of it
    attempts: int
    detect_s: float | None
    resume_s: float | None
    resumed_from: int | None  # of the last attempt
    kept: tuple[int, ...]  # steps of complete checkpoints, as they were when the last attempt began
    lost: tuple[int, ...]  # of those, the ones that are gone though nothing damaged them and no newer one is there
    left: tuple[str, ...]  # processes


def carry_out(row: Row, folder: Path, cache: Path) -> Result:
    """Do it, and wait for the end."""
    scene = row.scene(folder, cache)
    scene.prepare()
    try:
        row.prepare(scene)
        with scene.started() as process:
            row.act(scene, process.pid)
            _await_attempt(scene, process, 1 if row.again is not None else row.attempts)
            (scene.folder / ACTED).touch()
            code = process.wait(DEADLINE_S)
        if row.again is not None:
            row.again(scene)
            with scene.started() as process:
                code = process.wait(DEADLINE_S)
        return _judge(scene, code)
    finally:
        row.after(scene)


def _await_attempt(scene: Scene, process: subprocess.Popen[bytes], number: int) -> None:
    """Wait for the start of the attempt with this number, or the end of the supervisor."""
    if number > 1:
        next((True for state in scene.states() if state.attempt_number >= number or process.poll() is not None), None)


def check(row: Row, result: Result) -> None:
    """Everything that has to hold of any fault, and of this one."""
    assert result.exit_code == row.exit_code, result
    assert (result.found[0] if result.found else "") == row.found, result
    for words in row.says:
        assert words in result.told, (words, result.told)
    assert result.attempts == row.attempts, result
    assert result.left == (), result
    assert result.lost == (), result
    if result.resumed_from is not None:
        assert result.resumed_from == max(result.kept, default=0), result
    if row.attempts > 1 and row.exit_code == FINISHES:
        assert result.resumed_from is not None, result


def _judge(scene: Scene, code: int) -> Result:
    records = list(read(scene.run_dir.events)) if scene.run_dir.events.exists() else []
    damaged = scene.marks.damaged
    found = [record for record in records if _names(record)]
    launches = [record.event for record in records if isinstance(record.event, LaunchAsked)]
    last = launches[-1] if launches else None
    saves = [record.event for record in records if isinstance(record.event, CheckpointSaved)]
    saved = {save.step for save in saves if last is None or last.attempt == 1 or save.attempt < last.attempt}
    there = _complete(scene)
    # A trainer may be killed between a checkpoint's marker and the event that tells it: whole on the disk, never told.
    ended = [one.event for one in records if isinstance(one.event, AttemptEnded)]
    untold = {end.newest_complete for end in ended if last is not None and end.attempt == last.attempt - 1} - {0}
    kept = tuple(sorted((saved | untold) - damaged))  # the last attempt may have deleted an old one
    newest = max(there, default=0)
    return Result(
        exit_code=code,
        found=tuple(name for record in found for name in _names(record)),
        told="\n".join([*(str(record.event) for record in records if _gives(record)), scene.log_text()]),
        attempts=len(launches),
        detect_s=_since(scene, _found_s(records)),
        resume_s=_since(scene, _stepped_again_s(records)),
        resumed_from=last.resume_step if last is not None and last.attempt > 1 else None,
        kept=kept,
        lost=tuple(step for step in kept if step not in there and step >= newest),
        left=tuple(map(str, (*scene.left(), *scene.marks.living, *_ports_left(scene)))),
    )


def _complete(scene: Scene) -> set[int]:
    """Steps of the complete checkpoints. Of prime-rl's: what its own trainer and orchestrator write last is there."""
    folders = (scene.folder / "outputs" / "drill" / "checkpoints").glob("step_*")
    whole = (f for f in folders if (f / "trainer/.metadata").exists() and (f / "orchestrator/progress.pt").exists())
    ours = (checkpoint for checkpoint in layout.scan(scene.run_dir.checkpoints) if checkpoint.complete)
    return {int(folder.name.removeprefix("step_")) for folder in whole} | {checkpoint.step for checkpoint in ours}


def _ports_left(scene: Scene) -> list[str]:
    """The port of the server, where somebody still listens on it."""
    port = port_of(scene)
    return [f"port {port}"] if port and _taken(port) else []


def port_of(scene: Scene) -> int:
    """The port of the server; 0 = there is none."""
    path = scene.folder / "setting.json"
    return int(json.loads(path.read_text(encoding="utf-8"))["port"]) if path.exists() else 0


def _names(record: Record) -> tuple[str, ...]:
    match record.event:
        case AttemptEnded(outcome="failed", cause_class=name):
            return (name,)
        case AlarmRaised(name=name, answer=answer) if answer != "note":
            return (name,)
        case _:
            return ()


def _gives(record: Record) -> bool:
    return isinstance(
        record.event,
        AttemptEnded | AlarmRaised | HangFound | RunClosed | LaunchAsked | ClockJumped | GpuLeftOut | SpaceFreed,
    )


def _found_s(records: list[Record]) -> float | None:
    """When it was first said that something is wrong. Of a silence its limit is not counted: it may last as long."""
    for record in records:
        if isinstance(record.event, HangFound):
            return record.time_s - record.event.limit_s
        if _names(record):
            return record.time_s
    return None


def _stepped_again_s(records: list[Record]) -> float | None:
    """When an attempt after the first one had taken a step."""
    return next((r.time_s for r in records if isinstance(r.event, Progress) and r.event.attempt > 1), None)


def _since(scene: Scene, at_s: float | None) -> float | None:
    fault_s = scene.marks.fault_s
    return None if at_s is None or fault_s is None else round(at_s - fault_s, 3)
