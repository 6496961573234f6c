"""A broken checkpoint is taken out of the way, and nothing is deleted or renamed that may be whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from prime_train.checkpoints import folder_layout, step_folders
from prime_train.checkpoints.aside import FOLDER, How, make_way, measure_aside, set_aside
from prime_train.checkpoints.step_folders import StepPlaces
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.test_layouts import find_layout
from tests.unit.checkpoints.written_saves import SAVES


def places_of(folder: Path, layout: str, ranks: int = 1) -> StepPlaces:
    return StepPlaces(folder, (folder,), find_layout(layout, ranks))


def break_newest(folder: Path, step: int) -> None:
    saves.write_whole(folder, SAVES["hf"](step))
    (folder / f"checkpoint-{step}" / "trainer_state.json").unlink()


def test_two_restarts_in_a_row_keep_both_broken_ones(tmp_path: Path) -> None:
    places = places_of(tmp_path, "hf")
    saves.write_whole(tmp_path, SAVES["hf"](10))
    for _ in range(2):
        break_newest(tmp_path, 20)
        (change,) = make_way(places, "rename")
        assert (change.step, change.problem) == (20, "no trainer_state.json: the save did not finish")
        assert make_way(places, "rename") == ()
    assert sorted(path.name for path in measure_aside(places)) == ["checkpoint-20.1", "checkpoint-20.2"]
    assert min(measure_aside(places).values()) > 0
    assert list(folder_layout.steps([tmp_path], places.layout)) == [10]


def test_a_broken_one_that_is_older_than_a_whole_one_stays(tmp_path: Path) -> None:
    break_newest(tmp_path, 10)
    saves.write_whole(tmp_path, SAVES["hf"](20))
    assert make_way(places_of(tmp_path, "hf"), "rename") == ()


def test_the_only_one_goes_when_it_is_broken(tmp_path: Path) -> None:
    break_newest(tmp_path, 10)
    assert [change.step for change in make_way(places_of(tmp_path, "hf"), "rename")] == [10]


@pytest.mark.parametrize("how", ["rename", "none"])
def test_a_whole_checkpoint_that_the_trainer_could_not_load_is_renamed(how: How, tmp_path: Path) -> None:
    for step in (10, 20):
        saves.write_whole(tmp_path, SAVES["hf"](step))
    changed = make_way(places_of(tmp_path, "hf"), how, {20})
    assert [(change.step, change.problem) for change in changed] == (
        [(20, "the trainer could not load it")] if how == "rename" else []
    )
    assert make_way(places_of(tmp_path, "hf"), how, {20, 10} if how == "none" else {20}) == ()


def test_a_tracker_names_the_one_before_what_could_not_be_loaded(tmp_path: Path) -> None:
    for step in (10, 20):
        saves.write_whole(tmp_path, SAVES["megatron-lm"](step))
    (change,) = make_way(places_of(tmp_path, "megatron-dist"), "tracker", {20})
    assert (change.step, change.tracked) == (20, 10)


def test_several_that_have_all_files_and_none_whole_show_another_layout(tmp_path: Path) -> None:
    for step in (10, 20):
        saves.write_whole(tmp_path, SAVES["hf"](step))
        (tmp_path / f"checkpoint-{step}" / "optimizer.pt").write_bytes(b"a format of its own")
    assert make_way(places_of(tmp_path, "hf"), "rename") == ()


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_not_broken(tmp_path: Path) -> None:
    saves.write_whole(tmp_path, SAVES["hf"](10))
    (tmp_path / "checkpoint-10" / "optimizer.pt").chmod(0)
    assert make_way(places_of(tmp_path, "hf"), "rename") == ()


def test_all_files_of_a_step_go_together(tmp_path: Path) -> None:
    saves.write_whole(tmp_path, SAVES["nanochat"](10))
    saves.write_whole(tmp_path, SAVES["nanochat"](20))
    (tmp_path / "optim_000020_rank1.pt").unlink()
    (change,) = make_way(places_of(tmp_path, "nanochat", 2), "rename")
    assert [path.name for path in change.paths] == ["meta_000020.json", "model_000020.pt", "optim_000020_rank0.pt"]
    assert len(list((tmp_path / FOLDER).iterdir())) == 3


def test_last_ckpt_goes_when_it_is_cut_although_its_step_is_not_known(tmp_path: Path) -> None:
    saves.write_whole(tmp_path, SAVES["lightning"](10))
    content = saves.zipped_step("global_step", 20)
    (tmp_path / "last.ckpt").write_bytes(content)
    places = places_of(tmp_path, "lightning")
    found = step_folders.find_newest_complete(places.checkpoints, places.layout)
    assert found is not None
    assert (found.step, found.path.name) == (20, "last.ckpt")
    (tmp_path / "last.ckpt").write_bytes(content[:-50])
    assert [change.paths[0].name for change in make_way(places, "rename")] == ["last.ckpt"]
    assert list(folder_layout.steps([tmp_path], places.layout)) == [10]


def test_a_file_of_another_program_with_a_known_name_stays(tmp_path: Path) -> None:
    (tmp_path / "ckpt.pt").write_bytes(saves.zipped_step("another_key", 5))
    places = places_of(tmp_path, "nanogpt")
    (found,) = step_folders.checkpoints(places.checkpoints, places.layout)
    assert "it does not say of which step it is" in found.problem
    assert make_way(places, "rename") == ()


def test_the_one_file_of_nanogpt_has_its_step_inside(tmp_path: Path) -> None:
    content = saves.zipped_step("iter_num", 250)
    for end in (*range(0, len(content), 97), len(content) - 1):
        (tmp_path / "ckpt.pt").write_bytes(content[:end])
        (found,) = step_folders.checkpoints([tmp_path], find_layout("nanogpt"))
        assert found.problem
    (tmp_path / "ckpt.pt").write_bytes(content)
    (found,) = step_folders.checkpoints([tmp_path], find_layout("nanogpt"))
    assert (found.step, found.problem) == (250, "")


# --- trackers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "20", "99", None])
def test_the_tracker_names_the_newest_whole_one(tmp_path: Path, text: str | None) -> None:
    saves.write_whole(tmp_path, SAVES["megatron-lm"](10))
    saves.write_whole(tmp_path, SAVES["megatron-lm"](20))
    (tmp_path / "iter_0000020" / "metadata.json").unlink()
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.unlink()
    if text is not None:
        tracker.write_text(text)
    assert len(make_way(places_of(tmp_path, "megatron-dist"), "tracker")) == 1
    assert tracker.read_text() == "10"
    assert make_way(places_of(tmp_path, "megatron-dist"), "tracker") == ()


@pytest.mark.parametrize("text", ["release", "10"])
def test_a_tracker_that_was_chosen_stays(tmp_path: Path, text: str) -> None:
    for step in (10, 20):
        saves.write_whole(tmp_path, SAVES["megatron-lm"](step))
    (tmp_path / "latest_checkpointed_iteration.txt").write_text(text)
    assert make_way(places_of(tmp_path, "megatron-dist"), "tracker") == ()


def test_latest_of_deepspeed_is_put_back_where_a_rank_did_not_save(tmp_path: Path) -> None:
    for step in (10, 20):
        saves.write_whole(tmp_path, SAVES["deepspeed"](step))
    (tmp_path / "global_step20" / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    make_way(places_of(tmp_path, "deepspeed", 2), "tracker")
    assert (tmp_path / "latest").read_text() == "global_step10"


# --- hostile ---------------------------------------------------------------------------------------


def test_a_link_in_the_place_of_the_folder_leads_nowhere(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / FOLDER).symlink_to(tmp_path / "elsewhere")
    (tmp_path / "out" / "checkpoint-1").mkdir()
    with pytest.raises(OSError, match="symbolic link"):
        set_aside(tmp_path / "out" / "checkpoint-1")
    assert (tmp_path / "out" / "checkpoint-1").is_dir()
