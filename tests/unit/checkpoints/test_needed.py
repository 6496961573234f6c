"""Retention leaves what another trainer needs, and finds what a kill left in the folder for temporary files."""

from __future__ import annotations

import json
import os
from pathlib import Path

from prime_train.checkpoints.cleanup import Keep, list_deletable
from prime_train.checkpoints.leftovers import find_leftovers
from prime_train.checkpoints.removal import remove_unless
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.checkpoints.stock import Stock
from tests.unit.checkpoints import written_saves as saves
from tests.unit.checkpoints.test_layouts import find_layout
from tests.unit.checkpoints.written_saves import SAVES

_LATER_S = 1e10


def deletable(folder: Path, layout: str, keep_last: int | None = 1, ranks: int = 1) -> list[int]:
    stock = Stock(StepPlaces(folder, (folder,), find_layout(layout, ranks)))
    items = stock.take(_LATER_S)
    found = list_deletable(items, Keep(keep_last, least_whole=2), _LATER_S)
    return sorted(one.item.step for one in found)


def test_the_newest_two_whole_ones_and_the_best_stay(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40, 50):
        saves.write_whole(tmp_path, SAVES["hf"](step))
    (tmp_path / "checkpoint-50" / "optimizer.pt").unlink()  # it is whole without, as with save_only_model
    (tmp_path / "checkpoint-40" / "trainer_state.json").unlink()
    state = tmp_path / "checkpoint-50" / "trainer_state.json"
    state.write_text(json.dumps({"global_step": 50, "best_model_checkpoint": "elsewhere/out/checkpoint-10"}))
    # 40 did not finish, and 50 is newer and complete.
    assert deletable(tmp_path, "hf") == [20, 40]
    assert deletable(tmp_path, "hf", None) == [20, 40]


def test_what_a_tracker_names_stays(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        saves.write_whole(tmp_path, SAVES["megatron-lm"](step))
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    tracker.write_text("10")
    assert deletable(tmp_path, "megatron-dist") == [20]
    tracker.unlink()
    os.mkfifo(tracker)  # nobody knows what it would name
    assert deletable(tmp_path, "megatron-dist") == []


def test_what_a_link_leads_to_stays(tmp_path: Path) -> None:
    for step in (10, 20, 30, 40):
        saves.write_whole(tmp_path, SAVES["nemo-automodel"](step))
    (tmp_path / "LOWEST_VAL").symlink_to("epoch_0_step_10")
    (tmp_path / "LATEST").symlink_to(tmp_path / "epoch_0_step_40")
    (tmp_path / "elsewhere").symlink_to("/nowhere/epoch_0_step_20")
    assert deletable(tmp_path, "nemo-automodel", ranks=2) == [20]


def test_a_checkpoint_of_one_file_is_measured_and_deleted(tmp_path: Path) -> None:
    for step in (10, 20, 30):
        saves.write_whole(tmp_path, SAVES["lightning"](step))
    items = Stock(StepPlaces(tmp_path, (tmp_path,), find_layout("lightning"))).take(_LATER_S)
    assert all(item.complete and item.size_bytes > 1000 for item in items)
    assert deletable(tmp_path, "lightning") == [10]
    path = tmp_path / "epoch=0-step=10.ckpt"
    assert remove_unless([path], lambda _: "it is needed again") == "it is needed again"
    assert path.is_file()
    assert remove_unless([path], lambda _: "") == ""
    assert sorted(one.name for one in tmp_path.iterdir()) == ["epoch=0-step=20.ckpt", "epoch=0-step=30.ckpt"]


def test_only_own_files_of_torch_with_the_name_are_leftovers(tmp_path: Path) -> None:
    (tmp_path / "tmp58s74l8h").write_bytes(saves.zipped()[:200])
    (tmp_path / "tmpaaaaaaaa").write_bytes(b"another program's")
    (tmp_path / "tmp58s74l8hx").write_bytes(saves.zipped())
    (tmp_path / "tmpbbbbbbbb").symlink_to(tmp_path / "tmp58s74l8h")
    (tmp_path / "tmpcccccccc").mkdir()
    os.mkfifo(tmp_path / "tmpdddddddd")
    assert [one.path.name for one in find_leftovers(tmp_path, ("tmp????????",))] == ["tmp58s74l8h"]
    assert find_leftovers(tmp_path / "missing", ("tmp????????",)) == []
