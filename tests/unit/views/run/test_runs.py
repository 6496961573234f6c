from pathlib import Path

import pytest

from prime_train.core.errors import UserError
from prime_train.views.run import runs
from tests.unit.views.written_runs import WHOLE_LIFE, write_run


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    made = write_run(tmp_path / "runs" / "small", WHOLE_LIFE)
    assert runs.find("small", tmp_path) == made
    assert runs.find("runs/small", tmp_path) == made
    assert runs.find(str(made.path), Path("/")) == made
    assert runs.run_names(tmp_path) == ["small"]


def test_an_unknown_run_names_the_nearest_and_lists_what_there_is(tmp_path: Path) -> None:
    for name in ("small", "large"):
        write_run(tmp_path / "runs" / name, WHOLE_LIFE)
    (tmp_path / "runs" / "notes").mkdir()
    with pytest.raises(UserError) as caught:
        runs.find("smal", tmp_path)
    assert "large, small" in caught.value.why
    assert "notes" not in caught.value.why
    assert caught.value.fix == "did you mean small?"


def test_without_a_run_the_message_names_the_searched_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        runs.find("small", tmp_path)
    assert str(tmp_path / "runs") in caught.value.why
    assert runs.run_names(tmp_path) == []
