from __future__ import annotations

from pathlib import Path

from prime_train.supervise.core.attempt_end import count_oom_kills, is_disk_full, read_tail


def test_the_tail_of_a_long_log_is_read_and_a_missing_one_is_empty(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_bytes(b"\xff" * 1_000_000 + b"\nthe end\n")
    assert read_tail(log).endswith("the end\n")
    assert len(read_tail(log)) <= 256 * 1024
    assert read_tail(tmp_path / "none") == ""


def test_the_kernels_count_is_a_number() -> None:
    assert count_oom_kills() >= 0


def test_a_disk_that_does_not_exist_is_not_full(tmp_path: Path) -> None:
    assert not is_disk_full(tmp_path / "is not there")
