"""The errors a user can act on, and the exit codes of the command line. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the command line and the trainer return to the shell. Documented in docs/exit-codes.md."""

    OK = 0
    FINDINGS = 1  # a config or a preflight check has findings at error level
    USAGE = 2  # the command line is wrong: a missing file, an unknown run, a run that is busy
    BUG = 3  # our own fault
    OUT_OF_REACH = 4  # a needed fact or service could not be had
    RUN_FAILED = 5  # the run failed and another try would fail the same way
    RETRIES_SPENT = 6  # the run failed, and attempts without progress are used up
    RESUMABLE = 75  # stopped with a complete checkpoint or nothing lost: the same command goes on


@dataclass(eq=False)
class UserError(Exception):
    """A failure whose cause lies outside our code, told in four parts: where, what, why, fix."""

    what: str
    where: str
    why: str
    fix: str
    exit_code: ExitCode = ExitCode.USAGE

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.why}); {self.fix}"
