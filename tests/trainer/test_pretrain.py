"""Pretraining with the settings of the step. Other whole runs are in test_main.py and test_resume.py."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from torch.distributed.checkpoint.state_dict_loader import load

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir
from prime_train.events import TrainerFailed
from prime_train.trainer.checkpoint import TrainPosition
from prime_train.trainer.dcp_reader import Planner, Reader
from tests.trainer import tiny

COMPILER = shutil.which("g++")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="torch.compile needs g++ on a CPU, and there is none")
def test_a_compiled_run_is_the_same_training_and_its_checkpoint_goes_on_without(texts: Path, tmp_path: Path) -> None:
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=5), eval=spec.Eval(interval_steps=None))
    plain = tiny.prepare(tmp_path / "plain", run)
    assert tiny.train(plain)[0] == 0

    halfway = replace(run, model=replace(run.model, compile=True), run=replace(run.run, max_steps=5))
    # The rate of the first steps does not depend on where the run ends: warm-up, then the plateau.
    halfway = replace(halfway, schedule=spec.Schedule(kind="constant", warmup_steps=3))
    compiled = tiny.prepare(tmp_path / "compiled", halfway)
    code, output = tiny.train(compiled)
    assert code == 0, output
    tiny.prepare(compiled.path, run)
    code, output = tiny.train(compiled, number=2, resume_step=5)
    assert code == 0, output
    expected = [line["loss"] for line in tiny.metrics(plain)]
    assert [line["loss"] for line in tiny.metrics(compiled)] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_without_a_compiler_a_compiled_run_ends_for_good_and_says_what_is_missing(texts: Path, tmp_path: Path) -> None:
    run = tiny.run_spec(texts)
    run_dir = tiny.prepare(tmp_path / "run", replace(run, model=replace(run.model, compile=True)))
    nowhere = {"PATH": str(tmp_path), "CXX": str(tmp_path / "g++"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    code, output = tiny.train(run_dir, environment=nowhere)
    assert code == 5, output
    (failed,) = (event for event in tiny.events(run_dir) if isinstance(event, TrainerFailed))
    assert (failed.cause_class, failed.fix) == ("env", "apt install g++, or model.compile = false")


@pytest.mark.slow
def test_a_run_with_every_setting_of_the_step_goes_on_as_if_it_had_not_been_killed(texts: Path, tmp_path: Path) -> None:
    """Muon, a growing batch, recompute, a padded vocabulary, no decay of embeddings, and steps that may be skipped."""
    run = tiny.run_spec(texts, checkpoint=spec.Checkpoint(interval_steps=5), eval=spec.Eval(interval_steps=None))
    run = replace(
        run,
        model=replace(run.model, recompute="selective", recompute_every=2, pad_vocab=True),
        optim=spec.Optim(kind="muon", muon_lr=0.01, decay_embeddings=False, on_spike="skip"),
        schedule=spec.Schedule(kind="inverse-sqrt", warmup_steps=3),
        batch=spec.Batch(micro_batch=2, global_batch=8, start_batch=2, ramp_steps=4),
        checkpoint=spec.Checkpoint(interval_steps=5, final="hf"),
    )
    run_dir = tiny.prepare(tmp_path / "run", run)
    code, output = tiny.train(run_dir)
    assert code == 0, output
    straight, exported = tiny.metrics(run_dir), (run_dir.final / "model.safetensors").read_bytes()
    assert [line["tokens"] > 0 and not line["skipped"] for line in straight] == [True] * 10
    assert 3 * straight[0]["tokens"] < straight[-1]["tokens"]
    shutil.rmtree(run_dir.checkpoint(10))
    code, output = tiny.train(run_dir, number=2, resume_step=5)
    assert code == 0, output
    assert [line["loss"] for line in tiny.metrics(run_dir)] == [line["loss"] for line in straight]
    assert (run_dir.final / "model.safetensors").read_bytes() == exported
    state = TrainPosition(**json.loads(_saved_position(run_dir)))
    assert len(state.spikes["norms"]) == 10


def _saved_position(run_dir: RunDir) -> str:
    """The text of the position in the last checkpoint."""
    folder = run_dir.checkpoint(10)
    state = {"reached": ""}
    reader = Reader(folder, {entry.name for entry in layout.entries(folder)})
    load(state, storage_reader=reader, planner=Planner(), no_dist=True)
    return state["reached"]
