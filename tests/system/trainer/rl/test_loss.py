"""The loss of GRPO against a loop over tokens, and against TRL."""

from __future__ import annotations

import math
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from prime_train import spec
from prime_train.spec.rl import Rl
from prime_train.trainer import parallel
from prime_train.trainer.build import gather_weights
from prime_train.trainer.loops.step import Training, adamw, take_step
from prime_train.trainer.model.decoder import Decoder, HeadLogprobs, whole_logprobs
from prime_train.trainer.model.head_loss import chunked_logprobs
from prime_train.trainer.parallel import World
from prime_train.trainer.rl.batch import JudgedRollout, PolicyBatch, share_prompts, share_rows, to_policy_batch
from prime_train.trainer.rl.loss import PolicyLoss, PolicyStats, estimate_kl, move_batch, next_token_logprobs
from tests.system.trainer.two_ranks import run_on_two_ranks
from tests.unit.trainer import tiny
from tests.unit.trainer.rl.made_rollouts import alone, group, rollout

ALONE = World(rank=0, size=1)
SAMPLES = [
    JudgedRollout(rollout(1, version=2), 0.7),
    JudgedRollout(rollout(2, turns=3), -1.3),
    JudgedRollout(rollout(3, turns=2, truncated=True), 2.0, counts=False),
    JudgedRollout(rollout(4), 0.2),
    JudgedRollout(rollout(5, turns=2), -0.4),
]
GROUPS = [
    JudgedRollout(made, advantage, counts=not made.truncated)
    for made, advantage in zip(
        [*group(6, 4), *group(7, 3, turns=2)], [1.1, -0.6, 0.0, -1.5, 0.3, 0.9, -2.0], strict=True
    )
]
POLICIES = {
    "clipped": Rl(clip_low=0.1, clip_high=0.25),
    "with a reference": Rl(kl_coef=0.3),
    "at another temperature": Rl(temperature=0.7, kl_coef=0.1),
    "hardly clipped": Rl(clip_low=1.0, clip_high=50.0),
}


def logprobs_of(model: Decoder, tokens: Tensor, temperature: float) -> Tensor:
    """(T - 1, V) fp64: of each next token of one sequence (T,)."""
    inputs = tokens[:-1].unsqueeze(0)
    logits: Tensor = model(inputs, torch.arange(inputs.shape[1]).unsqueeze(0), None)[0]
    return (logits.double() / temperature).log_softmax(-1)


def naive_loss(
    model: Decoder, reference: Decoder, samples: list[JudgedRollout], policy: Rl
) -> tuple[Tensor, PolicyStats]:
    """The definition of the loss, one token after the other."""
    losses, entropies, divergences, from_reference, clipped = [], [], [], [], 0
    for sample in samples:
        made = sample.rollout
        tokens = torch.tensor(made.tokens)
        logprobs = logprobs_of(model, tokens, policy.temperature)
        reference_logprobs = logprobs_of(reference, tokens, policy.temperature).detach()
        for place, token in enumerate(made.tokens):
            if not made.sampled[place] or not sample.counts:
                continue
            logprob = logprobs[place - 1, token]
            ratio = torch.exp(logprob - made.logprobs[place])
            limited = min(max(float(ratio), 1 - policy.clip_low), 1 + policy.clip_high)
            if sample.advantage >= 0:
                gain = ratio * sample.advantage if ratio <= 1 + policy.clip_high else limited * sample.advantage
                clipped += bool(ratio > 1 + policy.clip_high)
            else:
                gain = ratio * sample.advantage if ratio >= 1 - policy.clip_low else limited * sample.advantage
                clipped += bool(ratio < 1 - policy.clip_low)
            toward = reference_logprobs[place - 1, token] - logprob
            divergence = torch.exp(toward) - toward - 1
            losses.append(-gain + policy.kl_coef * divergence)
            from_reference.append(float(divergence))
            entropies.append(-float((logprobs[place - 1].exp() * logprobs[place - 1]).sum()))
            back = float(logprob) - made.logprobs[place]
            divergences.append(math.exp(back) - back - 1)
    count = len(losses)
    loss = sum(torch.as_tensor(value) for value in losses) / count
    assert isinstance(loss, Tensor)
    return loss, PolicyStats(
        entropy=sum(entropies) / count,
        clip_ratio=clipped / count,
        behind_kl=sum(divergences) / count,
        reference_kl=sum(from_reference) / count if policy.kl_coef else None,
        mismatch_kl=None,
    )


def training(model: Decoder) -> Training:
    return Training(model, adamw(model, spec.Optim(lr=1e-9)), ALONE, tiny.CPU, clip_norm=None)


class GradientsKept:
    """The gradients at the moment before the update."""

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.gradients: dict[str, Tensor] = {}

    def __call__(self) -> None:
        named = self.model.named_parameters()
        self.gradients = {name: weight.grad.clone() for name, weight in named if weight.grad is not None}


def _at(sample: JudgedRollout, temperature: float) -> JudgedRollout:
    return replace(sample, rollout=replace(sample.rollout, temperature=temperature))


def stepped(
    policy: Rl, micro_batch: int, samples: list[JudgedRollout], head_logprobs: HeadLogprobs = whole_logprobs
) -> tuple[float, dict[str, Tensor], PolicyStats]:
    """Loss, gradients and statistics of one step of the trainer."""
    model, reference = tiny.decoder(seed=1), tiny.decoder(seed=2)
    model.head_logprobs = reference.head_logprobs = head_logprobs
    loss = PolicyLoss(policy, reference if policy.kl_coef else None)
    rows = share_prompts([_at(sample, policy.temperature) for sample in samples], micro_batch)
    batches = [to_policy_batch(part, version=5) for part in share_rows(rows, micro_batch=micro_batch, rank=0, ranks=1)]
    kept = GradientsKept(model)
    result = take_step(training(model), batches, 1e-9, loss, before_update=kept)
    return result.loss, kept.gradients, loss.take_stats(ALONE, tiny.CPU)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
@pytest.mark.parametrize("micro_batch", [1, 2, 5])
@pytest.mark.parametrize("samples", [SAMPLES, SAMPLES + GROUPS], ids=["single", "with groups"])
def test_a_step_is_the_definition_token_by_token(policy: Rl, micro_batch: int, samples: list[JudgedRollout]) -> None:
    loss, gradients, stats = stepped(policy, micro_batch, samples)
    model = tiny.decoder(seed=1)
    expected, expected_stats = naive_loss(model, tiny.decoder(seed=2), samples, policy)
    expected.backward()  # type: ignore[no-untyped-call]
    assert loss == pytest.approx(float(expected.detach()), abs=1e-5)
    for name, weight in model.named_parameters():
        assert weight.grad is not None
        torch.testing.assert_close(gradients[name], weight.grad, atol=1e-5, rtol=1e-5)
    for field in ("entropy", "clip_ratio", "behind_kl", "reference_kl"):
        assert getattr(stats, field) == pytest.approx(getattr(expected_stats, field), abs=1e-5)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_step_with_log_probabilities_in_chunks_is_the_same(policy: Rl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prime_train.trainer.model.head_loss.rows_of_logprobs", lambda _: 5)
    loss, gradients, stats = stepped(policy, 2, SAMPLES + GROUPS, chunked_logprobs)
    expected, expected_gradients, expected_stats = stepped(policy, 2, SAMPLES + GROUPS)
    assert loss == pytest.approx(expected, abs=1e-6)
    assert asdict(stats) == pytest.approx(asdict(expected_stats), abs=1e-6)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(gradients[name], gradient, atol=1e-5, rtol=1e-5)


def test_a_rank_without_rollouts_has_a_loss_and_gradients_of_zero() -> None:
    for head_logprobs in (whole_logprobs, chunked_logprobs):
        model = tiny.decoder()
        model.head_logprobs = head_logprobs
        loss = PolicyLoss(Rl())(model, to_policy_batch([], version=1), tiny.CPU)
        loss.backward()  # type: ignore[no-untyped-call]
        assert float(loss.detach()) == 0
        assert all(weight.grad is not None and not weight.grad.any() for weight in model.parameters())


@pytest.mark.parametrize("head_logprobs", [whole_logprobs, chunked_logprobs])
def test_a_micro_batch_is_computed_without_a_look_at_a_value(head_logprobs: HeadLogprobs) -> None:
    """A value that the host reads makes it wait for the device. A tensor without data raises an error there."""
    batch = to_policy_batch(alone(SAMPLES), version=1)
    with FakeTensorMode() as fake:
        model, reference = Decoder(tiny.CONFIG), Decoder(tiny.CONFIG)
        model.head_logprobs = reference.head_logprobs = head_logprobs
        values: dict[str, Any] = {field.name: getattr(batch, field.name) for field in fields(batch)}
        tensors: dict[str, Any] = {
            name: fake.from_tensor(value) if isinstance(value, torch.Tensor) else value
            for name, value in values.items()
        }
        without_data = PolicyBatch(**tensors)
        loss = PolicyLoss(Rl(kl_coef=0.1), reference)
        loss(model, without_data, tiny.CPU).backward()  # type: ignore[no-untyped-call]
        loss.compare(model, without_data, tiny.CPU)
        with pytest.raises(DataDependentOutputException):
            loss.take_stats(ALONE, tiny.CPU)
    assert all(weight.grad is not None for weight in model.parameters())


def _step_of_rank(rank: int, ranks: int, dp_shard: int, head_logprobs: HeadLogprobs) -> dict[str, Any]:
    """Statistics, and on rank 0 the weights, after a step in which the ranks share the samples."""
    world = World(rank, ranks, local_size=ranks)
    model, policy = tiny.decoder(seed=1), POLICIES["with a reference"]
    reference = tiny.decoder(seed=2)
    model.head_logprobs = reference.head_logprobs = head_logprobs
    layout = spec.Parallel(processes=ranks, dp_shard=dp_shard)
    reference.requires_grad_(requires_grad=False)
    loss = PolicyLoss(policy, parallel.spread(reference, world, layout, tiny.CPU) if dp_shard > 1 else reference)
    spread = parallel.spread(model, world, layout, tiny.CPU)
    training = Training(spread, adamw(spread, spec.Optim(eps=1e-3)), world, tiny.CPU, clip_norm=1.0)
    rows = share_rows(share_prompts(SAMPLES + GROUPS, 3), micro_batch=3, rank=rank, ranks=ranks)
    take_step(training, [to_policy_batch(part, version=2) for part in rows], 1e-2, loss)
    return {"stats": asdict(loss.take_stats(world, tiny.CPU)), "weights": gather_weights(spread)}


def _steps_in_chunks(rank: int) -> list[dict[str, Any]]:
    """With DDP and with FSDP2."""
    with patch("prime_train.trainer.model.head_loss.rows_of_logprobs", lambda _: 5):
        return [_step_of_rank(rank, 2, dp_shard, chunked_logprobs) for dp_shard in (1, 2)]


def test_a_step_in_chunks_on_two_ranks_is_that_of_one_with_all_logits(tmp_path: Path) -> None:
    expected = _step_of_rank(0, 1, 1, whole_logprobs)
    first, second = run_on_two_ranks(_steps_in_chunks, tmp_path)
    for found in (*first, *second):
        assert found["stats"] == pytest.approx(expected["stats"], abs=1e-6)
    for found in first:
        for name, weight in expected["weights"].items():
            torch.testing.assert_close(found["weights"][name], weight, atol=1e-5, rtol=1e-5)


def test_rollouts_that_share_their_prompt_have_the_log_probabilities_of_rows_of_their_own() -> None:
    rows = share_prompts(GROUPS, most=7)
    assert max(row.sequences for row in rows) > 1
    together, apart = to_policy_batch(rows, version=1), to_policy_batch(alone(GROUPS), version=1)
    assert together.tokens.numel() < apart.tokens.numel()
    found, _ = next_token_logprobs(tiny.decoder(), *move_batch(together, tiny.CPU), tiny.CPU)
    expected, _ = next_token_logprobs(tiny.decoder(), *move_batch(apart, tiny.CPU), tiny.CPU)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_clip_of_these_samples_has_both_sides() -> None:
    _, stats = naive_loss(tiny.decoder(seed=1), tiny.decoder(seed=2), SAMPLES, POLICIES["clipped"])
    assert 0.1 < stats.clip_ratio < 0.9


def naive_mismatch(model: Decoder, samples: list[JudgedRollout]) -> float:
    """The mean divergence from the engine to the model over the tokens that the model wrote."""
    divergences = []
    for made in (sample.rollout for sample in samples):
        logprobs = logprobs_of(model, torch.tensor(made.tokens), 1.0)
        for place in range(1, len(made.tokens)):
            if made.sampled[place]:
                toward = float(logprobs[place - 1, made.tokens[place]]) - made.logprobs[place]
                divergences.append(math.exp(toward) - toward - 1)
    return sum(divergences) / len(divergences)


def test_only_rollouts_of_the_weights_of_the_step_measure_the_mismatch() -> None:
    loss, model = PolicyLoss(Rl()), tiny.decoder()
    loss(model, to_policy_batch(alone(SAMPLES), version=2), tiny.CPU)
    loss.compare(model, to_policy_batch(alone(SAMPLES[1:]), version=1), tiny.CPU)  # not needed
    expected = naive_mismatch(model, SAMPLES[:1])
    assert loss.take_stats(ALONE, tiny.CPU).mismatch_kl == pytest.approx(expected, rel=1e-4)


def test_a_step_without_fresh_rollouts_measures_the_mismatch_over_those_that_are_compared() -> None:
    loss, model = PolicyLoss(Rl()), tiny.decoder()
    loss(model, to_policy_batch(alone(SAMPLES[:1]), version=9), tiny.CPU)
    loss.compare(model, to_policy_batch(alone(SAMPLES[:2]), version=1), tiny.CPU)  # the first has another version
    expected = naive_mismatch(model, SAMPLES[1:2])
    assert loss.take_stats(ALONE, tiny.CPU).mismatch_kl == pytest.approx(expected, rel=1e-4)
    assert loss.take_stats(ALONE, tiny.CPU).mismatch_kl is None


def test_the_statistics_of_a_step_begin_at_zero() -> None:
    loss = PolicyLoss(Rl())
    loss(tiny.decoder(), to_policy_batch(alone(SAMPLES), version=1), tiny.CPU)
    first = loss.take_stats(ALONE, tiny.CPU)
    loss(tiny.decoder(), to_policy_batch(alone(SAMPLES), version=1), tiny.CPU)
    assert loss.take_stats(ALONE, tiny.CPU) == first


def test_the_estimate_of_a_divergence_is_never_negative_and_right_on_average() -> None:
    generator = torch.Generator().manual_seed(1)
    p, q = (torch.randn(8, generator=generator).double().log_softmax(-1) for _ in range(2))
    drawn = torch.multinomial(p.exp(), 200_000, replacement=True, generator=generator)
    estimates = estimate_kl((q - p)[drawn])
    assert float(estimates.min()) >= 0
    assert float(estimates.mean()) == pytest.approx(float((p.exp() * (p - q)).sum()), rel=0.02)


def test_a_token_that_the_engine_found_impossible_gives_a_loss_that_is_not_finite() -> None:
    made = rollout(1)
    impossible = tuple(-1e4 if wrote else 0.0 for wrote in made.sampled)
    batch = to_policy_batch(alone([JudgedRollout(replace(made, logprobs=impossible), -1.0)]), version=1)
    assert not math.isfinite(float(PolicyLoss(Rl())(tiny.decoder(), batch, tiny.CPU).detach()))
