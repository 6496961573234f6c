"""Converts the exception that ended the trainer to a TrainerFailed event and an exit code. Handles nothing else."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

from prime_train.core.errors import UNWRITABLE, ExitCode, UserError, explain_disk_error
from prime_train.core.installation import install_command
from prime_train.events import TrainerFailed

_DISK = UNWRITABLE - {errno.EIO}  # an input/output error may be that of a GPU or a socket
_CRASHED = 1
_DEEPEST = 10  # causes of causes; a longer chain is circular


def first_line(error: BaseException) -> str:
    """The first line of an error's text, at most 300 characters; its class where it has no text."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def disk_cause(error: BaseException) -> str | None:
    """What kept the disk from writing, also on another rank, whose errors DCP has in `failures`; None if nothing."""
    if number := disk_errno(error):
        return os.strerror(number)
    cut_short = any(isinstance(found, RuntimeError) and "inline_container" in str(found) for found in _chain(error))
    return "a write was cut short" if cut_short else None


def disk_errno(error: BaseException) -> int:
    """The errno of the write that caused an error; 0 where it is not known."""
    found = (one.errno for one in _chain(error) if isinstance(one, OSError) and one.errno in _DISK)
    return next((number for number in found if number is not None), 0)


def _explain_disk(error: BaseException) -> tuple[str, str]:
    """Why a write failed, and what to do."""
    number = disk_errno(error)
    if number == 0:
        return "the disk cannot be written", "free space on that disk; the same command resumes"
    written = next((one.filename for one in _chain(error) if isinstance(one, OSError) and one.errno == number), None)
    problem = explain_disk_error(number, Path(written).parent if isinstance(written, str) else Path.cwd())
    return f"{problem.what}: {problem.why}", f"{problem.fix}; the same command resumes"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        waiting += [current.__cause__, current.__context__]
        failures = getattr(current, "failures", None)  # torch.distributed.checkpoint.CheckpointException
        if isinstance(failures, dict):
            waiting += [failed[0] for failed in failures.values()]


def find_reason(error: BaseException) -> BaseException:
    """The first error that DCP collected from a rank, where there is one; else the error itself."""
    for found in _chain(error):
        failures = getattr(found, "failures", None)
        if isinstance(failures, dict) and failures:
            return next(iter(failures.values()))[0]  # type: ignore[no-any-return]
    return error


def cause_class(error: BaseException) -> str:
    """ "disk", "oom", "env", "config" or "unknown"; the supervisor's decision depends on it."""
    if disk_cause(error):
        return "disk"
    if any(isinstance(found, MemoryError) or _is_torch_out_of_memory(found) for found in _chain(error)):
        return "oom"
    if _denied(error) or _lacks_compiler(error) or any(isinstance(e, ModuleNotFoundError) for e in _chain(error)):
        return "env"
    return "config" if isinstance(error, UserError) else "unknown"


def _denied(error: BaseException) -> PermissionError | None:
    """The PermissionError that is or caused an error, also one that DCP collected from a rank; None without one."""
    for _ in range(_DEEPEST):
        error = error.__cause__ or error
    failures = getattr(error, "failures", None)
    found = [failed[0] for failed in failures.values()] if isinstance(failures, dict) else [error]
    return next((one for one in found if isinstance(one, PermissionError)), None)


def _lacks_compiler(error: BaseException) -> bool:
    """Whether torch.compile found no compiler. Source: torch/_inductor/exc.py (2.13), triton/runtime/build.py (3.9)."""
    texts = ("InvalidCxxCompiler", "Failed to find C compiler")
    return any(text in f"{type(found).__name__}: {found}" for found in _chain(error) for text in texts)


def _is_torch_out_of_memory(error: BaseException) -> bool:
    # By name, because torch may be missing. On a CPU torch's allocator raises a plain RuntimeError.
    return type(error).__name__ == "OutOfMemoryError" or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator: can't allocate memory" in str(error)
    )


def describe(error: BaseException, attempt: int, rank: int) -> tuple[TrainerFailed, int]:
    """The event and the exit code: 5 for a failure that would come again, 1 for any other."""
    kind = cause_class(error)
    if isinstance(error, UserError):
        failed = TrainerFailed(attempt, rank, kind, error.what, error.why, error.fix, error.where)
        return failed, ExitCode.RUN_FAILED
    match kind:
        case "disk":
            why, fix = _explain_disk(error)
        case "oom":
            why = "the memory is full"
            fix = 'prime_train.recovery.on_oom = "shrink" retries with less memory; a new run: lower batch.micro_batch'
        case "env" if denied := _denied(error):
            error = denied.with_traceback(error.__traceback__)
            why, fix = "the path is another user's, or may not be written", "ls -ld PATH; then chown or chmod it"
        case "env" if _lacks_compiler(error):
            why, fix = "torch.compile builds its kernels with a compiler", "apt install g++, or model.compile = false"
        case "env":
            why, fix = "the environment lacks a package", install_command("train")
        case _ if type(error).__name__ == "EngineError":  # by name, because its module imports torch
            why = "without its engine the trainer has no rollouts"
            fix = f"the first error is in attempts/{attempt:03d}/inference.log if vLLM generates, else in the traceback"
        case _:
            why, fix = "an error that the trainer does not know", f"read the traceback in attempts/{attempt:03d}"
    message = next(iter(str(error).strip().splitlines()), "")  # the rest of a long message is in the log
    failed = TrainerFailed(attempt, rank, kind, f"{type(error).__name__}: {message}", why, fix, _where(error))
    return failed, ExitCode.RUN_FAILED if kind in ("disk", "env") else _CRASHED


def show(error: BaseException) -> None:
    """Print the traceback, or for a UserError its four parts, on stderr."""
    if isinstance(error, UserError):
        sys.stderr.write(f"error: {error}\n")
    else:
        traceback.print_exception(error, file=sys.stderr)


def _where(error: BaseException) -> str:
    """The innermost frame in prime_train: "trainer/loops/step.py:70 in train_step"."""
    package = Path(__file__).resolve().parents[1]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(package):
            return f"{path.relative_to(package)}:{frame.lineno} in {frame.name}"
    return "outside prime-train"
