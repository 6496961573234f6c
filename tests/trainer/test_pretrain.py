"""What a step's line in metrics.jsonl is made of. Whole runs are in test_main.py and test_resume.py."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.checkpoint.state_dict_loader import load

from prime_train import spec
from prime_train.checkpoints import layout
from prime_train.core.rundir import RunDir
from prime_train.events import TrainerFailed
from prime_train.trainer import pretrain
from prime_train.trainer.checkpoint import TrainPosition
from prime_train.trainer.dcp_reader import Planner, Reader
from prime_train.trainer.parallel import World
from prime_train.trainer.step import StepResult, Training, adamw
from tests.trainer import tiny

COMPILER = shutil.which("g++")
RESULT = StepResult(
    loss=2.0, grad_norm=1.0, tokens=1000, stop=False, forward_backward_s=1.5, wait_s=0.1, optimizer_s=0.25
)


def measured(peak_flops: float | None, ranks: int = 1) -> Any:
    """The line of a step that took 2 s, of a model of 3 MFLOP per token."""
    model = tiny.decoder()
    device = replace(tiny.CPU, peak_flops=peak_flops)
    training = Training(model, adamw(model, spec.Optim()), World(rank=0, size=ranks), device, None)
    ready = pretrain._Ready(training, tiny.CONFIG, None, None, None, [], TrainPosition(), 3e6, None)  # type: ignore[arg-type]
    return pretrain._step_metrics(ready, TrainPosition(7, 7000), RESULT, 1e-3, (0.125, 0.125))


def test_a_step_is_the_sum_of_its_phases() -> None:
    line = measured(None)
    assert (line.step, line.tokens_seen, line.step_s, line.tokens_per_s) == (7, 7000, 2.0, 500.0)
    assert line.step_s == line.data_s + line.forward_backward_s + line.optimizer_s + line.checkpoint_s


def test_mfu_is_of_all_ranks_and_unknown_without_a_peak() -> None:
    assert measured(None).mfu is None
    assert measured(1e10).mfu == pytest.approx(500 * 3e6 / 1e10)
    assert measured(1e10, ranks=4).mfu == pytest.approx(500 * 3e6 / 4e10)


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
