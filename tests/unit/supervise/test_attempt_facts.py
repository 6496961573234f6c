from __future__ import annotations

from pathlib import Path

from prime_train.supervise.core.attempt_end import count_oom_kills, measure_free_bytes, read_tail


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
