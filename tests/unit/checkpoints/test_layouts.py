"""A save of any trainer that was cut at any moment is not complete, and does not keep the trainer from going on."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from prime_train.checkpoints import step_folders
from prime_train.checkpoints.aside import make_way
from prime_train.checkpoints.layout_table import read_layout
from prime_train.checkpoints.step_folders import FolderLayout, StepPlaces, layout_from
from prime_train.checkpoints.tracker import read_tracker
from prime_train.registry.trainers import trainer_profiles
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.written_saves import EARLIER, SAVES, STEP

_MOMENTS = 200
_TABLES = {str(table["name"]): table for profile in trainer_profiles().values() for table in profile.layouts}


def find_layout(name: str, ranks: int = 0) -> FolderLayout:
    return read_layout(_TABLES[name], ranks)


def complete_steps(places: StepPlaces) -> set[int]:
    return {one.step for one in step_folders.checkpoints(places.checkpoints, places.layout) if one.complete}


@pytest.mark.parametrize("name", SAVES)
def test_a_save_that_was_cut_is_not_complete_and_not_in_the_way(name: str, tmp_path: Path) -> None:
    chance, whole = random.Random(name), SAVES[name](STEP)
    form = find_layout(whole.layout, whole.ranks)
    places, how = StepPlaces(tmp_path, (tmp_path,), form), "tracker" if form.tracker else "rename"
    saves.write_whole(tmp_path, SAVES[name](EARLIER))
    assert complete_steps(places) == {EARLIER}
    for moment in range(_MOMENTS):
        before = set(tmp_path.rglob("*"))
        saves.cut(tmp_path, whole, chance)
        assert complete_steps(places) == {EARLIER}, f"moment {moment}"
        make_way(places, how)
        assert complete_steps(places) == {EARLIER}
        # What a trainer chooses: its tracker, or the highest number.
        chosen = max(step_folders.steps(places.checkpoints, form))
        if form.tracker is not None:
            chosen = next(filter(None, (read_tracker(one, form.tracker) for one in places.folders)), chosen)
        assert chosen == EARLIER or (form.tracker is not None and chosen == STEP)
        assert make_way(places, how) == ()
        remove_since(tmp_path, before)
    saves.write_whole(tmp_path, whole)
    assert complete_steps(places) == {EARLIER, STEP}


def remove_since(folder: Path, before: set[Path]) -> None:
    for path in sorted(set(folder.rglob("*")) - before, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("name", SAVES)
def test_a_save_that_lost_a_part_of_any_file_is_not_complete(name: str, tmp_path: Path) -> None:
    whole = SAVES[name](STEP)
    places = StepPlaces(tmp_path, (tmp_path / "out",), find_layout(whole.layout, whole.ranks))
    (tmp_path / "out").mkdir()
    saves.write_whole(tmp_path / "out", whole)
    assert complete_steps(places) == {STEP}
    for file in saves.truncations(tmp_path / "out", whole, random.Random(name), _MOMENTS):
        assert complete_steps(places) == set(), file
    assert complete_steps(places) == {STEP}


def test_every_layout_has_a_save_that_tests_it() -> None:
    tested = {SAVES[name](STEP).layout for name in SAVES} | {"nanogpt"}
    assert tested == set(_TABLES) - {"live"}


def test_a_layout_survives_the_way_into_a_child_process() -> None:
    for name in _TABLES:
        form = find_layout(name, 4)
        assert layout_from(json.loads(json.dumps(asdict(form)))) == form
