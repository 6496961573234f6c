"""A vLLM server without a trainer, as a `Program`. Starts nothing."""

from __future__ import annotations

from dataclasses import dataclass

from prime_train.checkpoints.layout import Checkpoint
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.programs.base import RunTomlProgram
from prime_train.programs.vllm.engine_watch import EngineWatch
from prime_train.programs.vllm.server import ROLE, base_url, count_gpus, find_version, needs, plan, python_of
from prime_train.spec import RunSpec
from prime_train.supervise.launch.environment import Host, Needs
from prime_train.supervise.launch.launch import Launch
from prime_train.supervise.launch.program import Config, Role
from prime_train.supervise.watches.watch import Watch


@dataclass(frozen=True, slots=True)
class Serving(RunTomlProgram):
    """A run that only serves: it has no trainer and no checkpoints."""

    name: str = "vllm"
    reports: bool = True

    def refuse(self, config: Config) -> None:
        """Refuse a file that trains, because `run.program` may name this program there too."""
        if not config.run.serves_only:
            raise UserError(
                what='run.program = "vllm", and the file describes no run that only serves',
                where=config.path,
                why="a server alone only serves the model of [inference]",
                fix='run.kind = "serve" with an [inference] table; or take run.program out',
            )

    def roles(self, run: RunSpec) -> tuple[Role, ...]:
        return (Role(ROLE, count_gpus(run.server), serves=True),) if run.server is not None else ()

    def plan(self, run: RunSpec, run_dir: RunDir, attempt: int, resume_step: int) -> tuple[Launch, ...]:
        del resume_step
        return (plan(run, run_dir, attempt),)

    def environment(self, role: str, run: RunSpec, run_dir: RunDir, attempt: int, host: Host) -> Needs:
        del role, run_dir, attempt
        return needs(host, find_version(python_of(run.server)) if run.server is not None else None)

    def watches(self, run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
        return create_watches(run, run_dir)

    def checkpoints(self, run: RunSpec, run_dir: RunDir) -> list[Checkpoint]:
        del run, run_dir
        return []


PROGRAM = Serving()


def create_watches(run: RunSpec, run_dir: RunDir) -> tuple[Watch, ...]:
    """The engine watch; none if the run has no server, or watch.engine is off."""
    answer = run.prime_train.watch.engine
    if answer == "off" or run.server is None:
        return ()
    log = run_dir.watches / "engine.log"
    url, model = base_url(run.server), run.server.requests_name
    return (EngineWatch(url, ROLE, answer=answer, model=model, log=log),)
