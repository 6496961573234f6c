"""A supervisor in a process of its own, with a fake trainer and fast timings.

python supervisor.py RUN_DIR BEHAVIOUR [key=value...]       policy values as policy.NAME=VALUE

With alarm=ANSWER a watch finds the first attempt at fault before any process of it has been started.
With gpus=N it knows so many GPUs.
With engine=BEHAVIOUR port=N it has a service beside the trainer (engine.py), or alone where BEHAVIOUR is "none".
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.programs.bundled import Bundled
from prime_train.spec import Checkpoint, Data, Run, RunSpec, Source
from prime_train.supervise.core.loop import supervise
from prime_train.supervise.core.policy import Policy
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Launch, ReadyCheck
from prime_train.supervise.processes.lock import hold_run
from prime_train.supervise.services import watch_runner
from prime_train.supervise.watches.watch import Alarm, Answer, RunningWatches

FAST = Policy(
    step_limit_s=300.0, backoff_s=0.01, backoff_max_s=0.05, term_grace_s=0.3, dump_grace_s=0.5, exit_grace_s=2.0
)


ANSWERS: dict[str, Answer] = {"alarm=restart": "restart", "alarm=pause": "pause"}


def fake_run(path: Path, max_steps: int) -> RunSpec:
    """The smallest RunSpec for a run directory at `path`."""
    run = Run(name=path.name, max_steps=max_steps, dir=str(path.parent))
    data = Data(sources=(Source(kind="python-stdlib"),))
    return RunSpec(run=run, data=data, checkpoint=Checkpoint(interval_steps=10))


@dataclass(frozen=True, slots=True)
class FakeProgram(Bundled):
    """The fake trainer, and the checkpoints of a bundled one."""

    behaviour: str = ""
    options: tuple[str, ...] = ()

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        trainer = fake_plan(run, run_dir, attempt, resume_step, behaviour=self.behaviour, options=self.options)
        given = dict(pair.split("=", 1) for pair in self.options)
        engine = engine_plan(run_dir, attempt, given) if "engine" in given else None
        return tuple(launch for launch in (engine, None if self.behaviour == "none" else trainer) if launch is not None)


def engine_plan(run_dir: RunDir, attempt: int, given: dict[str, str]) -> Launch:
    """The fake engine, on the port that is given."""
    program = Path(__file__).with_name("engine.py")
    once = (f"once={run_dir.path / 'engine-was-here'}",) if given.get("engine_times") == "once" else ()
    url = f"http://127.0.0.1:{given['port']}"
    ready = ReadyCheck(f"{url}/health", f"{url}/v1/completions", "tiny", float(given.get("ready_limit_s", "30")))
    argv = (sys.executable, str(program), given["port"], given["engine"], *once)
    return Launch("inference", argv, Path.cwd(), run_dir.log(attempt, "inference"), (), ready)


def fake_plan(
    run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int, *, behaviour: str, options: Sequence[str]
) -> Launch:
    program = Path(__file__).with_name("trainer.py")
    arguments = (
        str(run_dir.path),
        str(attempt),
        str(resume_step),
        behaviour,
        f"max_steps={run.run.max_steps}",
        *options,
    )
    python = dict(pair.split("=", 1) for pair in options).get("program", sys.executable)
    return Launch("trainer", (python, str(program), *arguments), Path.cwd(), run_dir.log(attempt, "trainer"))


@dataclass(slots=True)
class Early:
    """A watch that is never content with the first attempt."""

    answer: Answer
    name: str = "gpu"

    def begin(self) -> None:
        """There is nothing to sample."""

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        del now_s
        lost = Alarm("gpu", "gpu_lost", "GPU 1", self.answer, "hardware", "it is lost", "a riser", "reseat it", "GPU-1")
        return (lost,) if state.live is not None and state.live.number == 1 else ()

    def processes(self) -> tuple[Identity, ...]:
        return ()

    def end(self) -> None:
        """There is nothing to end."""


@dataclass(slots=True)
class FakeGpus(Early):
    """A watch that knows some GPUs, and is content with them."""

    count: int = 0
    has_looked: bool = True

    def look(self, state: State, now_s: float) -> tuple[Alarm, ...]:
        del state, now_s
        return ()

    def remaining(self, out: Collection[str]) -> tuple[str, ...]:
        return tuple(f"GPU-{number}" for number in range(self.count) if f"GPU-{number}" not in out)

    def numbers(self, uuids: Collection[str]) -> tuple[str, ...]:
        return tuple(str(number) for number in range(self.count) if f"GPU-{number}" in uuids)


def main() -> None:
    path, behaviour, *pairs = sys.argv[1:]
    run_dir = RunDir(Path(path))
    limits = dict(pair.removeprefix("policy.").split("=") for pair in pairs if pair.startswith("policy."))
    options = [pair for pair in pairs if not pair.startswith("policy.")]
    max_steps = next((int(pair.split("=")[1]) for pair in options if pair.startswith("max_steps=")), 40)
    policy = replace(FAST, **{name: type(getattr(FAST, name))(value) for name, value in limits.items()})
    program = FakeProgram(behaviour=behaviour, options=tuple(options), stops_by_file=behaviour != "none")
    policy = replace(policy, stops_by_file=program.stops_by_file)
    answer: Answer | None = next((ANSWERS[pair] for pair in options if pair in ANSWERS), None)
    watch_runner.LOOK_EVERY_S = 0.0  # else whether it looks between a launch and a start is a matter of chance
    count = next((int(pair.removeprefix("gpus=")) for pair in options if pair.startswith("gpus=")), 0)
    gpus = FakeGpus("note", count=count) if count else None
    watches = RunningWatches(gpu=gpus, others=(Early(answer),) if answer is not None else ())
    try:
        with hold_run(run_dir) as lock:
            run = fake_run(run_dir.path, max_steps)
            sys.exit(supervise(run, run_dir, lambda *_: lock.keep(), program, policy, watches))
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
