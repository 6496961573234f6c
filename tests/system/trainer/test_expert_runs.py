"""Whole runs with experts: the metrics, and an exact resume with the balancing biases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from prime_train import spec
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from tests.system.trainer.test_resume import contents, differences
from tests.unit.trainer import tiny

MODEL = spec.Model(
    layers=2,
    hidden_size=32,
    heads=2,
    kv_heads=1,
    mlp_size=64,
    experts=4,
    expert_mlp_size=32,
    shared_experts=1,
    balance_rate=0.01,
    router_z_loss=0.001,
)


def run_of(texts: Path) -> RunSpec:
    return tiny.run_spec(texts, model=MODEL, checkpoint=spec.Checkpoint(interval_steps=5, keep_every_steps=5))


@pytest.fixture(scope="module")
def alone(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run_dir = tiny.prepare(tmp_path_factory.mktemp("alone"), run_of(texts))
    code, output = tiny.train(run_dir)
    assert code == 0, output
    return run_dir


def test_a_resumed_run_has_the_same_biases_and_weights(alone: RunDir, tmp_path: Path) -> None:
    resumed = RunDir(tmp_path / "resumed")
    shutil.copytree(alone.path, resumed.path)
    shutil.rmtree(resumed.checkpoint(10))
    code, output = tiny.train(resumed, number=2, resume_step=5)
    assert code == 0, output
    one = contents(alone.checkpoint(10), tmp_path / "one.pt")
    assert differences(one, contents(resumed.checkpoint(10), tmp_path / "other.pt")) == []
    assert one["model"]["blocks.0.mlp.router.balance"].abs().max() > 0.01
    assert [line["loss"] for line in tiny.metrics(resumed)] == [line["loss"] for line in tiny.metrics(alone)]


def test_the_metrics_have_the_tokens_of_the_experts(alone: RunDir) -> None:
    for line in tiny.metrics(alone):
        assert len(line["expert_tokens_min"]) == len(line["expert_tokens_max"]) == 2
        mean = 4 * 32 * 2 / 4  # rows, tokens, experts of a token, experts
        for least, most in zip(line["expert_tokens_min"], line["expert_tokens_max"], strict=True):
            assert 0 <= least <= mean <= most
        assert line["expert_load_max"] == max(line["expert_tokens_max"]) / mean
        assert line["idle_experts"] >= 0
