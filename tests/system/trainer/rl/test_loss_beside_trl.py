"""The loss and gradients of a step against TRL's GRPOTrainer, for a loss that both define alike (`bnpo`).

TRL is part of the bench extra: pip install 'prime-train[bench]'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from prime_train.spec.rl import Rl
from prime_train.trainer.model import hf
from prime_train.trainer.rl.batch import JudgedRollout
from prime_train.trainer.tokenizer import train_bpe
from tests.system.trainer.rl.test_loss import POLICIES, SAMPLES, logprobs_of, stepped
from tests.unit.trainer import tiny


def open_trainer(folder: Path, policy: Rl) -> Any:
    """TRL's trainer of the model with the seed 1."""
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install 'prime-train[bench]'")
    datasets = pytest.importorskip("datasets")
    from transformers import PreTrainedTokenizerFast

    (folder / "bpe").mkdir()
    train_bpe(iter(["one text"]), 260, folder / "bpe")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "bpe" / "tokenizer.json"))
    tokenizer.pad_token = tokenizer.eos_token = tokenizer.convert_ids_to_tokens(0)
    export = hf.Export(ctx_tokens=64, stop_token=0)
    tiny.save_hf(folder / "model", tiny.CONFIG, tiny.decoder(seed=1).state_dict(), export)
    settings = trl.GRPOConfig(
        output_dir=str(folder / "out"),
        use_cpu=True,
        bf16=False,
        report_to=[],
        per_device_train_batch_size=len(SAMPLES),
        num_generations=len(SAMPLES),
        max_completion_length=32,
        loss_type="bnpo",
        epsilon=policy.clip_low,
        epsilon_high=policy.clip_high,
        beta=policy.kl_coef,
        use_bias_correction_kl=False,  # TRL's default weights the divergence by the importance ratio
        temperature=policy.temperature,
        disable_dropout=True,
    )
    return trl.GRPOTrainer(
        model=str(folder / "model"),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=settings,
        train_dataset=datasets.Dataset.from_dict({"prompt": ["one", "two", "three", "four", "five"]}),
        processing_class=tokenizer,
    )


def to_inputs(samples: list[JudgedRollout]) -> dict[str, Tensor]:
    """TRL's batch: prompts are padded on the left, completions on the right."""
    rollouts = [sample.rollout for sample in samples]
    starts = [rollout.sampled.index(True) for rollout in rollouts]
    parts = list(zip(rollouts, starts, strict=True))
    before = max(starts)
    after = max(len(rollout.tokens) - start for rollout, start in parts)

    def completion(values: list[Any], dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.tensor([[*row, *[0] * (after - len(row))] for row in values], dtype=dtype)

    counted = [[int(sample.counts)] * len(sample.rollout.tokens) for sample in samples]
    return {
        "prompt_ids": torch.tensor([[0] * (before - start) + list(each.tokens[:start]) for each, start in parts]),
        "prompt_mask": torch.tensor([[0] * (before - start) + [1] * start for _, start in parts]),
        "completion_ids": completion([each.tokens[start:] for each, start in parts]),
        "completion_mask": completion([row[start:] for row, start in zip(counted, starts, strict=True)]),
        "tool_mask": completion([each.sampled[start:] for each, start in parts]),
        "old_per_token_logps": completion([each.logprobs[start:] for each, start in parts], torch.float32),
        "advantages": torch.tensor([sample.advantage for sample in samples]),
    }


def reference_logprobs(samples: list[JudgedRollout], temperature: float, longest: int) -> Tensor:
    """(B, completion) of the model with the seed 2."""
    rows = torch.zeros(len(samples), longest)
    for row, sample in zip(rows, samples, strict=True):
        tokens = torch.tensor(sample.rollout.tokens)
        logprobs = logprobs_of(tiny.decoder(seed=2), tokens, temperature)  # (T - 1, V)
        found = logprobs.gather(1, tokens[1:].unsqueeze(1)).squeeze(1)[sample.rollout.sampled.index(True) - 1 :]
        row[: len(found)] = found.detach()
    return rows


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_the_step_is_that_of_trl(policy: Rl, tmp_path: Path) -> None:
    trainer = open_trainer(tmp_path, policy)
    inputs = to_inputs(SAMPLES)
    if policy.kl_coef:
        inputs["ref_per_token_logps"] = reference_logprobs(
            SAMPLES, policy.temperature, inputs["completion_ids"].shape[1]
        )
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.train()
    expected = trainer._compute_loss(trainer.model, inputs)
    expected.backward()
    loss, gradients, _ = stepped(policy, micro_batch=2, samples=SAMPLES)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    of_trl = {name: weight.grad for name, weight in trainer.model.named_parameters()}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, of_trl[hf.hf_name(name)], atol=1e-5, rtol=1e-4)
