"""A supervisor of the real kind over `victim.py`, as `prime-train run` has it but for the trainer.

python supervisor.py SETTING.json
"""

from __future__ import annotations

import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prime_train.backends.bundled import Bundled
from prime_train.backends.launch import Launch
from prime_train.errors import UserError
from prime_train.rundir import RunDir
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source
from prime_train.supervise import policy
from prime_train.supervise.lock import held
from prime_train.supervise.loop import supervise
from prime_train.supervise.prepare import open_run
from prime_train.views import report
from tests.drills import victim

MAX_STEPS = 60
INTERVAL_STEPS = 10


@dataclass(frozen=True, slots=True)
class Setting:
    """What is supervised. `policy` holds fields of Policy, `options` goes to the victim."""

    run_dir: str
    fault: str = "nothing"
    options: dict[str, str] = field(default_factory=dict)
    policy: dict[str, Any] = field(default_factory=dict)
    max_steps: int = MAX_STEPS
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Victim(Bundled):
    """The victim in the place of the trainer."""

    fault: str = ""
    options: tuple[tuple[str, str], ...] = ()

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        given = {"max_steps": str(run.run.max_steps), "at_step": "25", "times": "once"} | dict(self.options)
        argv = (
            *(sys.executable, str(victim.__file__), str(run_dir.path), str(attempt), str(resume_step), self.fault),
            *(f"{name}={value}" for name, value in given.items()),
        )
        return (Launch("trainer", argv, Path.cwd(), run_dir.log(attempt, "trainer")),)


def run_of(setting: Setting) -> RunSpec:
    path = Path(setting.run_dir)
    return RunSpec(
        run=Run(name=path.name, max_steps=setting.max_steps, seed=setting.seed, dir=str(path.parent)),
        data=Data(sources=(Source(kind="python-stdlib"),)),
        checkpoint=Checkpoint(interval_steps=INTERVAL_STEPS),
    )


def main(path: str) -> int:
    setting = Setting(**json.loads(Path(path).read_text(encoding="utf-8")))
    run_dir, run = RunDir(Path(setting.run_dir)), run_of(setting)
    backend = Victim(fault=setting.fault, options=tuple(setting.options.items()))
    judged = dataclasses.replace(policy.policy(run), **setting.policy)
    try:
        with held(run_dir):
            opened = open_run("", run, run_dir)
            code = supervise(opened.run, run_dir, lambda *_: None, backend, judged, ())
            report.write(run_dir)
            return code
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
