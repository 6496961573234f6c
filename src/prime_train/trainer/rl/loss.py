"""The loss of GRPO: a clipped importance ratio for each token, and optionally the divergence from a reference.

Every token of the step has the same weight, however long its rollout is. Sources: the clipped ratio, PPO, arXiv
1707.06347, s. 3; token-level normalisation and a clip with two bounds, DAPO, arXiv 2503.14476, s. 3.1 and 3.3; the
estimator k3 of a divergence, r - 1 - log r, Schulman, "Approximating KL divergence", 2020.

Shapes: B rows, T positions, V vocabulary, N counted tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from prime_train.spec.rl import Rl
from prime_train.trainer.attention import move_plan, plan_shared_prompts
from prime_train.trainer.data.batch import IGNORED
from prime_train.trainer.device import Device
from prime_train.trainer.parallel import World
from prime_train.trainer.rl.batch import PolicyBatch


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """Means over the counted tokens of a step, of all ranks."""

    entropy: float  # nats, of the distribution that is sampled from
    clip_ratio: float  # fraction of tokens whose gradient the clip removes
    behind_kl: float  # from the weights that generated the rollouts to those of the step, nats per token
    reference_kl: float | None  # from the reference, nats per token
    mismatch_kl: float | None  # engine and trainer with the same weights, nats per token; None without such tokens


class PolicyLoss:
    """Computes the summed loss of micro-batches, and adds up the statistics of a step."""

    def __init__(self, policy: Rl, reference: nn.Module | None = None) -> None:
        self._policy = policy
        self._reference = reference
        self._sums = torch.zeros(7, dtype=torch.float64)

    def __call__(self, model: nn.Module, batch: PolicyBatch, device: Device) -> Tensor:
        """Sum of the loss over the counted tokens of one micro-batch, 0-d."""
        policy, at = self._policy, device.torch
        labels = batch.labels.to(at)  # (B, T)
        counted = labels != IGNORED  # (B, T)
        logprobs, entropy = next_token_logprobs(model, batch, device, policy.temperature)  # (N,), (N,)
        engine = batch.engine_logprobs.to(at)[counted]  # (N,)
        advantages = batch.advantages.to(at)[counted]  # (N,)
        log_ratio = logprobs - engine  # (N,)
        ratio = log_ratio.exp()  # (N,)
        clipped = ratio.clamp(1 - policy.clip_low, 1 + policy.clip_high)  # (N,)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)  # (N,)
        reference_kl = torch.zeros_like(loss)  # (N,)
        if self._reference is not None:
            with torch.no_grad():
                reference, _ = next_token_logprobs(self._reference, batch, device, policy.temperature)  # (N,)
            reference_kl = estimate_kl(reference - logprobs)  # (N,)
            loss = loss + policy.kl_coef * reference_kl  # (N,)
        self._add(batch.fresh.to(at)[counted], entropy, log_ratio, clipped * advantages, reference_kl)
        return loss.sum()

    @torch.no_grad()
    def _add(self, fresh: Tensor, entropy: Tensor, log_ratio: Tensor, limited: Tensor, reference_kl: Tensor) -> None:
        """Add a micro-batch to the statistics. All (N,); `limited`: the clipped ratio times the advantage."""
        ratio = log_ratio.exp()
        behind_kl = estimate_kl(log_ratio)
        outside = (ratio < 1 - self._policy.clip_low) & (limited < 0) | (ratio > 1 + self._policy.clip_high) & (
            limited > 0
        )
        values = (torch.ones_like(ratio), entropy, outside, behind_kl, reference_kl, fresh, behind_kl * fresh)
        self._sums += torch.stack([value.double().sum() for value in values]).cpu()

    def take_stats(self, world: World, device: Device) -> PolicyStats:
        """The statistics since the last call; all ranks call it."""
        sums = world.sum(self._sums.to(device.torch)).tolist()
        self._sums = torch.zeros_like(self._sums)
        tokens, entropy, outside, behind_kl, reference_kl, fresh, mismatch_kl = sums
        tokens = max(1.0, tokens)
        return PolicyStats(
            entropy=entropy / tokens,
            clip_ratio=outside / tokens,
            behind_kl=behind_kl / tokens,
            reference_kl=None if self._reference is None else reference_kl / tokens,
            mismatch_kl=mismatch_kl / fresh if fresh else None,
        )


def next_token_logprobs(
    model: nn.Module, batch: PolicyBatch, device: Device, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probability of each counted token, (N,) fp32 with gradients, and the entropy there, (N,) without.

    Both are of the distribution that the engine samples from: the logits are divided by the temperature.
    """
    plan = None if batch.parts is None else plan_shared_prompts(batch.parts, device)
    plan, moved = move_plan(plan, (batch.tokens, batch.labels, batch.positions), device.torch)
    tokens, labels, positions = moved  # (B, T)
    counted = labels != IGNORED  # (B, T)
    with device.autocast():
        logits = model(tokens, positions, plan)[counted]  # (N, V)
    spread = F.log_softmax(logits.float() / temperature, -1)  # (N, V)
    with torch.no_grad():
        entropy = -(spread.exp() * spread).sum(-1)  # (N,)
    return spread.gather(-1, labels[counted].unsqueeze(-1)).squeeze(-1), entropy


def estimate_kl(log_ratio: Tensor) -> Tensor:
    """KL(p || q) for each token drawn from p, where `log_ratio` = log q - log p. Never negative; its mean is exact."""
    return torch.expm1(log_ratio) - log_ratio


@torch.no_grad()
def measure_mismatch(model: nn.Module, batch: PolicyBatch, device: Device, temperature: float) -> float | None:
    """The divergence of engine and trainer over the fresh rollouts of a batch, nats per token; None without one."""
    logprobs, _ = next_token_logprobs(model, batch, device, temperature)  # (N,)
    labels = batch.labels.to(device.torch)  # (B, T)
    counted = labels != IGNORED
    fresh = batch.fresh.to(device.torch)[counted]  # (N,)
    divergence = estimate_kl(logprobs - batch.engine_logprobs.to(device.torch)[counted])[fresh]
    return float(divergence.double().mean()) if len(divergence) else None
