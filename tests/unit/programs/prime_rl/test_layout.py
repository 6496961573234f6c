"""A checkpoint of prime-rl is whole when its trainer and its orchestrator have both finished, in any generation."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from prime_train.checkpoints import in_use, layout, removal
from prime_train.checkpoints.cleanup import QUIET_S, Keep, list_deletable
from prime_train.checkpoints.step_folders import StepPlaces, checkpoints, places_from
from prime_train.checkpoints.stock import Stock
from prime_train.programs.prime_rl.run_directory import locate_places as places_of
from tests.fakes.prime_rl_launcher.standin import metadata

METADATA = metadata({"__0_0.distcp": 1000})
GENERATIONS = ("2026-01", "2026-05", "2026-08")


def write(path: Path, size_bytes: int = 10) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(size_bytes))


def orchestrators(root: Path, generation: str) -> Path:
    """Below what the orchestrator writes: one run directory in 2026-08, run_default before."""
    return root if generation == "2026-08" else root / "run_default"


def write_checkpoint(
    root: Path, generation: str, step: int, *, trainer: bool = True, orchestrator: bool = True
) -> None:
    folder = root / "checkpoints" / f"step_{step}" / "trainer"
    write(folder / "__0_0.distcp", 1000)
    if trainer:
        (folder / ".metadata").write_bytes(METADATA)
    if orchestrator:
        write(orchestrators(root, generation) / "checkpoints" / f"step_{step}" / "orchestrator" / "progress.pt")


def write_broadcast(root: Path, generation: str, step: int, *, stable: bool = True) -> None:
    folder = orchestrators(root, generation) / "broadcasts" / f"step_{step}"
    write(folder / "model.safetensors", 500)
    if stable:
        write(folder / "STABLE", 0)


def write_rollouts(root: Path, generation: str, step: int) -> None:
    write(orchestrators(root, generation) / "rollouts" / f"step_{step}" / "train" / "all" / "traces.jsonl", 300)


def places(root: Path) -> StepPlaces:
    return places_of(root, orchestrated=True)


def newest_complete(root: Path, checkpoint_dir: Path | None = None, *, orchestrated: bool = True) -> int | None:
    found = places_of(root, checkpoint_dir, orchestrated=orchestrated)
    return next((one.step for one in checkpoints(found.checkpoints, found.layout) if one.complete), None)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_newest_whole_one_is_found(tmp_path: Path, generation: str) -> None:
    assert newest_complete(tmp_path) is None
    write_checkpoint(tmp_path, generation, 9)
    write_checkpoint(tmp_path, generation, 10)
    write_checkpoint(tmp_path, generation, 20, orchestrator=False)
    write_checkpoint(tmp_path, generation, 30, trainer=False)
    assert newest_complete(tmp_path) == 10
    assert newest_complete(tmp_path, orchestrated=False) == 20


def test_an_empty_file_completes_nothing(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "2026-08", 10)
    write(tmp_path / "checkpoints/step_10/orchestrator/progress.pt", 0)
    assert newest_complete(tmp_path) is None


def test_checkpoints_elsewhere_are_found(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "fast", "2026-08", 10)
    assert newest_complete(tmp_path / "run", tmp_path / "fast") == 10
    assert newest_complete(tmp_path / "run", tmp_path / "fast" / "checkpoints") == 10


@pytest.mark.parametrize("generation", GENERATIONS)
def test_stock_is_taken_of_every_layout(tmp_path: Path, generation: str) -> None:
    for step in (10, 20):
        write_checkpoint(tmp_path, generation, step)
    write_checkpoint(tmp_path, generation, 30, trainer=False)
    for step in (19, 20, 21, 22):
        write_broadcast(tmp_path, generation, step, stable=step != 22)
    for step in (5, 19, 20, 21, 22, 23):
        write_rollouts(tmp_path, generation, step)
    (tmp_path / "checkpoints" / "step_10" / layout.PIN).touch()
    items = Stock(places(tmp_path)).take(time.time())
    assert [(one.kind, one.step, one.complete, one.pinned) for one in items if one.kind == "checkpoint"] == [
        ("checkpoint", 10, True, True),
        ("checkpoint", 20, True, False),
        ("checkpoint", 30, False, False),
    ]
    assert items[1].size_bytes == 1010 + len(METADATA)
    assert [(one.step, one.complete) for one in items if one.kind == "broadcast"] == [
        (19, True),
        (20, True),
        (21, True),
        (22, False),
    ]
    later_s = time.time() + 2 * QUIET_S
    gone = [(one.item.kind, one.item.step) for one in list_deletable(items, Keep(keep_last=1), later_s)]
    assert gone == [("broadcast", 19), ("rollouts", 5), ("rollouts", 19)]


def test_both_parts_of_an_earlier_generation_go_together(tmp_path: Path) -> None:
    for step in (10, 20):
        write_checkpoint(tmp_path, "2026-05", step)
    [gone] = list_deletable(Stock(places(tmp_path)).take(time.time()), Keep(keep_last=1), time.time())
    assert [str(path.relative_to(tmp_path)) for path in gone.item.paths] == [
        "checkpoints/step_10",
        "run_default/checkpoints/step_10",
    ]
    assert removal.remove_unless(gone.item.paths, lambda _: "") == ""
    assert not any(path.exists() for path in gone.item.paths)
    assert newest_complete(tmp_path) == 20


def test_a_deletion_that_was_not_decided_is_taken_back_and_one_that_was_is_left_over(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, "2026-05", 10)
    at = places(tmp_path)
    folders = Stock(at).take(time.time())[0].paths

    def killed(_asides: object) -> str:
        raise KeyboardInterrupt

    for path in folders:
        path.rename(path.with_name(f"{removal.ASIDE}{path.name}.7"))
    assert Stock(at).take(time.time()) == []
    for root in at.folders:
        removal.put_back(root)
    assert newest_complete(tmp_path) == 10
    with pytest.raises(KeyboardInterrupt):
        removal.remove_unless(folders, killed)
    assert newest_complete(tmp_path) == 10

    aside = folders[0].with_name(f"{removal.ASIDE}step_10.7")
    folders[0].rename(aside)
    (aside / "trainer" / ".metadata").unlink()
    left = [one for one in Stock(at).take(time.time()) if one.kind == "leftover"]
    assert [one.paths for one in left] == [(aside,)]
    assert removal.put_back(aside.parent) == []


def test_places_survive_the_way_into_the_child(tmp_path: Path) -> None:
    for at in (places(tmp_path), StepPlaces(tmp_path, (tmp_path / "checkpoints",))):
        assert places_from(at.as_json()) == at


def test_whole_folders_are_walked_again_only_when_their_marker_changes(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step_5"
    write(folder / "deep" / "0.distcp", 10)
    write(folder / ".metadata", 10)
    layout.write_manifest(folder, 5)
    stock = Stock(StepPlaces(tmp_path, (tmp_path / "checkpoints",)))
    now_s = time.time()
    size_bytes = stock.take(now_s)[0].size_bytes
    write(folder / "deep" / "unnamed", 7)
    assert stock.take(now_s + 1)[0].size_bytes == size_bytes
    assert stock.take(now_s + 1000)[0].size_bytes == size_bytes + 7
    write(folder / "deep" / "unnamed", 9)
    layout.write_manifest(folder, 5)
    assert stock.take(now_s + 1001)[0].size_bytes > size_bytes + 7


# --- who uses a folder -----------------------------------------------------------------------------


def test_a_mark_counts_as_long_as_its_process(tmp_path: Path) -> None:
    assert in_use.marked_by(tmp_path) == ""
    with in_use.using(tmp_path):
        assert in_use.marked_by(tmp_path).startswith(f"process {os.getpid()} on ")
    assert list(tmp_path.iterdir()) == []
    assert in_use.marked_by(tmp_path / "missing") == ""


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("OWN", "process OWN on "),
        ("OWN:1", ""),  # another process had this pid
        ("4194305", ""),  # above the highest pid there can be
        ("12:34 somewhere-else", "process 12 on somewhere-else"),
        ("", "the process that wrote IN_USE.sync"),
        ("rclone", "the process that wrote IN_USE.sync"),
    ],
)
def test_marks_of_others(tmp_path: Path, text: str, user: str) -> None:
    own = str(os.getpid())  # not among the parameters: workers that share the tests must know them by the same names
    (tmp_path / "IN_USE.sync").write_text(text.replace("OWN", own))
    found = in_use.marked_by(tmp_path)
    assert found.startswith(user.replace("OWN", own)) if user else found == ""
