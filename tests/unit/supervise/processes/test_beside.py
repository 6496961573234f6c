from __future__ import annotations

from pathlib import Path

from prime_train.supervise.processes.beside import hold_alone


def test_one_process_of_a_kind_holds_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "made" / "agent.lock"
    with hold_alone(path, 0.0) as is_first, hold_alone(path, 0.0) as is_second:
        assert (is_first, is_second) == (True, False)
    with hold_alone(path, 0.0) as is_alone:
        assert is_alone
    assert path.stat().st_mode & 0o077 == 0
