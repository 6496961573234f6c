"""Every family: logits, gradients and greedy tokens of transformers, and folders that come back bit-equal."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from prime_train.core.errors import UserError
from prime_train.spec.rl import Adapter
from prime_train.trainer.build import refuse_conflicts
from prime_train.trainer.evaluation.evaluate import Sampling, generate
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import Decoder, build, cross_entropy_sum
from tests.unit.trainer import tiny
from tests.unit.trainer.families import ARCHITECTURES, loud

TOKENS = torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(0))
POSITIONS = torch.arange(24).expand(2, 24)


def save(model: Decoder, folder: Path) -> Path:
    tiny.save_hf(folder, model.config, model.state_dict(), hf.Export(ctx_tokens=50))
    return folder


def loaded(folder: Path) -> Decoder:
    model = build(hf.read_config(folder), seed=99)
    hf.load_weights(model, folder)
    return model


def theirs(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM  # takes seconds: not in every worker

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


@torch.no_grad()
def our_logits(model: Decoder) -> Tensor:
    logits: Tensor = model(TOKENS, POSITIONS, None)
    return logits


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_formula_counts_the_weights(name: str) -> None:
    assert ARCHITECTURES[name].parameters == tiny.parameter_count(ARCHITECTURES[name])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_folder_comes_back_bit_equal(name: str, tmp_path: Path) -> None:
    model = loud(ARCHITECTURES[name])
    back = loaded(save(model, tmp_path / "out"))
    assert back.config == model.config
    ours, read = model.state_dict(), back.state_dict()
    assert ours.keys() == read.keys()
    assert all(torch.equal(weight, read[key]) for key, weight in ours.items())


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_transformers_computes_the_same(name: str, tmp_path: Path) -> None:
    """A folder that transformers has written is read, and one that is written here is loaded by transformers."""
    ours = loud(ARCHITECTURES[name])
    reference = theirs(save(ours, tmp_path / "ours"))
    reference.save_pretrained(tmp_path / "theirs")
    read = loaded(tmp_path / "theirs")
    assert read.config == ours.config
    assert all(torch.equal(weight, read.state_dict()[key]) for key, weight in ours.state_dict().items())
    again = load_file(save(read, tmp_path / "again") / "model.safetensors")
    first = load_file(tmp_path / "theirs" / "model.safetensors")
    assert first.keys() == again.keys()
    assert all(torch.equal(tensor, again[key]) for key, tensor in first.items())

    with torch.no_grad():
        expected = reference(TOKENS).logits
    torch.testing.assert_close(our_logits(ours), expected, rtol=0, atol=1e-5)
    prompt = TOKENS[0, :8].tolist()
    answer = reference.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False, eos_token_id=None)
    sampling = Sampling(new_tokens=16, ctx_tokens=50, temperature=0, seed=0)
    assert generate(ours, [prompt], sampling) == [answer[0, 8:].tolist()]

    loss = cross_entropy_sum(ours(TOKENS[:, :-1], POSITIONS[:, :-1], None), TOKENS[:, 1:]) / 46
    loss.backward()  # type: ignore[no-untyped-call]
    reference(TOKENS, labels=TOKENS).loss.backward()
    assert ours.embedding.weight.grad is not None
    gradient = reference.get_input_embeddings().weight.grad
    torch.testing.assert_close(ours.embedding.weight.grad, gradient, rtol=0, atol=1e-5)


def test_the_tensors_of_gpt2_without_a_prefix_and_with_the_causal_mask(tmp_path: Path) -> None:
    """As the folder `gpt2` on the hub has them."""
    model = loud(ARCHITECTURES["gpt2"])
    path = save(model, tmp_path) / "model.safetensors"
    tensors = {name.removeprefix("transformer."): tensor for name, tensor in load_file(path).items()}
    assert tensors["h.0.attn.c_attn.weight"].shape == (32, 96)
    save_file(tensors | {"h.0.attn.bias": torch.ones(1, 1, 50, 50)}, path)
    assert torch.equal(our_logits(loaded(tmp_path)), our_logits(model))


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("gpt2", "transformer.h.1.attn.c_attn.weight", (32, 96)),
        ("qwen2", "model.layers.0.self_attn.k_proj.bias", (16,)),
        ("qwen3_moe", "model.layers.1.mlp.experts.3.down_proj.weight", (32, 24)),
        ("glm4_moe", "model.layers.0.mlp.gate.e_score_correction_bias", (4,)),
    ],
)
def test_a_missing_or_misshapen_tensor_is_named(name: str, tensor: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    path = save(loud(ARCHITECTURES[name]), tmp_path) / "model.safetensors"
    tensors = load_file(path)
    assert tensors[tensor].shape == shape
    save_file(tensors | {tensor: torch.ones(*shape[:-1], shape[-1] + 1)}, path)
    with pytest.raises(UserError, match=tensor) as refused:
        loaded(tmp_path)
    assert str(list(shape)) in refused.value.what
    del tensors[tensor]
    save_file(tensors, path)
    with pytest.raises(UserError, match=f"1 tensor missing, first {tensor}"):
        loaded(tmp_path)


def test_experts_of_another_number_are_refused(tmp_path: Path) -> None:
    save(loud(ARCHITECTURES["qwen3_moe"]), tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_experts": 3}))
    with pytest.raises(UserError, match=r"without a place, first model.layers.0.mlp.experts.3"):
        loaded(tmp_path)


def test_positions_are_slowed_down_only_where_llama_3_does() -> None:
    from prime_train.trainer.model.rotary import rotations

    scaling = ARCHITECTURES["llama3"].rope_scaling
    plain, scaled = (rotations(torch.tensor([[1]]), 16, 10000.0, given) for given in (None, scaling))
    angles, slower = (torch.atan2(-sin, cos).flatten()[:8] for cos, sin in (plain, scaled))  # (D/2,)
    ratio = angles / slower
    assert 1 < ratio[0] < 8  # 2.5 turns in the 16 positions of the first context: between the two limits
    torch.testing.assert_close(ratio[1:], torch.full((7,), 8.0), rtol=1e-3, atol=0)  # less than one turn


@pytest.mark.parametrize(
    ("name", "parts", "at"),
    [
        ("gpt2", {"data": {"ctx_tokens": 51}}, "data.ctx_tokens"),
        ("mistral", {"data": {"ctx_tokens": 65}}, "data.ctx_tokens"),
        ("qwen3_moe", {"parallel": {"processes": 3, "dp_shard": 3}}, "parallel.dp_shard"),
        ("qwen3_moe", {"model": {"lora": Adapter()}}, "model.lora.targets"),
    ],
)
def test_the_trainer_refuses_what_the_architecture_does_not_allow(
    name: str, parts: dict[str, dict[str, Any]], at: str, tmp_path: Path
) -> None:
    run = tiny.run_spec(tmp_path)
    refuse_conflicts(run, ARCHITECTURES[name])
    changed = {part: replace(getattr(run, part), **values) for part, values in parts.items()}
    with pytest.raises(UserError) as refused:
        refuse_conflicts(replace(run, **changed), ARCHITECTURES[name])
    assert refused.value.where == at
    assert refused.value.fix.startswith(f"{at} = ")
