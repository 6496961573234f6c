"""A run that was killed goes on as if nothing had happened."""

from __future__ import annotations

import io
import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from prime_train import spec
from prime_train.checkpoints import dcp, layout, removal
from prime_train.checkpoints.packing import archive, packing_plan
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.events import CheckpointSaved, CheckpointUnreadable, TrainerFailed, TrainerFinished
from prime_train.trainer.loops.step import adamw
from prime_train.trainer.model.decoder import build
from prime_train.trainer.parallel import World
from prime_train.trainer.saves import resume
from prime_train.trainer.saves.checkpoint import Checkpointer, TrainPosition
from tests.unit.trainer import tiny

ALONE = World(rank=0, size=1)
PACKS_SMALL = packing_plan.Sizes(segment_bytes=20_000, smallest_bytes=1)


def contents(checkpoint: Path, out: Path) -> dict[str, Any]:
    dcp_to_torch_save(checkpoint, out)
    loaded: dict[str, Any] = torch.load(out, weights_only=False)
    return loaded


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Names of the leaves that are not bit-equal."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return [found for key in one for found in differences(one[key], other[key], f"{name}.{key}")]
    same = torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
    return [] if same else [name]


def test_differences_finds_a_changed_leaf() -> None:
    assert differences({"a": {"b": torch.zeros(2)}}, {"a": {"b": torch.ones(2)}}) == [".a.b"]


def test_forty_steps_are_twenty_a_kill_and_twenty_more(texts: Path, tmp_path: Path) -> None:
    run = tiny.run_spec(
        texts,
        run=spec.Run(name="tiny", max_steps=40, seed=7),
        schedule=spec.Schedule(kind="wsd", warmup_steps=3, decay_steps=10),
        checkpoint=spec.Checkpoint(interval_steps=20, keep_every_steps=20),
        data=replace(tiny.run_spec(texts).data, loader_workers=1),
    )
    straight = tiny.prepare(tmp_path / "straight", run)
    assert tiny.train(straight)[0] == 0

    # Without an end in sight the kill cannot come too late; the rate is constant that far in both runs.
    endless = replace(run, run=replace(run.run, max_steps=10**6))
    killed = tiny.prepare(tmp_path / "killed", endless)
    process = tiny.start(killed)
    tiny.until(lambda: any(isinstance(event, CheckpointSaved) and event.step == 20 for event in tiny.events(killed)))
    tiny.kill(process)
    assert layout.newest_complete(killed.checkpoints) is not None

    tiny.prepare(killed.path, run)
    for later in layout.scan(killed.checkpoints)[:-1]:  # what was saved before the kill arrived
        removal.remove(later.path)
    assert tiny.train(killed, number=2, resume_step=20)[0] == 0

    one = contents(straight.checkpoint(40), tmp_path / "one.pt")
    other = contents(killed.checkpoint(40), tmp_path / "other.pt")
    assert differences(one, other) == []
    lines = [(line["step"], line["loss"], line["lr"], line["tokens_seen"]) for line in tiny.metrics(straight)]
    assert lines == [(line["step"], line["loss"], line["lr"], line["tokens_seen"]) for line in tiny.metrics(killed)]
    assert [step for step, *_ in lines] == list(range(1, 41))


def laid_out(texts: Path, processes: int, dp_shard: int) -> spec.RunSpec:
    """Ten steps with checkpoints of step 5 and step 10, and no evaluation."""
    return tiny.run_spec(
        texts,
        checkpoint=spec.Checkpoint(interval_steps=5),
        eval=spec.Eval(interval_steps=None),
        parallel=spec.Parallel(processes=processes, dp_shard=dp_shard),
        batch=spec.Batch(micro_batch=4 // processes, global_batch=4),
    )


Finished = Callable[[int, int], RunDir]  # of a number of processes and dp_shard


@pytest.fixture(scope="module")
def finished(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Whole runs of each layout. A layout is trained once; who changes its run directory takes a copy."""

    @cache
    def train(processes: int, dp_shard: int) -> RunDir:
        run_dir = tiny.prepare(tmp_path_factory.mktemp("finished"), laid_out(texts, processes, dp_shard))
        code, output = tiny.train(run_dir, processes=processes)
        assert code == 0, output
        return run_dir

    return train


@pytest.mark.parametrize(
    ("before", "after"),
    [((1, 1), (2, 2)), ((2, 1), (1, 1)), ((2, 2), (2, 1))],
    ids=["one process to FSDP2", "DDP to one process", "FSDP2 to DDP"],
)
def test_a_checkpoint_loads_under_another_layout(
    texts: Path, tmp_path: Path, finished: Finished, before: tuple[int, int], after: tuple[int, int]
) -> None:
    moved = RunDir(Path(shutil.copytree(finished(*before).path, tmp_path / "moved")))
    tiny.prepare(moved.path, laid_out(texts, *after))
    code, output = tiny.train(moved, number=2, resume_step=5, processes=after[0])
    assert code == 0, output
    expected = [line["loss"] for line in tiny.metrics(finished(1, 1))]
    assert [line["loss"] for line in tiny.metrics(moved)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("dp_shard", [1, 2], ids=["DDP", "FSDP2"])
def test_two_ranks_go_on_from_a_packed_checkpoint_as_from_one_that_was_not(
    tmp_path: Path, finished: Finished, dp_shard: int
) -> None:
    straight = finished(2, dp_shard)
    packed = RunDir(Path(shutil.copytree(straight.path, tmp_path / "packed")))
    removal.remove(packed.checkpoint(10))
    archive.compress(packed.checkpoint(5), PACKS_SMALL)
    assert packing_plan.is_packed(packed.checkpoint(5))
    code, output = tiny.train(packed, number=2, resume_step=5, processes=2)
    assert code == 0, output
    one = contents(straight.checkpoint(10), tmp_path / "one.pt")
    assert differences(one, contents(packed.checkpoint(10), tmp_path / "other.pt")) == []


def test_a_run_goes_on_from_rounded_moments_with_losses_that_hardly_differ(tmp_path: Path, finished: Finished) -> None:
    straight = finished(1, 1)
    rounded = RunDir(Path(shutil.copytree(straight.path, tmp_path / "rounded")))
    removal.remove(rounded.checkpoint(10))
    before = contents(rounded.checkpoint(5), tmp_path / "before.pt")
    archive.compress_lossy(rounded.checkpoint(5), PACKS_SMALL)
    assert packing_plan.measure(rounded.checkpoint(5)).saved > 0.4
    code, output = tiny.train(rounded, number=2, resume_step=5)
    assert code == 0, output
    after = contents(rounded.checkpoint(5), tmp_path / "after.pt")
    assert differences(before["model"], after["model"]) == []
    assert {name.rpartition(".")[2] for name in differences(before, after)} == {"exp_avg", "exp_avg_sq"}
    losses = [line["loss"] for line in tiny.metrics(rounded)]
    assert losses[5] == tiny.metrics(straight)[5]["loss"]  # of the same weights
    assert losses == pytest.approx([line["loss"] for line in tiny.metrics(straight)], rel=1e-3)
    assert losses != [line["loss"] for line in tiny.metrics(straight)]


@pytest.fixture
def saved(tmp_path: Path) -> RunDir:
    """A run directory with a checkpoint of step 5."""
    run = tiny.run_spec(tmp_path)
    run_dir = tiny.prepare(tmp_path / "run", run)
    model = tiny.decoder()
    checkpointer = Checkpointer(tiny.attempt(run_dir, run), ALONE, tiny.CPU.torch)
    checkpointer.save(model, adamw(model, run.optim), TrainPosition(5, 1000, {"buffer": 2}))
    checkpointer.finish()
    return run_dir


def load(run_dir: RunDir, model: torch.nn.Module | None = None) -> TrainPosition:
    run = tiny.run_spec(run_dir.path)
    model = tiny.decoder(seed=2) if model is None else model
    return resume.load(tiny.attempt(run_dir, run, resume_step=5, number=2), model, adamw(model, run.optim), ALONE)


def test_load_gives_back_weights_and_position(saved: RunDir) -> None:
    model = tiny.decoder(seed=2)
    assert load(saved, model) == TrainPosition(5, 1000, {"buffer": 2})
    assert differences(dict(model.state_dict()), dict(tiny.decoder().state_dict())) == []


def test_a_packed_checkpoint_is_restored_and_loaded(saved: RunDir) -> None:
    archive.compress(saved.checkpoint(5), PACKS_SMALL)
    assert packing_plan.is_packed(saved.checkpoint(5))
    model = tiny.decoder(seed=2)
    assert load(saved, model) == TrainPosition(5, 1000, {"buffer": 2})
    assert differences(dict(model.state_dict()), dict(tiny.decoder().state_dict())) == []
    assert not packing_plan.is_packed(saved.checkpoint(5))


def test_a_packed_checkpoint_that_is_damaged_is_condemned(saved: RunDir) -> None:
    archive.compress(saved.checkpoint(5), PACKS_SMALL)
    segment = next(saved.checkpoint(5).glob("*.planes.*"))
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 1
    segment.write_bytes(content)
    with pytest.raises(archive.DamagedError, match=r"step_5: .* does not unpack"):
        load(saved)
    assert layout.newest_complete(saved.checkpoints) is None


def test_hyperparameters_are_the_configs_not_the_checkpoints(saved: RunDir) -> None:
    model = tiny.decoder()
    optimizer = adamw(model, spec.Optim(lr=0.5, weight_decay=0.25, beta2=0.5))
    resume.load(tiny.attempt(saved, tiny.run_spec(saved.path), resume_step=5), model, optimizer, ALONE)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["weight_decay"] == 0.25
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.5)


def test_a_flipped_bit_condemns_the_checkpoint(saved: RunDir) -> None:
    file = next(saved.checkpoint(5).glob("*.distcp"))
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert layout.inspect(saved.checkpoint(5)).complete  # its sizes are unchanged
    with pytest.raises(archive.DamagedError, match=r"step_5: .* does not match its SHA-256"):
        load(saved)
    told = [event for event in tiny.events(saved) if isinstance(event, CheckpointUnreadable)]
    assert [event.step for event in told] == [5]
    assert layout.newest_complete(saved.checkpoints) is None


def test_a_checkpoint_of_another_model_is_a_config_error(saved: RunDir) -> None:
    with pytest.raises(UserError, match=r"embedding\.weight is \(64, 32\) in it, and \(65, 32\) in the config"):
        load(saved, build(replace(tiny.CONFIG, vocab_size=65), 1))


class Evil:
    """A pickle of it creates a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def rewrite(checkpoint: Path, name: str, content: bytes) -> None:
    """Replace a file, and write a manifest that fits it, as the author of a download can."""
    (checkpoint / name).write_bytes(content)
    layout.write_manifest(checkpoint, 5)


def hide(saved: RunDir, value: object) -> None:
    """Put a pickle of `value` into the shard, where the text "reached" is."""
    checkpoint = saved.checkpoint(5)
    stored, _ = dcp.entries((checkpoint / dcp.METADATA).read_bytes())
    entry = next(one for one in stored if one.name == "reached")
    hidden = io.BytesIO()
    torch.save(value, hidden, _use_new_zipfile_serialization=False)
    assert len(hidden.getvalue()) <= entry.length
    content = bytearray((checkpoint / entry.file).read_bytes())
    content[entry.offset : entry.offset + entry.length] = hidden.getvalue().ljust(entry.length, b"\0")
    rewrite(checkpoint, entry.file, bytes(content))


def condemned(run_dir: RunDir) -> list[str]:
    return [event.reason for event in tiny.events(run_dir) if isinstance(event, CheckpointUnreadable)]


def test_a_pickle_in_the_metadata_does_not_run(saved: RunDir, tmp_path: Path) -> None:
    rewrite(saved.checkpoint(5), dcp.METADATA, pickle.dumps(Evil(tmp_path / "harm")))
    with pytest.raises(archive.DamagedError, match=r"posix\.mkdir"):
        load(saved)
    assert not (tmp_path / "harm").exists()
    assert "posix.mkdir" in condemned(saved)[0]


def test_a_pickle_beside_the_tensors_does_not_run(saved: RunDir, tmp_path: Path) -> None:
    hide(saved, Evil(tmp_path / "harm"))
    with pytest.raises(archive.DamagedError, match="does not load"):
        load(saved)
    assert not (tmp_path / "harm").exists()
    assert len(condemned(saved)) == 1


def test_the_metadata_names_no_file_outside_the_checkpoint(saved: RunDir, tmp_path: Path) -> None:
    folder = saved.checkpoint(5)
    shutil.copy(folder / "__0_0.distcp", tmp_path / "stranger")
    metadata = pickle.loads((folder / dcp.METADATA).read_bytes())
    metadata.storage_data = {
        index: replace(place, relative_path="../../../stranger") for index, place in metadata.storage_data.items()
    }
    rewrite(folder, dcp.METADATA, pickle.dumps(metadata))
    with pytest.raises(archive.DamagedError, match="is no file of this checkpoint"):
        load(saved)


@pytest.mark.parametrize("reached", ['{"unheard": 1}', "[", '{"step": {}, "tokens_seen": 1, "data": 5, "more": []}'])
def test_an_exception_that_is_not_listed_condemns_the_checkpoint(saved: RunDir, reached: str) -> None:
    hide(saved, reached)
    with pytest.raises(archive.DamagedError, match="step_5 is as it was saved, but does not load"):
        load(saved)
    assert len(condemned(saved)) == 1
    assert layout.inspect(saved.checkpoint(5), hashes=True).complete, "its bytes are not at fault"


def test_memory_that_runs_out_condemns_nothing(saved: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out(*_: object, **_options: object) -> None:
        raise MemoryError

    monkeypatch.setattr(torch, "load", run_out)
    with pytest.raises(RuntimeError, match="step_5 does not load"):
        load(saved)
    assert condemned(saved) == []


def test_the_trainer_reports_a_damaged_checkpoint_and_crashes(tmp_path: Path, finished: Finished) -> None:
    run_dir = RunDir(Path(shutil.copytree(finished(1, 1).path, tmp_path / "damaged")))
    file = next(run_dir.checkpoint(10).glob("*.distcp"))
    file.write_bytes(bytes(len(file.read_bytes())))
    code, output = tiny.train(run_dir, number=2, resume_step=10)
    assert code == 1, output
    told = tiny.events(run_dir)
    assert any(isinstance(event, CheckpointUnreadable) and event.step == 10 for event in told)
    assert any(isinstance(event, TrainerFailed) and event.cause_class == "unknown" for event in told)
    newest = layout.newest_complete(run_dir.checkpoints)
    assert newest is not None
    assert newest.step == 5
    assert tiny.train(run_dir, number=3, resume_step=5)[0] == 0
    assert sum(isinstance(event, TrainerFinished) for event in tiny.events(run_dir)) == 2
    assert [line["step"] for line in tiny.metrics(run_dir)] == list(range(1, 11))
