"""A supervisor whose trainer is the other half of this file: it takes steps until it is asked to stop."""

import sys
import time
from pathlib import Path

from prime_train.core.rundir import RunDir
from prime_train.events import EventLog, Phase, Progress, TrainerStarted, TrainerStopped
from prime_train.programs.bundled import Bundled
from prime_train.spec import Data, Run, RunSpec, Source
from prime_train.supervise.core.loop import supervise
from prime_train.supervise.launch.program import Launch
from prime_train.supervise.processes.lock import hold_run
from prime_train.supervise.watches.watch import RunningWatches

MAX_STEPS = 1_000_000


def main(run_dir: RunDir) -> None:
    run = RunSpec(
        run=Run(name=run_dir.path.name, max_steps=MAX_STEPS), data=Data(sources=(Source(kind="python-stdlib"),))
    )
    with hold_run(run_dir):
        opened = Stepping().open_run("", run, run_dir)
        sys.exit(supervise(opened.run, run_dir, lambda _state, _records: None, Stepping(), watches=RunningWatches()))


class Stepping(Bundled):
    """Plans the other half of this file."""

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        del run, resume_step
        argv = (sys.executable, __file__, str(run_dir.path), str(attempt))
        return (Launch("trainer", argv, Path.cwd(), run_dir.log(attempt, "trainer")),)


def train(run_dir: RunDir, attempt: int) -> None:
    log = EventLog(run_dir.events, f"trainer-{attempt:03d}-rank0")
    log.append(TrainerStarted(attempt, 1, 0, 1, "cpu", "fp32", 1000, 256, 0))
    log.append(Phase(attempt, "train"))
    step = 0
    while not run_dir.stop_request(attempt).exists():
        step += 1
        print(f"attempt {attempt} step {step}", flush=True)  # noqa: T201 - a trainer's log
        log.append(Progress(attempt, step, 5.0, 1000.0, step))
        time.sleep(0.02)
    log.append(TrainerStopped(attempt, step))


if __name__ == "__main__":
    directory = RunDir(Path(sys.argv[1]))
    if len(sys.argv) > 2:
        train(directory, int(sys.argv[2]))
    else:
        main(directory)
