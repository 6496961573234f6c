"""Builds AdamW and runs one optimizer step over its micro-batches. Writes no file and no event.

A step is launched, and read when its numbers are needed. In between the device computes it: whether the weights may
change is decided there, so that the host can launch the next step meanwhile.
Shapes: B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from prime_train import spec
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.device import Device, HostCopy, copy_to_host
from prime_train.trainer.loops.spikes import Spikes, StepResult
from prime_train.trainer.loops.step_spans import StepSpans
from prime_train.trainer.model.attention import move_plan, plan_attention
from prime_train.trainer.model.experts import Routers, read_load
from prime_train.trainer.parallel import World, sync_gradients


@dataclass(frozen=True, slots=True)
class Training:
    """The objects that a step uses. `model` is the wrapped model."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    world: World
    device: Device
    clip_norm: float | None
    spans: StepSpans = field(default_factory=lambda: StepSpans(0, torch.device("cpu")))
    spikes: Spikes = field(default_factory=Spikes)
    reduce: Literal["each", "last"] = "each"
    routers: Routers | None = None  # None without experts


class Votes(NamedTuple):
    """What this rank adds to the sum of a step, beside its tokens."""

    stop: bool = False  # it is to stop
    has_plan: bool = False  # it has the next plan of settings
    save: bool = False  # it is to save


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """An optimizer step that the device may still have to compute. The seconds are those of the launch."""

    numbers: HostCopy  # (8,) fp64, in the order of `read`; then those of read_load
    forward_backward_s: float
    wait_s: float
    optimizer_s: float

    def read(self) -> StepResult:
        """The result. The host waits until the device has computed the step, which is its only wait in a step."""
        began = time.perf_counter()
        loss, grad_norm, tokens, stop, plans, save, skipped, norm_limit, *load = self.numbers.wait().tolist()
        return StepResult(
            loss=loss,
            grad_norm=grad_norm,
            tokens=round(tokens),
            stop=stop > 0,
            forward_backward_s=self.forward_backward_s + time.perf_counter() - began,
            wait_s=self.wait_s,
            optimizer_s=self.optimizer_s,
            skipped=skipped > 0,
            save=save > 0,
            norm_limit=norm_limit,
            ready_ranks=round(plans),
            expert_load=read_load(load) if load and not skipped else None,
        )


DECAYS = "decays"  # of a group of an optimizer: whether optim.weight_decay holds for its weights
_EMBEDDINGS = ("embedding.weight", "positions.weight")  # of tokens, and GPT-2's of positions

NO_VOTES = Votes()
IDLE = StepResult(  # of a step without anything to learn from
    loss=0.0, grad_norm=0.0, tokens=0, stop=False, forward_backward_s=0.0, wait_s=0.0, optimizer_s=0.0
)


class Labelled(Protocol):
    """A micro-batch of any kind of loss."""

    @property
    def tokens(self) -> Tensor: ...  # (B, T)

    @property
    def labelled_tokens(self) -> int: ...


AnyBatch = TypeVar("AnyBatch", bound=Labelled)
LossSum = Callable[[nn.Module, AnyBatch, Device], Tensor]  # the loss summed over the labelled tokens, 0-d


def take_step(
    training: Training,
    micro_batches: Sequence[AnyBatch],
    lr: float,
    compute_loss: LossSum[AnyBatch],
    *,
    votes: Votes = NO_VOTES,
    before_update: Callable[[], None] = lambda: None,
) -> StepResult:
    """`launch_step`, read at once."""
    launched = launch_step(training, micro_batches, lr, compute_loss, votes=votes, before_update=before_update)
    return launched.read()


def take_idle_step(training: Training, votes: Votes) -> StepResult:
    """A step without anything to learn from: only the votes are summed."""
    counts = _count((), votes, training.device.torch)  # (4,)
    _, stops, plans, saves = training.world.sum(counts).tolist()
    return replace(IDLE, stop=stops > 0, save=saves > 0, ready_ranks=round(plans))


def launch_step(
    training: Training,
    micro_batches: Sequence[AnyBatch],
    lr: float,
    compute_loss: LossSum[AnyBatch],
    *,
    votes: Votes = NO_VOTES,
    before_update: Callable[[], None] = lambda: None,
) -> LaunchedStep:
    """Forward, backward, clip and update. `before_update` is called directly before the launch of the update.

    The weights do not change where the loss or the gradient norm is not finite or the norm is a spike on any rank. No
    line in here may wait for the device, which would be without work from then on (test_host_waits.py counts the
    waits). The loss is divided by the labelled tokens of all ranks, so any split of the same rows over micro-batches
    and ranks gives the same gradient. Raises NotCommittedError where a replica was lost; then nothing has changed but
    the gradients.
    """
    began = time.perf_counter()
    world, spans = training.world, training.spans
    # Counted first, because the gradient of every micro-batch is divided by the tokens of all of them.
    counts = _count(micro_batches, votes, training.device.torch)  # (4,)
    with spans.span("communication"):
        labelled, stops, plans, saves = world.sum_step(counts)  # () each
    if training.routers is not None:
        training.routers.begin(world.size / labelled)
    # At least 1: rows of one replica alone may have no label.
    own_loss = _accumulate(training, micro_batches, labelled.clamp(min=1.0), compute_loss)  # ()
    with spans.span("communication"):
        world.sum_gradients(training.model)
    loss, grad_norm, limit, skip = _judge(training, own_loss)  # () each
    computed = time.perf_counter()
    # A save may still copy the weights, and it must have all of them from one step.
    before_update()
    waited = time.perf_counter()
    set_lr(training.optimizer, lr)
    spans.memory()
    with spans.span("optimizer"):
        update(training.optimizer, skip)
        training.optimizer.zero_grad(set_to_none=True)
    numbers = torch.stack([loss, grad_norm, labelled, stops, plans, saves, skip.to(loss), limit])  # (8,)
    if training.routers is not None:
        with spans.span("communication"):
            positions = sum(batch.tokens.numel() for batch in micro_batches)
            numbers = torch.cat((numbers, training.routers.end(world, positions, skip)))
    # After the update, so that what was read has been computed as a whole.
    copied = copy_to_host(numbers)
    return LaunchedStep(copied, computed - began, waited - computed, time.perf_counter() - waited)


def _count(micro_batches: Sequence[Labelled], votes: Votes, device: torch.device) -> Tensor:
    """The labelled tokens of this rank and its votes, (4,) fp64 on the device."""
    labelled = sum(batch.labelled_tokens for batch in micro_batches)
    counts = (labelled, *map(int, votes))
    # Written by kernels, because torch.tensor would copy from ordinary memory, for which the host waits.
    return torch.stack([torch.full((), count, dtype=torch.float64, device=device) for count in counts])


def _judge(training: Training, loss: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Clip and judge by this rank's loss, 0-d fp64: the loss of all ranks, the norm, its limit, and whether to skip."""
    spikes = training.spikes
    with training.spans.span("optimizer"):
        grad_norm = clip_(training.model.parameters(), training.clip_norm).to(loss)  # ()
        limit = spikes.limit_norm(loss.device)  # ()
        is_spike = ~(grad_norm <= limit) | grad_norm.isinf()  # (); also where it is nan
    # Every rank has to come to the same decision, because each changes its own copy or part of the weights.
    with training.spans.span("communication"):
        loss, found = training.world.sum_step(torch.stack([loss, is_spike.to(loss)]))  # (), ()
        # The last sum of the step: a step of which one sum has failed must change nothing.
        training.world.commit()
    skip = (found > 0) | ~loss.isfinite()  # ()
    spikes.add_norm(grad_norm, skip)
    return loss, grad_norm, limit, skip


def update(optimizer: torch.optim.Optimizer, skip: Tensor) -> None:
    """Change the weights, unless `skip`, 0-d bool on the device, is true there: then moments and counters stay too.

    `found_inf` is how torch's gradient scaler makes a fused optimizer skip (torch/amp/grad_scaler.py, torch 2.13).
    """
    optimizer.found_inf = skip.float()  # type: ignore[attr-defined]
    optimizer.step()
    del optimizer.found_inf  # type: ignore[attr-defined]


def _accumulate(
    training: Training, micro_batches: Sequence[AnyBatch], tokens: Tensor, compute_loss: LossSum[AnyBatch]
) -> Tensor:
    """Add up the gradients of the step's mean loss; returns this rank's part of that loss, 0-d fp64."""
    # DDP and FSDP2 average gradients over ranks; the loss is a sum over ranks.
    scale = (training.world.size / tokens).float()  # ()
    total = torch.zeros((), dtype=torch.float64, device=training.device.torch)
    for number, batch in enumerate(micro_batches):
        sync_gradients(training.model, training.reduce, last=number + 1 == len(micro_batches))
        with training.spans.span("forward", batch.tokens.numel()):
            summed = compute_loss(training.model, batch, training.device)  # ()
        training.spans.memory()
        training.spans.backward(summed * scale)
        total += summed.detach().double()
    return total / tokens


def loss_sum(model: nn.Module, batch: MicroBatch, device: Device) -> Tensor:
    """Sum of the cross-entropy over the labelled tokens of one micro-batch, 0-d."""
    plan = plan_attention(batch.documents, batch.labels, device)
    plan, moved = move_plan(plan, (batch.tokens, batch.labels, batch.positions), device.torch)
    tokens, labels, positions = moved  # (B, T)
    with device.autocast():
        summed: Tensor = model(tokens, positions, plan, labels=labels)  # ()
        return summed


train_step = partial(take_step, compute_loss=loss_sum)  # with the cross-entropy of the labels


def adamw(model: nn.Module | Iterable[tuple[str, nn.Parameter]], config: spec.Optim) -> torch.optim.AdamW:
    """Fused AdamW with weight decay on matrices only, for a model or some of its named weights.

    Gains of norms get no decay, which would pull them from 1 to 0. Embeddings count as matrices, unless
    optim.decay_embeddings = false: a tied one is also the head. Fused on a CPU too: 12-15 ms a step against 60-80 ms
    for foreach (14 M parameters, two AVX2 cores, torch 2.13).
    """
    named = model.named_parameters() if isinstance(model, nn.Module) else model
    weights = [(name, weight) for name, weight in named if weight.requires_grad]
    undecayed = () if config.decay_embeddings else _EMBEDDINGS
    decayed: list[nn.Parameter] = []
    free: list[nn.Parameter] = []
    for name, weight in weights:
        is_free = weight.ndim < 2 or name.endswith(undecayed)
        (free if is_free else decayed).append(weight)
    groups: list[dict[str, Any]] = [
        {"params": decayed, "weight_decay": config.weight_decay, DECAYS: True},
        {"params": free, "weight_decay": 0.0, DECAYS: False},
    ]
    filled = [group for group in groups if group["params"]]  # torch 2.13 loads an empty group without its settings
    return torch.optim.AdamW(filled, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group: `lr`, times the group's own scale where it has one."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_scale", 1.0)


def clip_(parameters: Iterable[nn.Parameter], clip_norm: float | None) -> Tensor:
    """Scale the gradients to a global norm of at most `clip_norm`, if it is set; returns the norm before, 0-d."""
    weights = list(parameters)
    norm = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None])
    if clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(weights, clip_norm, norm)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm
