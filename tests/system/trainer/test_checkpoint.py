"""Saves run beside the training, one at a time, and a failed one costs nothing that was complete."""

from __future__ import annotations

import errno
import json
import resource
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointDeleted, CheckpointSaved, CheckpointStarted, SpaceFreed, TrainerFailed
from prime_train.trainer.loops.step import Training, adamw, train_step
from prime_train.trainer.parallel import World
from prime_train.trainer.saves import resume
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from prime_train.trainer.saves.checkpoint_removal import clear_unfinished
from prime_train.trainer.saves.dcp_reader import SavedTensors
from tests.system.trainer.two_ranks import run_on_two_ranks
from tests.undeletable import undeletable
from tests.unit.trainer import tiny

ALONE = World(rank=0, size=1)


@pytest.fixture(params=[True, False], ids=["async", "sync"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> spec.RunSpec:
    return tiny.run_spec(tmp_path, checkpoint=spec.Checkpoint(async_save=request.param, keep_last=2))


@pytest.fixture
def run_dir(run: spec.RunSpec, tmp_path: Path) -> RunDir:
    return tiny.prepare(tmp_path / "run", run)


@pytest.fixture
def training() -> Training:
    """A model and an optimizer that have taken a step."""
    model = tiny.decoder()
    made = Training(model, adamw(model, spec.Optim()), ALONE, tiny.CPU, None)
    train_step(made, [tiny.batch(1)], lr=1e-3)
    return made


def checkpointer(run_dir: RunDir, run: spec.RunSpec) -> Checkpointer:
    return Checkpointer(tiny.attempt(run_dir, run), ALONE, tiny.CPU.torch)


def test_a_checkpoint_holds_the_weights_of_its_step(run_dir: RunDir, run: spec.RunSpec, training: Training) -> None:
    """Though the loop changes them as soon as it may."""
    expected = {name: weight.detach().clone() for name, weight in training.model.named_parameters()}
    moment = training.optimizer.state[next(training.model.parameters())]["exp_avg"].clone()
    saving = checkpointer(run_dir, run)
    saving.prepare(training.model, training.optimizer)
    saving.save(training.model, training.optimizer, TrainPosition(1, 28))
    train_step(training, [tiny.batch(2)], lr=1.0, before_update=saving.before_update)
    saving.finish()

    model = tiny.decoder(seed=2)
    optimizer = adamw(model, spec.Optim())
    reached = resume.load(tiny.attempt(run_dir, run, resume_step=1, number=2), model, optimizer, ALONE)
    assert reached == TrainPosition(1, 28)
    assert all(torch.equal(weight, expected[name]) for name, weight in model.named_parameters())
    assert torch.equal(optimizer.state[next(model.parameters())]["exp_avg"], moment)
    assert not torch.equal(training.model.get_parameter("embedding.weight"), expected["embedding.weight"])


def _save_on_a_rank(run_dir: RunDir, rank: int) -> None:
    """Save models of one, two and three layers, each as the step of its number. Rank 0 alone has rollouts."""
    run = tiny.run_spec(run_dir.path, checkpoint=spec.Checkpoint(keep_last=3))
    saving = dist.group.WORLD
    assert saving is not None
    world = World(rank, 2, saving, local_rank=rank, local_size=2)
    checkpointer = Checkpointer(replace(tiny.attempt(run_dir, run), rank=rank), world, tiny.CPU.torch)
    for layers in (1, 2, 3):
        model = nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(layers)))
        model(torch.ones(1, 8)).sum().backward()
        optimizer = adamw(model, spec.Optim())
        optimizer.step()
        checkpointer.save(model, optimizer, TrainPosition(layers, data={"order": 16} if rank == 0 else {}))
    checkpointer.finish()


def test_the_position_of_a_checkpoint_is_that_of_rank_0(tmp_path: Path) -> None:
    """With any number of tensors: DCP divides what all ranks have among them by size."""
    run_dir = tiny.prepare(tmp_path / "run", tiny.run_spec(tmp_path))
    run_on_two_ranks(partial(_save_on_a_rank, run_dir), tmp_path)
    saved = [json.loads(SavedTensors(run_dir.checkpoint(step)).load_text("reached")) for step in (1, 2, 3)]
    assert [position["data"] for position in saved] == [{"order": 16}] * 3


def test_one_save_is_in_flight_and_old_ones_go(run_dir: RunDir, run: spec.RunSpec, training: Training) -> None:
    saving = checkpointer(run_dir, run)
    for step in (1, 2, 3):
        saving.save(training.model, training.optimizer, TrainPosition(step))
    saving.finish()
    told = [(type(event).__name__, getattr(event, "step", 0)) for event in tiny.events(run_dir)]
    assert told == [
        *[(CheckpointStarted.__name__, 1), (CheckpointSaved.__name__, 1)],
        *[(CheckpointStarted.__name__, 2), (CheckpointSaved.__name__, 2)],
        *[(CheckpointStarted.__name__, 3), (CheckpointSaved.__name__, 3), (CheckpointDeleted.__name__, 1)],
    ]
    assert [(found.step, found.problem) for found in layout.scan(run_dir.checkpoints, hashes=True)] == [
        (3, ""),
        (2, ""),
    ]


def test_the_event_gives_size_and_waits(run_dir: RunDir, run: spec.RunSpec, training: Training) -> None:
    saving = checkpointer(run_dir, run)
    saving.save(training.model, training.optimizer, TrainPosition(1))
    saving.finish()
    (saved,) = (event for event in tiny.events(run_dir) if isinstance(event, CheckpointSaved))
    folder = run_dir.checkpoint(1)
    assert saved.size_bytes == sum(f.stat().st_size for f in folder.iterdir() if f.name != layout.MANIFEST)
    assert 0 < saved.stall_s <= saved.write_s  # it was waited for from begin to end
    assert saving.take_stall_s() >= saved.stall_s
    assert saving.take_stall_s() == 0


def test_a_left_over_folder_of_the_same_step_is_replaced(
    run_dir: RunDir, run: spec.RunSpec, training: Training
) -> None:
    left = run_dir.checkpoint(1)
    left.mkdir(parents=True)
    (left / "__7_0.distcp").write_bytes(b"torn")
    saving = checkpointer(run_dir, run)
    saving.save(training.model, training.optimizer, TrainPosition(1))
    saving.finish()
    assert layout.inspect(left, hashes=True).complete
    assert not (left / "__7_0.distcp").exists()


def test_what_lies_beyond_the_step_does_not_count_in_retention(
    run_dir: RunDir, run: spec.RunSpec, training: Training
) -> None:
    """A rejected checkpoint of a later step must not push out those that the run stands on."""
    saving = checkpointer(run_dir, run)
    for step in (8, 9, 1, 2):
        saving.save(training.model, training.optimizer, TrainPosition(step))
    saving.finish()
    assert [found.step for found in layout.scan(run_dir.checkpoints)] == [9, 8, 2, 1]


def test_unfinished_folders_are_cleared_and_damaged_ones_kept(
    run_dir: RunDir, run: spec.RunSpec, training: Training
) -> None:
    saving = checkpointer(run_dir, run)
    for step in (1, 2):
        saving.save(training.model, training.optimizer, TrainPosition(step))
    saving.finish()
    next(run_dir.checkpoint(1).glob("*.distcp")).unlink()
    (run_dir.checkpoint(3)).mkdir()
    (run_dir.checkpoint(3) / "__0_0.distcp").write_bytes(b"torn")
    clear_unfinished(tiny.attempt(run_dir, run, number=2))
    assert [(found.step, found.complete) for found in layout.scan(run_dir.checkpoints)] == [(2, True), (1, False)]


def test_a_directory_that_cannot_be_written_is_reported_at_the_next_step(
    run_dir: RunDir, run: spec.RunSpec, training: Training
) -> None:
    """A file where the folder should be: any user meets it, root too."""
    run_dir.checkpoints.write_text("in the way")
    saving = checkpointer(run_dir, run)
    saving.save(training.model, training.optimizer, TrainPosition(1))
    with pytest.raises(OSError, match="checkpoints") as caught:
        saving.finish()
    assert caught.value.errno in (errno.ENOTDIR, errno.EEXIST)
    saving.before_update()  # reported once


@pytest.mark.parametrize("async_save", [True, False], ids=["async", "sync"])
def test_a_full_disk_ends_the_run_and_costs_nothing_complete(texts: Path, tmp_path: Path, async_save: bool) -> None:
    """RLIMIT_FSIZE fails a write as a full disk does, part of the file written."""
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=5, async_save=async_save))
    run_dir = tiny.prepare(tmp_path, run)
    assert tiny.train(run_dir)[0] == 0
    longer = tiny.prepare(tmp_path, replace(run, run=replace(run.run, max_steps=10**6)))
    largest = max(file.stat().st_size for file in run_dir.checkpoint(10).glob("*.distcp"))

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest // 2, largest // 2))

    code, output = tiny.train(longer, number=2, resume_step=10, preexec_fn=limit)
    assert code == 5, output
    (failed,) = (event for event in tiny.events(longer) if isinstance(event, TrainerFailed))
    assert failed.cause_class == "disk"
    assert "could not be written: File too large" in failed.what
    assert "GB" in failed.why
    assert [(found.step, found.complete) for found in layout.scan(longer.checkpoints)] == [(10, True), (5, True)]
    assert not longer.checkpoint(15).exists()
    assert tiny.metrics(longer)[-1]["step"] < 40, "it went on long after the disk was full"


def test_a_full_disk_leaves_no_part_of_the_checkpoint(run_dir: RunDir, run: spec.RunSpec, training: Training) -> None:
    """In this process, so that the limit has to be lifted again before anything else writes."""
    saving = checkpointer(run_dir, run)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        saving.save(training.model, training.optimizer, TrainPosition(1))
        with pytest.raises(UserError) as caught:
            saving.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert caught.value.where == str(run_dir.checkpoint(1))
    assert not run_dir.checkpoint(1).exists()


def test_a_checkpoint_that_cannot_be_deleted_costs_only_its_space(
    run_dir: RunDir, run: spec.RunSpec, training: Training
) -> None:
    saving = checkpointer(run_dir, run)
    saving.save(training.model, training.optimizer, TrainPosition(1))
    saving.finish()
    with undeletable(run_dir.checkpoint(1)):
        for step in (2, 3, 4):
            saving.save(training.model, training.optimizer, TrainPosition(step))
            saving.finish()
        assert [found.step for found in layout.scan(run_dir.checkpoints) if found.complete] == [4, 3]
        (failed,) = (event for event in tiny.events(run_dir) if isinstance(event, SpaceFreed))
        assert Path(failed.path) == run_dir.checkpoint(1)
        assert failed.failed.startswith("[Errno ")
        clear_unfinished(tiny.attempt(run_dir, run, number=2))  # the next attempt reports it and starts
        *_, again = (event for event in tiny.events(run_dir) if isinstance(event, SpaceFreed))
        assert again.attempt == 2
        assert ".going-step_1" in again.path


def test_the_rest_of_a_killed_save_that_cannot_be_deleted_is_moved_away(
    run_dir: RunDir, run: spec.RunSpec, training: Training
) -> None:
    saving = checkpointer(run_dir, run)
    run_dir.checkpoint(1).mkdir(parents=True)
    with undeletable(run_dir.checkpoint(1)):
        saving.save(training.model, training.optimizer, TrainPosition(1))
        saving.finish()
        assert layout.inspect(run_dir.checkpoint(1), hashes=True).complete
        assert [type(event) for event in tiny.events(run_dir)].count(SpaceFreed) == 1


def test_links_are_reported_and_lose_nothing(
    run_dir: RunDir, run: spec.RunSpec, training: Training, tmp_path: Path
) -> None:
    """An unfinished save, the checkpoint that retention would delete next, and the rest of a deletion."""
    saving = checkpointer(run_dir, run)
    archive = tmp_path / "archive"
    for step in (1, 2):
        saving.save(training.model, training.optimizer, TrainPosition(step))
        saving.finish()
        run_dir.checkpoint(step).rename(archive / f"step_{step}" if archive.exists() else archive)
    complete, unfinished = archive, archive / "step_2"
    (unfinished / layout.MANIFEST).unlink()
    before = sorted(archive.rglob("*"))
    links = {run_dir.checkpoint(1): complete, run_dir.checkpoint(3): unfinished}
    links[run_dir.checkpoints / ".going-step_9.1"] = unfinished
    for link, target in links.items():
        link.symlink_to(target)
    clear_unfinished(tiny.attempt(run_dir, run, number=2))
    reported = {Path(event.path) for event in tiny.events(run_dir) if isinstance(event, SpaceFreed)}
    assert reported == set(links)
    for step in (3, 4, 5, 6):
        saving.save(training.model, training.optimizer, TrainPosition(step))
    saving.finish()
    assert sorted(archive.rglob("*")) == before
    assert [found.step for found in layout.scan(run_dir.checkpoints, hashes=True) if found.complete] == [6, 5]
    assert (run_dir.checkpoints / "step_3.set_aside").readlink() == unfinished
