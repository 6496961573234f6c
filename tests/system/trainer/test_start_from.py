"""A run begins with the weights of another one, and on request with its moments, or is refused with the difference."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from prime_train import spec
from prime_train.checkpoints.packing import archive
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.spec.rl import Adapter
from prime_train.trainer.build import build_model, check_tokenizer, load_config, load_run_tokenizer, set_up_training
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.model.decoder import build, config_of
from prime_train.trainer.saves import start_from
from tests.system.checkpoints.test_archive import SMALL
from tests.system.trainer.two_ranks import run_on_two_ranks, shard
from tests.unit.trainer import tiny
from tests.unit.trainer.saves.test_convert_checkpoint import ALONE, STEP, saved


@pytest.fixture(scope="module")
def first(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDir, Training]:
    return saved(tmp_path_factory.mktemp("first") / "run", tiny.run_spec(texts))


def second(first: RunDir, texts: Path, **model: Any) -> RunSpec:
    """A run that begins with the first one's weights, as the supervisor resolves it."""
    base = tiny.run_spec(texts)
    begins = replace(base.model, init_from=str(first.path), init_step=STEP)
    return replace(base, model=replace(begins, **model), tokenizer=spec.Tokenizer(path=str(first.tokenizer)))


def set_up(run: RunSpec, root: Path) -> Training:
    run_dir = tiny.prepare(root, run)
    attempt = tiny.attempt(run_dir, run)
    tokenizer = load_run_tokenizer(run, run_dir)
    check_tokenizer(attempt, tokenizer)
    return set_up_training(attempt, load_config(run, tokenizer), tiny.CPU, ALONE)[0]


@pytest.mark.parametrize("packed", [False, True])
def test_the_weights_are_those_of_the_checkpoint(
    first: tuple[RunDir, Training], texts: Path, tmp_path: Path, packed: bool
) -> None:
    if packed:
        archive.compress(first[0].checkpoint(STEP), SMALL)
        start_from._open.cache_clear()
    training = set_up(second(first[0], texts), tmp_path)
    expected = dict(first[1].model.named_parameters())
    assert all(torch.equal(weight, expected[name]) for name, weight in training.model.named_parameters())
    assert training.optimizer.state == {}


def test_the_moments_and_their_steps_come_on_request(
    first: tuple[RunDir, Training], texts: Path, tmp_path: Path
) -> None:
    run = replace(second(first[0], texts, init_optimizer=True), optim=spec.Optim(lr=1e-5))
    training = set_up(run, tmp_path)
    for name, weight in training.model.named_parameters():
        state = training.optimizer.state[weight]
        theirs = first[1].optimizer.state[first[1].model.get_parameter(name)]
        assert state.keys() == theirs.keys()
        assert all(torch.equal(state[key], theirs[key]) for key in state)
    assert {group["lr"] for group in training.optimizer.param_groups} == {1e-5}


def test_adapters_begin_on_the_weights_of_a_whole_model(
    first: tuple[RunDir, Training], texts: Path, tmp_path: Path
) -> None:
    training = set_up(second(first[0], texts, lora=Adapter(rank=2)), tmp_path)
    expected = dict(first[1].model.named_parameters())
    ours = dict(training.model.named_parameters())
    assert all(torch.equal(ours[name], weight) for name, weight in expected.items())
    assert len(ours) > len(expected)


def test_another_model_is_refused_with_the_difference(
    first: tuple[RunDir, Training], texts: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"mlp\.down\.weight is \(32, 64\) in it, and \(32, 128\)"):
        set_up(second(first[0], texts, mlp_size=128), tmp_path / "wide")
    with pytest.raises(UserError, match=r"blocks\.2\..* is not in it"):
        set_up(second(first[0], texts, layers=3), tmp_path / "deep")


def test_another_tokenizer_is_refused(first: tuple[RunDir, Training], tmp_path: Path) -> None:
    """Its size may be the same."""
    other = tiny.run_spec(tiny.write_texts(tmp_path / "texts", documents=40))
    run = replace(other, model=replace(other.model, init_from=str(first[0].path), init_step=STEP))
    with pytest.raises(UserError, match="another tokenizer"):
        set_up(run, tmp_path / "run")


def test_a_damaged_checkpoint_is_refused(texts: Path, tmp_path: Path) -> None:
    run_dir, _ = saved(tmp_path / "first", tiny.run_spec(texts))
    path = next(run_dir.checkpoint(STEP).glob("*.distcp"))
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(UserError, match="SHA-256"):
        set_up(second(run_dir, texts), tmp_path / "second")


def test_a_resumed_run_does_not_read_the_other_one(texts: Path, tmp_path: Path) -> None:
    run = second(RunDir(tmp_path / "gone"), texts)
    run = replace(run, tokenizer=spec.Tokenizer(vocab_size=300))
    config = load_config(run, load_run_tokenizer(run, RunDir(tmp_path)))
    assert build_model(run, config, tiny.CPU, resumes=True) is not None


def load_sharded(run: RunSpec, tokens: int, rank: int) -> dict[str, torch.Tensor]:
    """Every weight and first moment of a model that two ranks shard, gathered on each."""
    del rank
    model = build(config_of(run.model, tokens), seed=99)
    shard(model)
    start_from.load_weights(model, run)
    optimizer = adamw(model, run.optim)
    start_from.load_optimizer(model, optimizer, run)
    found = {}
    for name, weight in model.named_parameters():
        assert isinstance(weight, DTensor)
        found[name] = weight.full_tensor().detach()
        found[f"{name}.exp_avg"] = optimizer.state[weight]["exp_avg"].full_tensor()
    return found


def test_each_rank_of_a_sharded_model_gets_its_part(
    first: tuple[RunDir, Training], texts: Path, tmp_path: Path
) -> None:
    run = second(first[0], texts, init_optimizer=True)
    tokens = len(first[1].model.get_parameter("embedding.weight"))
    expected: dict[str, torch.Tensor] = {}
    for name, weight in first[1].model.named_parameters():
        expected |= {name: weight.detach(), f"{name}.exp_avg": first[1].optimizer.state[weight]["exp_avg"]}
    for found in run_on_two_ranks(partial(load_sharded, run, tokens), tmp_path):
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
