"""A plan is written once; a file that is none is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prime_train.core.plans import ChangePlan, list_versions, plan_path, read_plan, read_plans, write_plan

PLAN = ChangePlan(
    version=1, values={"optim.lr": 0.1}, before={"optim.lr": 0.2}, config={"optim.lr": 0.2}, by="a@b", id="x"
)


def test_a_plan_is_read_as_it_was_written_and_never_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "settings"
    assert list_versions(folder) == []
    write_plan(folder, PLAN)
    assert read_plan(folder, 1) == PLAN
    assert list_versions(folder) == [1]
    with pytest.raises(FileExistsError):
        write_plan(folder, PLAN)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"version": 2, "values": {}, "before": {}},
        {"version": 1, "values": [], "before": {}},
        {"version": 1, "values": {}, "before": {}, "more": 1},
        {"version": 1, "values": {str(n): n for n in range(65)}, "before": {}},
        {"version": 1, "values": {}, "before": {}, "by": 7},
    ],
)
def test_a_file_that_is_no_plan_of_its_version_is_refused(tmp_path: Path, content: object) -> None:
    plan_path(tmp_path, 1).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="plan"):
        read_plan(tmp_path, 1)
    write_plan(tmp_path, ChangePlan(version=2, values={"optim.lr": 1.0}, before={}))
    assert [plan.version for plan in read_plans(tmp_path)] == [2]


def test_a_link_is_no_plan(tmp_path: Path) -> None:
    write_plan(tmp_path / "other", PLAN)
    plan_path(tmp_path, 1).symlink_to(plan_path(tmp_path / "other", 1))
    with pytest.raises(OSError, match="link"):
        read_plan(tmp_path, 1)
