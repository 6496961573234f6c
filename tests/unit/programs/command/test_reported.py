"""Where a script with `prime_train.live` saves is learned from what it reports, and nothing else is a checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from prime_train import live
from prime_train.checkpoints.step_folders import checkpoints
from prime_train.core.rundir import RunDir
from prime_train.programs.command.live_lines import LiveLine
from prime_train.programs.command.reported import find_place, find_printed_folder, keep_reported, read_reported
from tests.unit.checkpoints.test_layouts import find_layout


def save(path: Path, step: int, *, is_file: bool) -> None:
    path.parent.mkdir(exist_ok=True)
    if not is_file:
        path.mkdir()
    (path if is_file else path / "state.pt").write_bytes(b"12345")
    live.checkpoint(path, step)


@pytest.mark.parametrize(("name", "is_file"), [("step_{}", False), ("run2-{}.pt", True), ("ckpt{}x", False)])
def test_every_checkpoint_named_as_the_reported_one_is_found(name: str, is_file: bool, tmp_path: Path) -> None:
    out, run_dir = tmp_path / "out", RunDir(tmp_path / "run")
    run_dir.path.mkdir()
    for step in (3, 6):
        save(out / name.format(step), step, is_file=is_file)
    (out / "notes_9").mkdir()
    keep_reported(run_dir, LiveLine(0, 1.0, 6, checkpoint=str(out / name.format(6)), of_step=6))
    place = read_reported(run_dir)
    assert place is not None
    assert place.layout is not None
    found = checkpoints([place.folder], place.layout)
    assert [(saved.step, saved.complete) for saved in found] == [(6, True), (3, True)]
    # The newest one gets another name when a person goes back: the place stays known.
    (out / name.format(6)).rename(out / "aside")
    assert read_reported(run_dir) == place


@pytest.mark.parametrize("is_file", [False, True])
def test_a_cut_file_and_another_step_are_not_complete(is_file: bool, tmp_path: Path) -> None:
    for step in (3, 6):
        save(tmp_path / "out" / f"s{step}.pt", step, is_file=is_file)
    place = find_place(tmp_path / "out" / "s3.pt", 3, is_folder=not is_file)
    assert place is not None
    assert place.layout is not None
    cut = tmp_path / "out" / "s6.pt"
    (cut if is_file else cut / "state.pt").write_bytes(b"12")
    found = checkpoints([place.folder], place.layout)
    assert [saved.complete for saved in found] == [False, True]


@pytest.mark.parametrize(
    ("layout", "path", "step", "folder"),
    [
        ("hf", "/x/out/checkpoint-500", 500, "/x/out"),
        ("megatron-dist", "/ckpt", 500, "/ckpt"),
        ("orbax", "/ckpt/100", None, "/ckpt"),
        ("verl", "/x/latest_checkpointed_iteration.txt", None, None),  # no step, and not the name of one
        ("openrlhf", "/x/global_step5", 5, None),  # each step has parts in folders of their own
    ],
)
def test_the_folder_is_read_from_a_line_about_a_save(
    layout: str, path: str, step: int | None, folder: str | None
) -> None:
    found = find_printed_folder(Path(path), step, [find_layout(layout)])
    assert found == (None if folder is None else Path(folder))


def test_a_name_without_the_step_has_no_place(tmp_path: Path) -> None:
    assert find_place(tmp_path / "last.pt", 3, is_folder=False) is None
    assert find_place(tmp_path / "epoch4.pt", 3, is_folder=False) is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"checkpoint": 3, "step": "x"}', '{"checkpoint": null}', "\x00"])
def test_a_damaged_record_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "reported_checkpoint.json").write_text(text)
    assert read_reported(RunDir(tmp_path)) is None


def test_a_relative_path_is_not_kept(tmp_path: Path) -> None:
    keep_reported(RunDir(tmp_path), LiveLine(0, 1.0, 6, checkpoint="out/step_6", of_step=6))
    assert read_reported(RunDir(tmp_path)) is None
