from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path

from prime_train.supervise.core.attempt_end import (
    count_oom_kills,
    measure_free_bytes,
    read_tail,
    reconsider_full_disk,
)
from prime_train.supervise.core.policy import Policy
from prime_train.supervise.core.state import State
from prime_train.supervise.evidence.diagnose import EndCause


def test_the_tail_of_a_long_log_is_read_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_bytes(b"\xff" * 1_000_000 + b"\nthe end\n")
    assert read_tail(log).endswith("the end\n")
    assert len(read_tail(log)) <= 256 * 1024
    assert read_tail(tmp_path / "none") == ""


def test_the_kernels_count_is_a_number() -> None:
    assert count_oom_kills() >= 0


def test_the_room_on_a_disk_that_does_not_exist_is_not_known(tmp_path: Path) -> None:
    assert measure_free_bytes(tmp_path / "is not there") is None
    assert measure_free_bytes(tmp_path) is not None


def test_a_disk_that_has_room_again_is_tried_again_and_nothing_else_is(tmp_path: Path) -> None:
    policy, full = Policy(), os.strerror(errno.ENOSPC)

    def is_retried(what: str, where: str = "core/rundir.py:140 in write_all", policy: Policy = policy) -> bool:
        cause = EndCause("failed", "disk", what, "why", "fix", where)
        return reconsider_full_disk(cause, State(), policy).retry == "yes"

    assert is_retried(f"OSError: [Errno 28] {full}: '{tmp_path / 'metrics.jsonl'}'")
    assert not is_retried(f"OSError: [Errno 28] {full}")  # of a disk that is not known
    assert is_retried(f"checkpoint step_4 could not be written: {full}", str(tmp_path / "checkpoints" / "step_4"))
    assert not is_retried(f"OSError: [Errno 28] {full}: '/no-disk/of-this/machine/7'")
    assert not is_retried(f"OSError: [Errno 122] {os.strerror(errno.EDQUOT)}")
    assert not is_retried(f"OSError: [Errno 28] {full}", policy=replace(policy, reports=False))
