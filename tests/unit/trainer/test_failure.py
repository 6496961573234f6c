"""Every end of the trainer has a cause class, four parts and an exit code."""

from __future__ import annotations

import errno
import re

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException

from prime_train.core.errors import UserError
from prime_train.trainer.failure import cause_class, describe, disk_cause, show
from prime_train.trainer.rl.engines.engine import EngineError

BAD_CONFIG = UserError(what="no", where="model.path", why="because", fix="yes")


def after(error: Exception, cause: Exception) -> Exception:
    """`error` as raised while `cause` was handled."""
    error.__context__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "exit_code"),
    [
        (BAD_CONFIG, "config", 5),
        (OSError(errno.ENOSPC, "No space left on device"), "disk", 5),
        (after(RuntimeError("unexpected pos 704 vs 598"), OSError(errno.EFBIG, "File too large")), "disk", 5),
        (OSError(errno.EACCES, "Permission denied"), "env", 5),
        (MemoryError(), "oom", 1),
        (torch.OutOfMemoryError("CUDA out of memory"), "oom", 1),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), "oom", 1),
        (ModuleNotFoundError("No module named 'datasets'"), "env", 5),
        (RuntimeError("Failed to find C compiler. Please specify via CC environment variable."), "env", 5),
        (ZeroDivisionError("division by zero"), "unknown", 1),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_cause_class_and_exit_code(error: Exception, kind: str, exit_code: int) -> None:
    failed, code = describe(error, attempt=3, rank=1)
    assert (failed.cause_class, code) == (kind, exit_code)
    assert (failed.attempt, failed.rank) == (3, 1)
    assert all((failed.what, failed.why, failed.fix, failed.where))


def test_a_missing_compiler_is_reported_in_one_line_with_both_ways_out() -> None:
    said = "InvalidCxxCompiler: No working C++ compiler found\n\nSet TORCHDYNAMO_VERBOSE=1 for the stack trace"
    failed, code = describe(RuntimeError(said), 1, 0)
    assert (failed.cause_class, code) == ("env", 5)
    assert failed.what == "RuntimeError: InvalidCxxCompiler: No working C++ compiler found"
    assert failed.fix == "apt install g++, or model.compile = false"


def test_a_users_error_keeps_its_parts() -> None:
    failed, _ = describe(BAD_CONFIG, 1, 0)
    assert (failed.what, failed.where, failed.why, failed.fix) == ("no", "model.path", "because", "yes")


def test_a_users_error_over_a_full_disk_is_of_the_disk() -> None:
    assert cause_class(after(BAD_CONFIG, OSError(errno.EDQUOT, "Disk quota exceeded"))) == "disk"


def test_a_disk_error_of_another_rank_is_of_the_disk() -> None:
    full = CheckpointException("write", {1: (OSError(errno.ENOSPC, "No space left on device"), None)})  # type: ignore[dict-item]
    assert disk_cause(full) == "No space left on device"
    torn = RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 704 vs 598")
    assert disk_cause(CheckpointException("write", {1: (torn, None)})) == "a write was cut short"  # type: ignore[dict-item]


def test_a_folder_that_refuses_a_checkpoint_is_named() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "/runs/a/checkpoints/step_300")
    error = RuntimeError("step_300 could not be written")
    error.__cause__ = CheckpointException("write", {0: (denied, None)})  # type: ignore[dict-item]
    failed, code = describe(error, 1, 0)
    assert (failed.cause_class, code) == ("env", 5)
    assert failed.what == "PermissionError: [Errno 13] Permission denied: '/runs/a/checkpoints/step_300'"
    assert "chmod" in failed.fix


def test_a_circle_of_causes_ends() -> None:
    one, other = ValueError(), ValueError()
    one.__context__, other.__cause__ = other, one
    assert disk_cause(one) is None


def test_an_unknown_error_names_the_frame_of_ours() -> None:
    from prime_train.trainer.loops.after_step import is_due

    with pytest.raises(TypeError) as caught:
        is_due("1", 2)  # type: ignore[arg-type]
    failed, _ = describe(caught.value, 1, 0)
    assert re.fullmatch(r"trainer/loops/after_step\.py:\d+ in is_due", failed.where)


def test_a_failed_engine_names_the_log_with_the_first_error() -> None:
    failed, exit_code = describe(EngineError("http://127.0.0.1:8000/v1/completions: refused"), 3, 0)
    assert (failed.cause_class, exit_code) == ("unknown", 1)  # another attempt may succeed
    assert "attempts/003/inference.log" in failed.fix


def test_show_gives_a_traceback_only_where_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    show(UserError(what="no", where="model.path", why="because", fix="yes"))
    assert capsys.readouterr().err == "error: model.path: no (because); yes\n"
    show(ZeroDivisionError("division by zero"))
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().err
