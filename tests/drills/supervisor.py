"""A supervisor of the real kind over `victim.py`, as `prime-train run` has it but for the trainer.

python supervisor.py SETTING.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.bundled import Bundled
from prime_train.programs.vllm import engine_watch
from prime_train.programs.vllm.engine_watch import EngineWatch
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source
from prime_train.spec.supervision import Cleanup, PrimeTrain
from prime_train.supervise.core import policy
from prime_train.supervise.core.loop import supervise
from prime_train.supervise.launch.program import Launch, ReadyCheck
from prime_train.supervise.processes.lock import hold_run
from prime_train.supervise.watches.disk.watch import DiskWatch
from prime_train.supervise.watches.gpu.watch import GpuWatch
from prime_train.supervise.watches.host.watch import HostWatch
from prime_train.supervise.watches.preemption.watch import PreemptionWatch, read_override
from prime_train.supervise.watches.watch import RunningWatches, Watch
from prime_train.views.run import report
from tests.drills import server, victim

MAX_STEPS = 60
INTERVAL_STEPS = 10
LIMIT_S = 3.0  # for an engine that does nothing


@dataclass(frozen=True, slots=True)
class Setting:
    """What is supervised. `policy` holds fields of Policy, `options` goes to the victim."""

    run_dir: str
    fault: str = "nothing"
    options: dict[str, str] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    max_steps: int = MAX_STEPS
    seed: int = 0
    watches: dict[str, float] = field(default_factory=dict)  # seconds between two looks, by the watch's name
    deletes: bool = True  # what is superseded, where space runs short
    server: dict[str, str] | None = None  # a server of this kind stands beside the trainer
    port: int = 0


@dataclass(frozen=True, slots=True)
class Victim(Bundled):
    """The victim in the place of the trainer."""

    setting: Setting = Setting("")

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        given = {"max_steps": str(run.run.max_steps), "at_step": "25", "times": "once"} | self.setting.options
        if attempt > 1:
            given["step_s"] = "0.002"  # what was to be seen has been
        fault = self.setting.fault
        argv = (
            *(sys.executable, str(victim.__file__), str(run_dir.path), str(attempt), str(resume_step), fault),
            *(f"{name}={value}" for name, value in given.items()),
        )
        trainer = Launch("trainer", argv, Path.cwd(), run_dir.log(attempt, "trainer"))
        return (*self._server(run_dir, attempt), trainer)

    def _server(self, run_dir: RunDir, attempt: int) -> tuple[Launch, ...]:
        """The server. Its faults, too, are those of its first attempt."""
        given, port = self.setting.server, str(self.setting.port)
        if given is None:
            return ()
        faults = [f"{name}={value}" for name, value in given.items()] if attempt == 1 else []
        argv = (sys.executable, str(server.__file__), port, str(run_dir.path.parents[1]), *faults)
        url = f"http://127.0.0.1:{port}"
        ready = ReadyCheck(f"{url}/health", f"{url}/v1/completions", "tiny", limit_s=5.0 if faults else 60.0)
        return (Launch("inference", argv, Path.cwd(), run_dir.log(attempt, "inference"), ready=ready),)


def run_of(setting: Setting) -> RunSpec:
    path = Path(setting.run_dir)
    return RunSpec(
        run=Run(name=path.name, max_steps=setting.max_steps, seed=setting.seed, dir=str(path.parent)),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        checkpoint=Checkpoint(interval_steps=INTERVAL_STEPS),
        prime_train=PrimeTrain(cleanup=Cleanup(enabled=setting.deletes)),
    )


def watches_of(setting: Setting, run: RunSpec, run_dir: RunDir, program: Victim) -> RunningWatches:
    """Those that are asked for, at a pace of their own."""
    every_s, kmsg = setting.watches, run_dir.path.parents[1] / "kmsg"
    others: list[Watch] = []
    if "host" in every_s:
        others.append(HostWatch(run_dir, interval_s=every_s["host"]))
    if "engine" in every_s:
        url, log = f"http://127.0.0.1:{setting.port}", run_dir.watches / "engine.log"
        limits = engine_watch.EngineLimits(still_s=LIMIT_S, dead_s=LIMIT_S, unanswered_s=LIMIT_S)
        interval_s = every_s["engine"]
        others.append(
            EngineWatch(url, "inference", answer="restart", interval_s=interval_s, limits=limits, model="tiny", log=log)
        )
    if "preemption" in every_s:
        metadata = read_override((run_dir.path.parents[1] / "metadata").read_text(encoding="utf-8"))
        assert metadata is not None
        others.append(PreemptionWatch(run_dir, metadata, interval_s=every_s["preemption"]))
    find_places, keep = partial(program.places, run, run_dir), program.keep(run)
    gpu_s, disk_s = every_s.get("gpu"), every_s.get("disk")
    return RunningWatches(
        gpu=None if gpu_s is None else GpuWatch(run_dir, answer="restart", interval_s=gpu_s, kmsg=kmsg),
        disk=None if disk_s is None else DiskWatch(run, run_dir, find_places, keep, interval_s=disk_s),
        others=tuple(others),
    )


def main(path: str) -> int:
    setting = Setting(**json.loads(Path(path).read_text(encoding="utf-8")))
    run_dir, run = RunDir(Path(setting.run_dir)), run_of(setting)
    program = Victim(setting=setting)
    judged = dataclasses.replace(policy.build_policy(run, program), **setting.policy)
    try:
        with hold_run(run_dir):
            opened = program.open_run("", run, run_dir)
            code = supervise(
                opened.run, run_dir, lambda *_: None, program, judged, watches_of(setting, run, run_dir, program)
            )
            report.write(run_dir)
            return code
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
