"""What a person's command is judged by, and how it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.core.state import State
from prime_train.supervise.launch.program import Program

ListGpus = Callable[[], tuple[tuple[str, str], ...]]  # number and UUID of each GPU of the run


class CommandScene(NamedTuple):
    """What the commands are judged by."""

    state: State
    run: RunSpec
    run_dir: RunDir
    program: Program
    list_gpus: ListGpus = tuple

    @property
    def name(self) -> str:
        return self.run_dir.path.name


class CommandRefusal(Exception):
    """The command is not carried out."""

    def __init__(self, what: str, why: str, fix: str) -> None:
        super().__init__(what)
        self.what, self.why, self.fix = what, why, fix
