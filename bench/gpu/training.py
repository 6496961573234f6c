"""The models and micro-batches of the steps, the trainer's own objects for them, and its step."""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from gpu.bench import Bench
from prime_train import spec
from prime_train.estimate.hardware import hardware_from_devices, hardware_from_name
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec
from prime_train.trainer import device as devices
from prime_train.trainer.batch import IGNORED, MicroBatch
from prime_train.trainer.build import build_model
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import LaunchedStep, Training, adamw, launch_step, loss_sum
from prime_train.trainer.model.decoder import config_of, flops_per_token
from prime_train.trainer.parallel import World

SOURCE = spec.Source(kind="python-stdlib")
WARM_UP_STEPS, ROUNDS, STEPS = 5, 4, 5  # the host waits for the device only between rounds


class Scale(NamedTuple):
    """One model and the micro-batches of its step."""

    name: str
    model: spec.Model
    vocab_size: int
    ctx_tokens: int
    micro_batch: int
    compute: Any = "bf16"
    micro_batches: int = 1

    @property
    def run(self) -> RunSpec:
        return RunSpec(
            run=spec.Run(name=self.name, max_steps=100),
            model=self.model,
            data=spec.Data(sources=(SOURCE,), ctx_tokens=self.ctx_tokens),
            batch=spec.Batch(micro_batch=self.micro_batch, global_batch=self.micro_batch * self.micro_batches),
            precision=spec.Precision(compute=self.compute),
        )

    @property
    def flops(self) -> float:
        """Of the matrix products of a micro-batch, forward and backward."""
        per_token = flops_per_token(config_of(self.model, self.vocab_size), self.ctx_tokens)
        return self.micro_batch * self.ctx_tokens * per_token


def _model(layers: int, hidden_size: int, heads: int, mlp_size: int) -> spec.Model:
    return spec.Model(
        layers=layers, hidden_size=hidden_size, heads=heads, mlp_size=mlp_size, compile=True, pad_vocab=True
    )


SCALES = {  # the first two with the vocabulary of GPT-2
    "124m": Scale("124m", _model(12, 768, 12, 2048), 50257, 1024, 32),
    "350m": Scale("350m", _model(24, 1024, 16, 2816), 50257, 1024, 16),
    "1b": Scale("1b", _model(24, 2048, 16, 5632), 32768, 2048, 8),
}
TINY_MODEL = spec.Model(layers=2, hidden_size=32, heads=2, mlp_size=64)


def shrink(scale: Scale) -> Scale:
    """The scale with a model that a CPU trains in milliseconds, uncompiled and in fp32."""
    return scale._replace(model=TINY_MODEL, vocab_size=64, ctx_tokens=32, micro_batch=2, compute="fp32")


def scale_of(bench: Bench, name: str) -> Scale:
    return shrink(SCALES[name]) if bench.tiny else SCALES[name]


def batch_of(scale: Scale, documents: int, seed: int = 7) -> MicroBatch:
    """A micro-batch of random tokens: each row has so many documents of about equal length, as packing makes them."""
    draw = torch.Generator().manual_seed(seed)
    rows, length = scale.micro_batch, scale.ctx_tokens
    tokens = torch.randint(0, scale.vocab_size, (rows, length + 1), generator=draw)
    starts = torch.arange(documents) * length // documents
    number = torch.bucketize(torch.arange(length), starts, right=True) - 1  # (T,)
    labels = tokens[:, 1:].clone()
    labels[:, starts[1:] - 1] = IGNORED
    return MicroBatch(
        tokens[:, :-1].contiguous(),
        labels,
        (torch.arange(length) - starts[number]).repeat(rows, 1),
        number.repeat(rows, 1),
    )


def pick_device(bench: Bench) -> Device:
    return devices.pick("bf16") if bench.on_gpu else Device(torch.device("cpu"), "CPU", "fp32", None)


def find_hardware(bench: Bench, device: Device) -> Hardware:
    """This GPU for the estimate; on a CPU an H200, so that the estimate runs. Raises LookupError for an unknown GPU."""
    if not bench.on_gpu:
        return hardware_from_name("1xh200")
    found = hardware_from_devices([(device.name, torch.cuda.get_device_properties(device.torch).total_memory)])
    if found is None:
        raise LookupError(f"registry/gpus.toml has no {device.name}")
    return found


def training_of(scale: Scale, device: Device, **precision: Any) -> Training:
    """The trainer's own objects, with the compute type of the scale. `precision`: other keys of [precision]."""
    run = replace(scale.run, precision=replace(scale.run.precision, **precision))
    flash = device.flash_attention and scale.compute == "bf16"  # it has no fp32
    chosen = replace(device, compute=scale.compute, flash_attention=flash)
    model = build_model(run, config_of(run.model, scale.vocab_size), chosen, resumes=False)
    return Training(model, adamw(model, run.optim), World(rank=0, size=1), chosen, run.optim.clip_norm)


def take_steps(training: Training, micro_batches: Sequence[MicroBatch], count: int, lr: float = 1e-4) -> list[float]:
    """The losses of so many optimizer steps, each read as the trainer's loop reads it: on a GPU one step late."""
    losses: list[float] = []
    unread: deque[LaunchedStep] = deque()
    for _ in range(count):
        unread.append(launch_step(training, micro_batches, lr, loss_sum))
        while len(unread) > training.device.read_behind_steps:
            losses.append(unread.popleft().read().loss)
    return losses + [launched.read().loss for launched in unread]


class Timed(NamedTuple):
    """`first_s`: the first step, with its compilation. `rounds_s`: seconds of a step, one value per round."""

    first_s: float
    rounds_s: list[float]

    @property
    def step_s(self) -> float:
        return statistics.median(self.rounds_s)


def time_steps(bench: Bench, take: Callable[[int], object]) -> Timed:
    """Times `take(count)`, which takes so many steps."""
    warm_up, rounds, count = (1, 2, 1) if bench.tiny else (WARM_UP_STEPS, ROUNDS, STEPS)
    first_s = _seconds(bench, take, 1)
    _seconds(bench, take, warm_up)
    return Timed(first_s, [_seconds(bench, take, count) / count for _ in range(rounds)])


def _seconds(bench: Bench, take: Callable[[int], object], count: int) -> float:
    bench.synchronise()
    began_s = time.perf_counter()
    take(count)
    bench.synchronise()
    return time.perf_counter() - began_s


def describe_speed(bench: Bench, device: Device, scale: Scale, timed: Timed) -> dict[str, Any]:
    """The values of a row: milliseconds of a step, and its MFU where the peak of the device is known."""
    mfu = None if device.peak_flops is None else round(scale.flops / timed.step_s / device.peak_flops, 4)
    return {
        "n": len(timed.rounds_s),
        "step_ms": round(timed.step_s * 1e3, 3),
        "worst_ms": round(max(timed.rounds_s) * 1e3, 3),
        "first_step_s": round(timed.first_s, 2),
        "tokens_per_s": round(scale.micro_batch * scale.ctx_tokens / timed.step_s, 1),
        "mfu": mfu,
        "reserved_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2) if bench.on_gpu else None,
    }
