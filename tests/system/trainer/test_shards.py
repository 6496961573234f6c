"""A sharded model starts from its shards alone, and holds what the whole one would."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from prime_train import spec
from prime_train.spec import RunSpec
from prime_train.spec.rl import Adapter
from prime_train.trainer import parallel
from prime_train.trainer.build import build_model, fill_shards, gather_weights
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import VOCAB_ROWS, Decoder, ModelConfig, build, parameter_shapes
from prime_train.trainer.parallel import World
from tests.system.trainer.live_tensors import LiveTensors
from tests.system.trainer.two_ranks import run_on_two_ranks
from tests.unit.trainer import tiny

UNEVEN = replace(tiny.CONFIG, vocab_size=61, mlp_size=63, layers=6, tie_embeddings=False)
PADDED = replace(UNEVEN, pad_vocab=True)


def run_of(path: str | None = None, lora: Adapter | None = None) -> RunSpec:
    run = tiny.run_spec(Path("nowhere"), parallel=spec.Parallel(processes=2, dp_shard=2))
    return replace(run, model=spec.Model(path=path, lora=lora))


def _start(run: RunSpec, config: ModelConfig, resumes: bool, rank: int) -> tuple[dict[str, Tensor], int]:
    """Every weight, adapters included, and the bytes that this rank held at most while it started."""
    live = LiveTensors(iter(()))
    with live:
        fresh = build_model(run, config, tiny.CPU, resumes=resumes)
        model = parallel.spread(fresh, World(rank, 2), run.parallel, tiny.CPU)
        fill_shards(model, run, tiny.CPU, resumes=resumes)
    used = config.vocab_size
    weights = {name: weight.full_tensor() for name, weight in model.state_dict().items()}
    return {name: weight[:used] if name in VOCAB_ROWS else weight for name, weight in weights.items()}, live.peak


def largest_bytes(config: ModelConfig) -> tuple[int, int]:
    """Of the whole model, and of its largest part: a block or a matrix with a row per token."""
    sizes = {name: 4 * weight.numel() for name, weight in Decoder(config).named_parameters()}
    block = sum(size for name, size in sizes.items() if name.startswith("blocks.0."))
    return sum(sizes.values()), max(block, sizes["embedding.weight"])


@pytest.mark.parametrize("config", [UNEVEN, PADDED], ids=["uneven rows", "padded vocabulary"])
def test_weights_are_those_of_one_process_and_no_rank_holds_them_all(config: ModelConfig, tmp_path: Path) -> None:
    (weights, first), (_, second) = run_on_two_ranks(partial(_start, run_of(), config, False), tmp_path)
    expected = gather_weights(build(config, run_of().run.seed))
    assert {name: tuple(weight.shape) for name, weight in weights.items()} == parameter_shapes(config)
    for name, weight in expected.items():
        assert torch.equal(weights[name], weight), name
    whole, block = largest_bytes(config)
    assert max(first, second) <= whole / 2 + block + 4096


def test_shards_are_read_from_a_folder(tmp_path: Path) -> None:
    model = build(UNEVEN, seed=3)
    tiny.save_hf(tmp_path / "hf", UNEVEN, dict(model.state_dict()), hf.Export(ctx_tokens=64))
    config = replace(hf.read_config(tmp_path / "hf"), pad_vocab=True)
    (weights, first), (_, second) = run_on_two_ranks(
        partial(_start, run_of(str(tmp_path / "hf")), config, False), tmp_path
    )
    for name, weight in model.state_dict().items():
        assert torch.equal(weights[name], weight), name
    whole, block = largest_bytes(config)
    assert max(first, second) <= whole / 2 + block + 4096


@pytest.mark.parametrize("resumes", [False, True], ids=["new", "resumed"])
def test_no_rank_holds_the_whole_model_under_adapters(resumes: bool, tmp_path: Path) -> None:
    """A checkpoint of adapters has no other weights, so a resumed run reads them where the first attempt did."""
    tiny.save_hf(tmp_path / "hf", UNEVEN, dict(build(UNEVEN, seed=3).state_dict()), hf.Export(ctx_tokens=64))
    run = run_of(str(tmp_path / "hf"), Adapter(rank=2))
    (weights, first), (_, second) = run_on_two_ranks(partial(_start, run, UNEVEN, resumes), tmp_path)
    alone = replace(run, parallel=spec.Parallel())
    expected = build_model(alone, UNEVEN, tiny.CPU, resumes=resumes).state_dict()
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], weight) for name, weight in expected.items())
    assert any(name.endswith("lora_down") for name in weights)
    whole, block = largest_bytes(UNEVEN)
    assert max(first, second) <= whole / 2 + block + 8192


def test_a_padded_vocabulary_is_the_same_training() -> None:
    plain, padded = build(UNEVEN, seed=3), build(PADDED, seed=3)
    assert padded.embedding.weight.shape == (128, 32)
    batch = tiny.batch(1)
    batch = replace(batch, tokens=batch.tokens % 61, labels=batch.labels.clamp(max=60))
    for model in (plain, padded):
        summed = model(batch.tokens, batch.positions, None, labels=batch.labels)
        summed.backward()
    assert padded.head is not None
    assert plain.head is not None
    assert plain.head.weight.grad is not None
    assert padded.head.weight.grad is not None
    torch.testing.assert_close(padded.head.weight.grad[:61], plain.head.weight.grad, rtol=1e-5, atol=1e-6)
    assert not padded.head.weight.grad[61:].any()
    assert not padded.embedding.weight[61:].any()
    assert padded(batch.tokens, batch.positions, None).shape[-1] == 61  # so no sample can be padding


def test_padding_is_not_exported(tmp_path: Path) -> None:
    model = build(PADDED, seed=3)
    tiny.save_hf(tmp_path / "hf", PADDED, gather_weights(model), hf.Export(ctx_tokens=64))
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["vocab_size"] == 61
    loaded = build(hf.read_config(tmp_path / "hf"), seed=9)
    hf.load_weights(loaded, tmp_path / "hf")
    assert loaded.embedding.weight.shape == (61, 32)
    assert torch.equal(loaded.embedding.weight, model.embedding.weight[:61])


def test_a_folder_fills_a_padded_model(tmp_path: Path) -> None:
    model = build(UNEVEN, seed=3)
    tiny.save_hf(tmp_path / "hf", UNEVEN, dict(model.state_dict()), hf.Export(ctx_tokens=64))
    padded = build(PADDED, seed=9)
    hf.load_weights(padded, tmp_path / "hf")
    assert torch.equal(padded.embedding.weight[:61], model.embedding.weight)
    assert not padded.embedding.weight[61:].any()
