"""The loss of GRPO: a clipped importance ratio for each token, and optionally the divergence from a reference.

Every token of the step has the same weight, however long its rollout is. Sources: the clipped ratio, PPO, arXiv
1707.06347, s. 3; token-level normalisation and a clip with two bounds, DAPO, arXiv 2503.14476, s. 3.1 and 3.3; the
estimator k3 of a divergence, r - 1 - log r, Schulman, "Approximating KL divergence", 2020.
Shapes: B rows, T positions, N counted tokens of a micro-batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from prime_train import spec
from prime_train.core.errors import UserError
from prime_train.core.rundir import RunDir
from prime_train.spec.rl import Rl
from prime_train.trainer import parallel
from prime_train.trainer.build import gather_weights
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training
from prime_train.trainer.model.attention import Plan, move_plan, plan_shared_prompts
from prime_train.trainer.model.decoder import Counted, Decoder, ModelConfig
from prime_train.trainer.parallel import World
from prime_train.trainer.rl.batch import PolicyBatch


@dataclass(frozen=True, slots=True)
class PolicyStats:
    """Means over the counted tokens of a step, of all ranks."""

    entropy: float  # nats, of the distribution that is sampled from
    clip_ratio: float  # fraction of tokens whose gradient the clip removes
    behind_kl: float  # from the weights that generated the rollouts to those of the step, nats per token
    reference_kl: float | None  # from the reference, nats per token
    mismatch_kl: float | None  # engine and trainer with the same weights, nats per token; None if none were compared


class PolicyLoss:
    """Computes the summed loss of micro-batches, and adds up the statistics of a step, on the device."""

    def __init__(self, policy: Rl, reference: nn.Module | None = None) -> None:
        self._policy = policy
        self._reference = reference
        self._sums: list[Tensor] = []  # (7,) fp64 of each micro-batch
        self._compared: list[Tensor] = []  # (2,) fp64

    def take_settings(self, policy: Rl) -> None:
        """Go on with the settings that change while the run trains: kl_coef, where there is a reference model."""
        self._policy = policy

    def __call__(self, model: nn.Module, batch: PolicyBatch, device: Device) -> Tensor:
        """Sum of the loss over the counted tokens of one micro-batch, 0-d."""
        policy = self._policy
        plan, batch = move_batch(batch, device)
        logprobs, entropy = next_token_logprobs(model, plan, batch, device)  # (N,), (N,)
        log_ratio = logprobs - batch.engine_logprobs  # (N,)
        ratio = log_ratio.exp()  # (N,)
        clipped = ratio.clamp(1 - policy.clip_low, 1 + policy.clip_high)  # (N,)
        loss = -torch.minimum(ratio * batch.advantages, clipped * batch.advantages)  # (N,)
        reference_kl = torch.zeros_like(loss)  # (N,)
        if self._reference is not None:
            with torch.no_grad():
                reference, _ = next_token_logprobs(self._reference, plan, batch, device)  # (N,)
            reference_kl = estimate_kl(reference - logprobs)  # (N,)
            loss = loss + policy.kl_coef * reference_kl  # (N,)
        self._add(batch.fresh, entropy, log_ratio, clipped * batch.advantages, reference_kl)
        return loss.sum()

    @torch.no_grad()
    def compare(self, model: nn.Module, batch: PolicyBatch, device: Device) -> None:
        """Measure the mismatch over fresh rollouts that the step does not learn from. Only used if it has no others."""
        plan, batch = move_batch(batch, device)
        logprobs, _ = next_token_logprobs(model, plan, batch, device)  # (N,)
        mismatch_kl = estimate_kl(logprobs - batch.engine_logprobs) * batch.fresh  # (N,)
        self._compared.append(_sum_each(batch.fresh, mismatch_kl))

    @torch.no_grad()
    def _add(self, fresh: Tensor, entropy: Tensor, log_ratio: Tensor, limited: Tensor, reference_kl: Tensor) -> None:
        """Add a micro-batch to the statistics. All (N,); `limited`: the clipped ratio times the advantage."""
        ratio = log_ratio.exp()
        behind_kl = estimate_kl(log_ratio)
        too_low, too_high = ratio < 1 - self._policy.clip_low, ratio > 1 + self._policy.clip_high
        outside = too_low & (limited < 0) | too_high & (limited > 0)
        counted = torch.ones_like(ratio)
        self._sums.append(_sum_each(counted, entropy, outside, behind_kl, reference_kl, fresh, behind_kl * fresh))

    def take_stats(self, world: World, device: Device) -> PolicyStats:
        """The statistics since the last call; all ranks call it. The host waits for the device here and not before."""
        own, compared = (torch.zeros(size, dtype=torch.float64, device=device.torch) for size in (7, 2))
        parts = [sum(self._sums, own), sum(self._compared, compared)]
        self._sums, self._compared = [], []
        tokens, entropy, outside, behind_kl, reference_kl, *mismatch = world.sum(torch.cat(parts)).tolist()
        tokens = max(1.0, tokens)
        return PolicyStats(
            entropy=entropy / tokens,
            clip_ratio=outside / tokens,
            behind_kl=behind_kl / tokens,
            reference_kl=None if self._reference is None else reference_kl / tokens,
            # Of the tokens of the step that are fresh, else of those that were compared.
            mismatch_kl=next((total / count for count, total in (mismatch[:2], mismatch[2:]) if count), None),
        )


def move_batch(batch: PolicyBatch, device: Device) -> tuple[Plan, PolicyBatch]:
    """How the rows of a micro-batch attend, and its tensors, on the device by one copy. Its parts are in the plan."""
    plan = None if batch.parts is None else plan_shared_prompts(batch.parts, device)
    counted = (batch.places, batch.labels, batch.engine_logprobs, batch.advantages, batch.fresh)  # (N,) each
    tensors = (batch.tokens, batch.positions, *counted)
    plan, (tokens, positions, places, labels, logprobs, advantages, fresh) = move_plan(plan, tensors, device.torch)
    moved = (places, labels, logprobs, advantages, fresh)
    return plan, PolicyBatch(tokens, positions, None, *moved, batch.temperature)


def next_token_logprobs(model: nn.Module, plan: Plan, batch: PolicyBatch, device: Device) -> tuple[Tensor, Tensor]:
    """Log-probability of each counted token at the engine's temperature, (N,) fp32, and the entropy, (N,)."""
    counted = Counted(batch.places, batch.labels, batch.temperature)
    with device.autocast():
        logprobs, entropy = model(batch.tokens, batch.positions, plan, labels=counted)
    return logprobs, entropy


def estimate_kl(log_ratio: Tensor) -> Tensor:
    """KL(p || q) for each token drawn from p, where `log_ratio` = log q - log p. Never negative; its mean is exact."""
    return torch.expm1(log_ratio) - log_ratio


def _sum_each(*values: Tensor) -> Tensor:
    """The sums of K tensors of (N,), (K,) fp64."""
    return torch.stack([value.double().sum() for value in values])


def save_reference(run_dir: RunDir, training: Training) -> None:
    """Write the weights of the model, with adapters merged. Every process calls it; rank 0 writes."""
    weights = gather_weights(training.model)
    if training.world.rank == 0:
        path = _reference_path(run_dir)
        partial = path.with_suffix(".partial")
        save_file({name: weight.detach().cpu().contiguous() for name, weight in weights.items()}, partial)
        partial.replace(path)
    training.world.share(None)  # no process reads the file before it is complete


def load_reference(run_dir: RunDir, config: ModelConfig, training: Training, layout: spec.Parallel) -> nn.Module:
    """A frozen model with the reference's weights, sharded like the trained one. Raises UserError without the file."""
    path = _reference_path(run_dir)
    with torch.device("meta"):
        model = Decoder(replace(config, pad_vocab=False))  # the file has no padding
    model.to_empty(device="cpu")
    try:
        with safe_open(path, framework="pt") as file, torch.no_grad():
            for name, weight in model.state_dict().items():
                weight.copy_(file.get_tensor(name))
    except (SafetensorError, OSError, RuntimeError) as error:
        what = f"the reference weights cannot be read: {error}"
        why = "rl.kl_coef compares the model with that of the first RL step, which only this file has"
        raise UserError(what, str(path), why, "restore the file, or set rl.kl_coef = 0") from error
    model.requires_grad_(requires_grad=False)
    model.head_logprobs = parallel.unwrap_decoder(training.model).head_logprobs
    if layout.dp_shard > 1:  # FSDP2 moves its shards to the device, block by block
        return parallel.spread(model, training.world, layout, training.device)
    return model.to(training.device.torch)


def _reference_path(run_dir: RunDir) -> Path:
    """Not part of the checkpoints, because it never changes."""
    return run_dir.path / "reference.safetensors"
