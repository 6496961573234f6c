"""The configs of a run, by its events and the texts that its supervisors kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import LaunchAsked, RunOpened
from prime_train.views.run.config_history import read_config_history
from tests.unit.views.written_runs import GONE, Timeline, write_run


def _opened(config: int, by: str = "ada@host") -> RunOpened:
    return RunOpened("small", GONE, 100, "0.1.0", config, by)


def _write(path: Path, texts: tuple[str, ...], timeline: Timeline) -> RunDir:
    run_dir = write_run(path, timeline)
    *earlier, last = texts
    for number, text in enumerate(earlier, start=1):
        run_dir.earlier_config(number).write_text(text)
    run_dir.config.write_text(last)
    return run_dir


def test_each_config_has_its_attempts_and_who_started_them(tmp_path: Path) -> None:
    timeline: Timeline = (
        (0.0, "supervisor", _opened(1)),
        (0.1, "supervisor", LaunchAsked(1, 0)),
        (0.2, "supervisor", LaunchAsked(2, 0)),
        (1.0, "supervisor", _opened(2, "eve@host")),
        (1.1, "supervisor", LaunchAsked(3, 0)),
        (2.0, "supervisor", _opened(2)),
        (2.1, "supervisor", LaunchAsked(4, 0)),
    )
    found = read_config_history(_write(tmp_path / "r", ("first", "second"), timeline))
    assert [(one.number, one.attempts, one.is_last) for one in found.configs] == [(1, (1, 2), False), (2, (3, 4), True)]
    assert [opening.by for opening in found.configs[1].openings] == ["eve@host", "ada@host"]
    assert [found.read(found.find_of_attempt(attempt))[0] for attempt in (2, 3)] == ["first", "second"]
    assert found.unknown == ()


def test_without_numbers_only_a_single_config_is_known(tmp_path: Path) -> None:
    timeline: Timeline = ((0.0, "supervisor", _opened(0, "")), (0.1, "supervisor", LaunchAsked(1, 0)))
    single = read_config_history(_write(tmp_path / "a", ("only",), timeline))
    assert single.find_of_attempt(1).number == 1
    several = read_config_history(_write(tmp_path / "b", ("first", "second"), timeline))
    assert several.unknown == (1,)
    with pytest.raises(UserError, match="config of attempt 1 is not known"):
        several.find_of_attempt(1)


def test_a_number_that_the_run_does_not_have_is_named(tmp_path: Path) -> None:
    timeline: Timeline = ((0.0, "supervisor", _opened(1)), (0.1, "supervisor", LaunchAsked(1, 0)))
    found = read_config_history(_write(tmp_path / "r", ("only",), timeline))
    with pytest.raises(UserError, match="no config 2"):
        found.find(2)
    with pytest.raises(UserError, match="no attempt 9"):
        found.find_of_attempt(9)


def test_a_text_that_is_a_link_or_is_gone_is_not_read(tmp_path: Path) -> None:
    run_dir = _write(tmp_path / "r", ("only",), ((0.0, "supervisor", _opened(1)),))
    run_dir.config.unlink()
    run_dir.config.symlink_to("/etc/passwd")
    found = read_config_history(run_dir)
    with pytest.raises(UserError) as refused:
        found.read(found.find(1))
    assert refused.value.exit_code == 4
    run_dir.config.unlink()
    with pytest.raises(UserError):
        found.read(found.find(1))
