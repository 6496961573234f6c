"""Measures the bundled trainer on one GPU, in slots of under ten minutes that each write results/gpu_trainer_SLOT.json.

    python bench/gpu_trainer.py kernels | speed-124m | speed-350m | speed-1b | ablation | estimate

`kernels`: packed documents give the loss and gradients of separate ones. `speed-*`: tokens/s and MFU in bf16 with
compile, beside a hand-written loop on the same tokens, and torchtitan's own log if PRIME_TRAIN_TORCHTITAN holds the
command that trains the same size. `ablation`: what each part of the trainer costs or gains. `estimate`: memory and time
of a step beside those that the estimate predicts. A case that would begin after the slot's time is reported as skipped.

Without a GPU it ends with exit code 4. `--tiny` runs a slot on the CPU with models of some thousand parameters and
writes nothing: it shows that the script works, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import record
import torch
import torch.nn.functional as F
from anchors import Sizes, minimal

from prime_train import spec
from prime_train.core.errors import ExitCode
from prime_train.estimate.estimate import estimate
from prime_train.estimate.hardware import hardware_from_devices, hardware_from_name
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import shape_from_run
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec
from prime_train.trainer import device as devices
from prime_train.trainer import model as models
from prime_train.trainer.attention import block_causal_mask, move_plan
from prime_train.trainer.build import build_model
from prime_train.trainer.data.batch import IGNORED, Batch
from prime_train.trainer.device import Device
from prime_train.trainer.model import config_of, flops_per_token
from prime_train.trainer.parallel import World
from prime_train.trainer.step import LossSum, Training, adamw, loss_sum, take_step, train_step

SLOT_S = 540.0  # no case begins later; the longest takes less than a minute
WARM_UP_STEPS, STEPS = 5, 20
GOAL_MFU = {"124m": 0.45, "350m": 0.50, "1b": 0.55}
TITAN = "PRIME_TRAIN_TORCHTITAN"
_TPS = re.compile(r"tps:\s*([\d,]+)")  # a log line of torchtitan 0.3.0, components/metrics.py

SOURCE = spec.Source(kind="python-stdlib")

Row = dict[str, Any]


class Scale(NamedTuple):
    """One model and its micro-batch."""

    name: str
    model: spec.Model
    vocab_size: int
    ctx_tokens: int
    micro_batch: int
    compute: Any = "bf16"

    @property
    def run(self) -> RunSpec:
        return RunSpec(
            run=spec.Run(name=self.name, max_steps=STEPS),
            model=self.model,
            data=spec.Data(sources=(SOURCE,), ctx_tokens=self.ctx_tokens),
            batch=spec.Batch(micro_batch=self.micro_batch),
            precision=spec.Precision(compute=self.compute),
        )


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


class Bench(NamedTuple):
    """Where and how much is measured."""

    device: Device
    tiny: bool
    until_s: float
    warm_up_steps: int = WARM_UP_STEPS
    steps: int = STEPS

    def scale(self, name: str) -> Scale:
        return shrink(SCALES[name]) if self.tiny else SCALES[name]

    def synchronise(self) -> None:
        if self.device.torch.type == "cuda":
            torch.cuda.synchronize(self.device.torch)


# --- cases ----------------------------------------------------------------------------------------


def batch_of(scale: Scale, documents: int, seed: int = 7) -> Batch:
    """A micro-batch of random tokens: each row has so many documents of about equal length, as packing makes them."""
    draw = torch.Generator().manual_seed(seed)
    rows, length = scale.micro_batch, scale.ctx_tokens
    tokens = torch.randint(0, scale.vocab_size, (rows, length + 1), generator=draw)
    starts = torch.arange(documents) * length // documents
    number = torch.bucketize(torch.arange(length), starts, right=True) - 1  # (T,)
    labels = tokens[:, 1:].clone()
    labels[:, starts[1:] - 1] = IGNORED
    return Batch(
        tokens[:, :-1].contiguous(),
        labels,
        (torch.arange(length) - starts[number]).repeat(rows, 1),
        number.repeat(rows, 1),
    )


def separate(batch: Batch) -> Iterator[Batch]:
    """Each document of a micro-batch in a row of its own."""
    for row in range(len(batch.tokens)):
        for number in sorted(set(batch.documents[row].tolist())):
            here = batch.documents[row] == number
            tokens, labels, positions = (
                one[row][here].unsqueeze(0) for one in (batch.tokens, batch.labels, batch.positions)
            )
            yield Batch(tokens, labels, positions, torch.zeros_like(tokens))


def training_of(scale: Scale, device: Device) -> Training:
    """The trainer's own objects. The compute type is that of the scale."""
    run = scale.run
    chosen = replace(device, compute=scale.compute)
    model = build_model(run, config_of(run.model, scale.vocab_size), chosen, resumes=False)
    return Training(model, adamw(model, run.optim), World(rank=0, size=1), chosen, run.optim.clip_norm)


def measure(bench: Bench, take_step: Callable[[], object]) -> list[float]:
    """Seconds of each step after the warm-up."""
    seconds = []
    for number in range(bench.warm_up_steps + bench.steps):
        bench.synchronise()
        began = time.perf_counter()
        take_step()
        bench.synchronise()
        if number >= bench.warm_up_steps:
            seconds.append(time.perf_counter() - began)
    return seconds


def speed_row(bench: Bench, what: str, scale: Scale, seconds: list[float], **extra: Any) -> Row:
    """Tokens per second of each step, and the MFU of their median where the device's peak is known."""
    tokens = scale.micro_batch * scale.ctx_tokens
    per_token = flops_per_token(config_of(scale.model, scale.vocab_size), scale.ctx_tokens)
    peak = bench.device.peak_flops
    mfu = None if peak is None else round(tokens / statistics.median(seconds) * per_token / peak, 4)
    speeds = [tokens / step_s for step_s in seconds]
    return record.emit(what, speeds, unit="tokens/s", mfu=mfu, **_about(bench), **extra)


def _about(bench: Bench) -> Row:
    return {"device": bench.device.name, "torch": torch.__version__, "tiny": bench.tiny}


def guarded(bench: Bench, what: str, case: Callable[[], Row]) -> Row:
    """The row of a case; of one that has no time left, or needs more memory than there is, a row with the reason."""
    if time.monotonic() > bench.until_s:
        return {"what": what, "skipped": "the time of the slot is over"} | _about(bench)
    try:
        return case()
    except torch.OutOfMemoryError as error:
        return {"what": what, "skipped": f"out of memory: {str(error)[:200]}"} | _about(bench)
    finally:
        torch._dynamo.reset()
        if bench.device.torch.type == "cuda":
            torch.cuda.empty_cache()


# --- slots ----------------------------------------------------------------------------------------


def kernels(bench: Bench) -> list[Row]:
    """The largest relative difference of packed from separate documents: loss, and gradient of every weight."""
    lengths = (256, 2048, 8192) if not bench.tiny else (16, 64)
    types = (("fp32", 1e-5), ("bf16", 2e-2)) if not bench.tiny else (("fp32", 1e-5),)
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = []
    for length in lengths:
        for compute, tolerance in types:
            base = bench.scale("124m")
            scale = base._replace(
                model=replace(base.model, layers=2, compile=False), ctx_tokens=length, micro_batch=2, compute=compute
            )
            what = f"packed beside separate documents, {length} tokens, {compute}"
            rows.append(guarded(bench, what, lambda: _compare(bench, what, scale, tolerance)))  # noqa: B023 - called at once
    return rows


def _compare(bench: Bench, what: str, scale: Scale, tolerance: float) -> Row:
    batch = batch_of(scale, documents=5)
    loss, gradient = find_errors(training_of(scale, bench.device), batch, [*separate(batch)])
    row = {"what": what, "loss_error": loss, "gradient_error": gradient, "tolerance": tolerance}
    row |= {"ok": max(loss, gradient) <= tolerance} | _about(bench)
    print(json.dumps(row), flush=True)
    return row


def find_errors(training: Training, packed: Batch, apart: list[Batch]) -> tuple[float, float]:
    """Relative differences of the packed loss, and of the gradient that differs most, from those of the others."""
    packed_loss, packed_gradients = _gradients(training, [packed])
    loss, gradients = _gradients(training, apart)
    worst = max(float((packed_gradients[name] - each).norm() / each.norm()) for name, each in gradients.items())
    return abs(packed_loss / loss - 1), worst


def _gradients(training: Training, batches: list[Batch]) -> tuple[float, dict[str, torch.Tensor]]:
    training.model.zero_grad()
    total = 0.0
    for batch in batches:
        loss = loss_sum(training.model, batch, training.device)
        loss.backward()  # type: ignore[no-untyped-call]
        total += loss.item()
    found = {name: weight.grad.clone() for name, weight in training.model.named_parameters() if weight.grad is not None}
    return total, found


def speed(name: str, bench: Bench) -> list[Row]:
    """The trainer's step on packed documents, and the loops beside it."""
    scale = bench.scale(name)
    what = f"{name}: prime-train"
    ours = guarded(bench, what, lambda: _own_speed(bench, what, scale, documents=4, goal_mfu=GOAL_MFU[name]))
    hand = guarded(bench, f"{name}: hand-written loop", lambda: _hand_speed(bench, name, scale))
    rows = [ours, hand, _titan_row(bench, name)]
    if "median" in ours and "median" in hand:
        ours["ratio"] = round(ours["median"] / hand["median"], 4)
    return rows


def _own_speed(
    bench: Bench,
    what: str,
    scale: Scale,
    documents: int,
    *,
    all_logits: bool = False,
    loss: LossSum[Batch] = loss_sum,
    **extra: Any,
) -> Row:
    training = training_of(scale, bench.device)
    if all_logits:
        cast(models.Decoder, training.model).head_loss = models.whole_loss
    batch = batch_of(scale, documents)
    return speed_row(bench, what, scale, measure(bench, lambda: take_step(training, [batch], 1e-4, loss)), **extra)


def dense_loss_sum(model: torch.nn.Module, batch: Batch, device: Device) -> torch.Tensor:
    """`loss_sum` with a mask of T x T for each row, made on the CPU."""
    plan, moved = move_plan(
        block_causal_mask(batch.documents), (batch.tokens, batch.labels, batch.positions), device.torch
    )
    tokens, labels, positions = moved  # (B, T)
    with device.autocast():
        return cast(torch.Tensor, model(tokens, positions, plan, labels=labels))


def _hand_speed(bench: Bench, name: str, scale: Scale) -> Row:
    """A loop of six lines over functions of a dict of weights, compiled as a whole; documents attend to each other."""
    mlp_size = scale.model.mlp_size
    assert mlp_size is not None
    model = scale.model
    sizes = Sizes(
        layers=model.layers,
        hidden_size=model.hidden_size,
        heads=model.heads,
        mlp_size=mlp_size,
        ctx_tokens=scale.ctx_tokens,
        vocab_size=config_of(model, scale.vocab_size).vocab_rows,
    )
    device = bench.device.torch
    weights = {key: weight.detach().to(device).requires_grad_() for key, weight in minimal.make_weights(sizes).items()}
    cos, sin = (table.to(device) for table in minimal.rotations(sizes))
    optimizer = torch.optim.AdamW(weights.values(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    batch = batch_of(scale, documents=1)
    tokens, labels = batch.tokens.to(device), batch.labels.to(device)

    def loss_of() -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=scale.compute == "bf16"):
            logits = minimal.forward(weights, sizes, cos, sin, tokens)
        return F.cross_entropy(logits.view(-1, sizes.vocab_size).float(), labels.view(-1))

    compiled = torch.compile(loss_of) if model.compile else loss_of

    def step() -> None:
        compiled().backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return speed_row(bench, f"{name}: hand-written loop", scale, measure(bench, step))


def _titan_row(bench: Bench, name: str) -> Row:
    """The median tokens/s in the log of the command in PRIME_TRAIN_TORCHTITAN, after its first half."""
    what, command = f"{name}: torchtitan", os.environ.get(TITAN)
    if command is None:
        return {"what": what, "skipped": f"{TITAN} is not set"} | _about(bench)
    left_s = max(1.0, bench.until_s - time.monotonic())
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, timeout=left_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return {"what": what, "skipped": str(error)[:200]} | _about(bench)
    speeds = [float(found.replace(",", "")) for found in _TPS.findall(done.stdout + done.stderr)]
    if not speeds:
        return {"what": what, "skipped": f"exit code {done.returncode}, and no `tps:` in its output"} | _about(bench)
    return record.emit(what, speeds[len(speeds) // 2 :], unit="tokens/s", command=command, **_about(bench))


def ablation(bench: Bench) -> list[Row]:
    """The speed of the 124M model with each part changed alone, and its ratio to the trainer as it is."""
    base = bench.scale("124m")
    eager = base._replace(model=replace(base.model, compile=False))
    cases: list[tuple[str, Scale, int]] = [
        ("as it is", base, 4),
        ("one document per row: no boundaries", base, 1),
        ("without compile", eager, 4),
        ("without compile, one document per row", eager, 1),
        *((f"model.{key} = {value!r}", _switch(base, key, value), 4) for key, value in _SWITCHES),
    ]
    rows = [
        guarded(bench, f"124m: {what}", lambda: _own_speed(bench, f"124m: {what}", scale, documents))  # noqa: B023
        for what, scale, documents in cases
    ]
    what = "124m: the loss of all logits at once"
    rows.append(guarded(bench, what, lambda: _own_speed(bench, what, base, 4, all_logits=True)))
    dense = "124m: a dense mask of each row"
    rows.append(guarded(bench, dense, lambda: _own_speed(bench, dense, base, 4, loss=dense_loss_sum)))
    for loaded, workers in (("batches from four workers", 4), ("batches made in the loop, without prefetch", 0)):
        rows.append(
            guarded(bench, f"124m: {loaded}", lambda: _loader_speed(bench, f"124m: {loaded}", base, workers))  # noqa: B023
        )
    for row in rows[1:]:
        if "median" in row and "median" in rows[0]:
            row["ratio"] = round(row["median"] / rows[0]["median"], 4)
    return rows


# Keys of [model] with other values than those of SCALES.
_SWITCHES: tuple[tuple[str, Any], ...] = (("recompute", "selective"), ("recompute", "full"), ("pad_vocab", False))


def _switch(base: Scale, key: str, value: Any) -> Scale:
    return base._replace(model=replace(base.model, **{key: value}))


def _loader_speed(bench: Bench, what: str, scale: Scale, workers: int) -> Row:
    """Steps whose micro-batches come from the loader, with text to read, tokenise, pack and copy."""
    from prime_train.trainer.data import stream

    run = replace(
        scale.run,
        data=replace(scale.run.data, loader_workers=0 if bench.tiny else workers),
        tokenizer=spec.Tokenizer(vocab_size=max(260, min(scale.vocab_size, 8192))),
    )
    rows = stream.TrainStream(run, stream.prepare(run), rank=0, world_size=1, position=None)
    try:
        training = training_of(scale._replace(vocab_size=max(scale.vocab_size, 8192)), bench.device)
        seconds = measure(bench, lambda: train_step(training, [rows.next_micro_batch()], 1e-4))
    finally:
        rows.close()
    return speed_row(bench, what, scale, seconds, workers=workers)


def compare_estimate(bench: Bench) -> list[Row]:
    """Peak memory and time of a step of each size, beside the estimate's."""
    rows = []
    for name in SCALES:
        scale, what = bench.scale(name), f"{name}: measured beside the estimate"
        rows.append(guarded(bench, what, lambda: _estimate_row(bench, what, scale)))  # noqa: B023 - called at once
    return rows


def _estimate_row(bench: Bench, what: str, scale: Scale) -> Row:
    on_gpu = bench.device.torch.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(bench.device.torch)
    training = training_of(scale, bench.device)
    batch = batch_of(scale, documents=4)
    step_s = statistics.median(measure(bench, lambda: train_step(training, [batch], 1e-4)))
    reserved_bytes = torch.cuda.max_memory_reserved(bench.device.torch) if on_gpu else 0
    hardware, shape = _hardware(bench), shape_from_run(scale.run, scale.vocab_size)
    memory_bytes = training_memory(setup_of(scale.run, hardware, shape), hardware).reserved.typical
    predicted = estimate(scale.run, hardware, shape).time
    predicted_s = predicted.step_s.typical if predicted is not None else 0.0
    row: Row = {
        "what": what,
        "reserved_bytes": reserved_bytes,
        "predicted_bytes": round(memory_bytes),
        "memory_error": round(memory_bytes / reserved_bytes - 1, 4) if on_gpu else None,
        "step_s": round(step_s, 6),
        "predicted_step_s": round(predicted_s, 6),
        "time_error": round(predicted_s / step_s - 1, 4) if on_gpu else None,
    } | _about(bench)
    print(json.dumps(row), flush=True)
    return row


def _hardware(bench: Bench) -> Hardware:
    """This GPU; on a CPU an H200, so that the estimate runs."""
    if bench.device.torch.type != "cuda":
        return hardware_from_name("1xh200")
    total_bytes = torch.cuda.get_device_properties(bench.device.torch).total_memory
    found = hardware_from_devices([(bench.device.name, total_bytes)])
    if found is None:
        sys.exit(f"registry/gpus.toml has no {bench.device.name}")
    return found


SLOTS: dict[str, Callable[[Bench], list[Row]]] = {
    "kernels": kernels,
    **{f"speed-{name}": partial(speed, name) for name in SCALES},
    "ablation": ablation,
    "estimate": compare_estimate,
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("slot", choices=SLOTS)
    parser.add_argument("--tiny", action="store_true", help="on the CPU, with tiny sizes; writes nothing")
    given = parser.parse_args(arguments)
    if not given.tiny and not torch.cuda.is_available():
        print("there is no GPU: nothing is measured (`--tiny` shows on a CPU that the script works)", file=sys.stderr)
        return ExitCode.OUT_OF_REACH
    until_s = time.monotonic() + SLOT_S
    if given.tiny:
        cpu = Device(torch.device("cpu"), "CPU", "fp32", None)
        SLOTS[given.slot](Bench(cpu, tiny=True, until_s=until_s, warm_up_steps=1, steps=2))
        return ExitCode.OK
    rows = SLOTS[given.slot](Bench(devices.pick("bf16"), tiny=False, until_s=until_s))
    record.write(f"gpu_trainer_{given.slot}", rows)
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
