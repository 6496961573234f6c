"""A save of any trainer that was cut at any moment is not complete, and does not keep the trainer from going on."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import pytest

from prime_train.checkpoints import folder_layout, step_folders
from prime_train.checkpoints.aside import How, make_way
from prime_train.checkpoints.folder_layout import FolderLayout, layout_from
from prime_train.checkpoints.layout_table import read_layout
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.tracker import read_tracker
from prime_train.registry.trainers import trainer_profiles
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.written_saves import EARLIER, SAVES, STEP

MOMENTS = 25  # bench/layout_cuts.py has 200
_TABLES = {str(table["name"]): table for profile in trainer_profiles().values() for table in profile.layouts}


def find_layout(name: str, ranks: int = 0) -> FolderLayout:
    return read_layout(_TABLES[name], ranks)


def complete_steps(places: StepPlaces) -> set[int]:
    return {one.step for one in step_folders.checkpoints(places.checkpoints, places.layout) if one.complete}


@pytest.mark.parametrize("name", SAVES)
def test_a_save_that_was_cut_is_not_complete_and_not_in_the_way(name: str, tmp_path: Path) -> None:
    check_cuts(name, tmp_path, MOMENTS)


def check_cuts(name: str, folder: Path, moments: int) -> None:
    chance, whole = random.Random(name), SAVES[name](STEP)
    form = find_layout(whole.layout, whole.ranks)
    how: How = "rename" if form.tracker is None else "tracker"
    places = StepPlaces(folder, (folder,), form)
    saves.write_whole(folder, SAVES[name](EARLIER))
    assert complete_steps(places) == {EARLIER}
    for moment in range(moments):
        before = set(folder.rglob("*"))
        saves.cut(folder, whole, chance)
        assert complete_steps(places) == {EARLIER}, f"moment {moment}"
        make_way(places, how)
        assert complete_steps(places) == {EARLIER}
        assert choose_as_trainer(places) in (EARLIER, STEP if how == "tracker" else EARLIER)
        assert make_way(places, how) == ()
        remove_since(folder, before)
    saves.write_whole(folder, whole)
    assert complete_steps(places) == {EARLIER, STEP}


def choose_as_trainer(places: StepPlaces) -> int:
    """The highest number, or what the tracker names."""
    tracker = places.layout.tracker
    named = [] if tracker is None else [read_tracker(root, tracker) for root in places.folders]
    found = [step for step in named if step is not None]
    return found[0] if found else max(folder_layout.steps(places.checkpoints, places.layout))


def remove_since(folder: Path, before: set[Path]) -> None:
    for path in sorted(set(folder.rglob("*")) - before, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@pytest.mark.parametrize("name", SAVES)
def test_a_save_that_lost_a_part_of_any_file_is_not_complete(name: str, tmp_path: Path) -> None:
    check_truncations(name, tmp_path, MOMENTS)


def check_truncations(name: str, folder: Path, times: int) -> None:
    whole = SAVES[name](STEP)
    places = StepPlaces(folder, (folder,), find_layout(whole.layout, whole.ranks))
    saves.write_whole(folder, whole)
    assert complete_steps(places) == {STEP}
    for file in saves.truncations(folder, whole, random.Random(name), times):
        assert complete_steps(places) == set(), file
    assert complete_steps(places) == {STEP}


# torchtitan's last step has another form than those before it, and none follows it.
@pytest.mark.parametrize("name", sorted(SAVES.keys() - {"torchtitan, last step"}))
def test_what_a_deletion_left_when_it_was_cut_is_not_complete(name: str, tmp_path: Path) -> None:
    chance, older, newer = random.Random(name), SAVES[name](EARLIER), SAVES[name](STEP)
    places = StepPlaces(tmp_path, (tmp_path,), find_layout(older.layout, older.ranks))
    names = [one for one in saves.list_written(older) if not one.endswith(older.unproven or ("?",))]
    names = [one for one in names if str(EARLIER) in one]  # not a tracker, which is of all steps
    for _ in range(MOMENTS):
        remove_since(tmp_path, set())
        saves.write_whole(tmp_path, older)
        saves.write_whole(tmp_path, newer)
        for gone in chance.sample(names, chance.randint(1, len(names))):
            (tmp_path / gone).unlink()
        assert complete_steps(places) == {STEP}


def test_every_layout_has_a_save_that_tests_it() -> None:
    tested = {SAVES[name](STEP).layout for name in SAVES} | {"nanogpt"}
    assert tested == set(_TABLES)


def test_a_layout_survives_the_way_into_a_child_process() -> None:
    for name in _TABLES:
        form = find_layout(name, 4)
        assert layout_from(json.loads(json.dumps(asdict(form)))) == form
