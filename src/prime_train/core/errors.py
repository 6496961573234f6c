"""The errors that a user can fix, and the exit codes of the command line. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """The exit codes of the command line and the trainer. Documented in docs/exit-codes.md."""

    OK = 0
    FINDINGS = 1  # a config or a preflight check has findings at error level
    USAGE = 2  # wrong command line: a missing file, an unknown run, a busy run
    BUG = 3  # a bug in prime-train
    OUT_OF_REACH = 4  # a needed fact or service is not available
    RUN_FAILED = 5  # the run failed, and another attempt would fail in the same way
    RETRIES_SPENT = 6  # the run failed, and no attempt without progress is left
    RESUMABLE = 75  # stopped without losing progress: the same command continues the run


class UserError(Exception):
    """A failure with a cause outside of prime-train, in four parts: where, what, why, fix.

    `document` holds what is known so far, which a command with --json prints together with the error.
    """

    def __init__(self, what: str, where: str, why: str, fix: str, exit_code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(what, where, why, fix, exit_code)
        self.document: Mapping[str, Any] = {"version": 1}
        self.what, self.where, self.why, self.fix, self.exit_code = what, where, why, fix, exit_code

    def parts(self) -> dict[str, Any]:
        """The arguments of an equal error, for JSON and for another process."""
        return {"what": self.what, "where": self.where, "why": self.why, "fix": self.fix, "exit_code": self.exit_code}

    def __str__(self) -> str:
        return f"{self.where}: {self.what} ({self.why}); {self.fix}"
