"""Speed of one size in bf16 with compile, beside a hand-written loop on the same card and beside the estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from anchors import Sizes, minimal

from gpu.bench import Bench
from gpu.training import (
    Scale,
    Timed,
    batch_of,
    describe_speed,
    find_hardware,
    pick_device,
    scale_of,
    take_steps,
    time_steps,
    training_of,
)
from prime_train.estimate.estimate import estimate
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import shape_from_run
from prime_train.estimate.values import Hardware
from prime_train.trainer.device import Device
from prime_train.trainer.model.decoder import config_of

WHOLE_LAYERS = 12  # of a hand-written loop that is compiled as a whole; a deeper one is compiled by block, as ours is


def measure(bench: Bench) -> None:
    """The size is in the name of the step: speed-124m."""
    scale, device = scale_of(bench, bench.step.removeprefix("speed-")), pick_device(bench)
    ours: dict[str, Any] = {}
    with bench.case("prime-train"):
        timed = _time_trainer(bench, scale, device)
        expected = predict(scale, find_hardware(bench, device))
        values = describe_speed(bench, device, scale, timed)
        ours = bench.emit("prime-train", **values, flops=scale.flops, peak_flops=device.peak_flops, **expected)
    with bench.case("hand-written loop"):
        timed = time_steps(bench, write_loop(scale, device.torch))
        values = describe_speed(bench, device, scale, timed)
        ratio = values["step_ms"] / ours["step_ms"] if ours else None
        bench.emit("hand-written loop", **values, prime_train_speed=ratio and round(ratio, 4))


def _time_trainer(bench: Bench, scale: Scale, device: Device) -> Timed:
    training, batch = training_of(scale, device), batch_of(scale, documents=4)
    return time_steps(bench, lambda count: take_steps(training, [batch], count))


def predict(scale: Scale, hardware: Hardware) -> dict[str, Any]:
    """What the estimate says of a step: its milliseconds, and the GiB that torch reserves."""
    shape = shape_from_run(scale.run, scale.vocab_size)
    memory = training_memory(setup_of(scale.run, hardware, shape), hardware).reserved
    time = estimate(scale.run, hardware, shape).time
    values: dict[str, Any] = {"predicted_for": hardware.name}
    values |= {"predicted_gib": round(memory.typical / 2**30, 2), "predicted_gib_low": round(memory.low / 2**30, 2)}
    values |= {"predicted_gib_high": round(memory.high / 2**30, 2)}
    if time is None:
        return values
    step_ms = {"": time.step_s.typical, "_low": time.step_s.low, "_high": time.step_s.high}
    return values | {f"predicted_ms{end}": round(1e3 * step_s, 2) for end, step_s in step_ms.items()}


def write_loop(scale: Scale, device: torch.device) -> Callable[[int], None]:
    """A loop of six lines over functions of a dict of weights; documents attend to each other.

    Nothing in it waits for the device. It is compiled as a whole, or in pieces where that would take minutes.
    """
    model = scale.model
    assert model.mlp_size is not None
    sizes = Sizes(
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=model.heads,
        mlp_size=model.mlp_size,
        ctx_tokens=scale.ctx_tokens,
        vocab_size=config_of(model, scale.vocab_size).vocab_rows,
    )
    weights = {key: weight.detach().to(device).requires_grad_() for key, weight in minimal.make_weights(sizes).items()}
    cos, sin = (table.to(device) for table in minimal.rotations(sizes))
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batch = batch_of(scale, documents=1)
    tokens, labels = batch.tokens.to(device), batch.labels.to(device)

    whole = model.layers <= WHOLE_LAYERS
    block, head = minimal.block, _loss_of_hidden
    if model.compile and not whole:
        block, head = torch.compile(block), torch.compile(head)

    def find_loss() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=scale.compute == "bf16"):
            x = F.embedding(tokens, weights["embedding"])  # (B, T, C)
            for layer in range(sizes.layers):
                x = block(x, minimal.of_layer(weights, layer), sizes, cos, sin)
            return head(x, weights["norm"], weights["embedding"], labels)

    loss_of = torch.compile(find_loss) if model.compile and whole else find_loss

    def take(count: int) -> None:
        for _ in range(count):
            loss_of().backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return take


def _loss_of_hidden(x: torch.Tensor, norm: torch.Tensor, embedding: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logits = minimal.head(x, norm, embedding)  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
