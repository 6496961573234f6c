"""FSDP2 and NCCL in a group of one: the losses of the unsharded model, and a staged copy of the sharded state."""

from __future__ import annotations

import time
from dataclasses import replace

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public, and not in its __all__ (torch 2.13)

from gpu.bench import Bench
from gpu.training import batch_of, pick_device, scale_of, take_steps, training_of
from prime_train import spec
from prime_train.trainer import parallel
from prime_train.trainer.loops.step import Training, adamw
from prime_train.trainer.model.decoder import Decoder
from prime_train.trainer.saves.checkpoint import TrainPosition, gather
from prime_train.trainer.saves.staging import Staging, size_bytes

STEPS = 4


def measure(bench: Bench) -> None:
    device = pick_device(bench)
    backend, bound = ("cpu:gloo,cuda:nccl", device.torch) if bench.on_gpu else ("gloo", None)
    store = TCPStore("127.0.0.1", 0, 1, is_master=True)
    dist.init_process_group(backend, store=store, rank=0, world_size=1, device_id=bound)
    scale = scale_of(bench, "124m")
    scale = scale._replace(model=replace(scale.model, compile=False), micro_batch=4)
    batch = batch_of(scale, documents=4)
    with bench.case("losses"):
        plain, whole = training_of(scale, device), training_of(scale, device)
        assert isinstance(whole.model, Decoder)
        model = parallel._shard(whole.model, 1, spec.Parallel(processes=1, dp_shard=1), whole.device)
        sharded = replace(whole, model=model, optimizer=adamw(model, scale.run.optim))
        expected, found = (take_steps(one, [batch], STEPS, lr=1e-3) for one in (plain, sharded))
        worst = max(abs(one - other) for one, other in zip(found, expected, strict=True))
        bench.emit("losses", difference=worst, plain=expected, sharded=found)
        with bench.case("staging"):
            _stage(bench, sharded)
    dist.destroy_process_group()


def _stage(bench: Bench, training: Training) -> None:
    state = gather(training.model, training.optimizer, TrainPosition(), 0)
    ready = torch.cuda.current_stream().record_event() if bench.on_gpu else None
    staging, seconds = Staging(training.device.torch), []
    for _ in range(2):  # the first time allocates the memory
        began_s = time.perf_counter()
        staging.copy(state, ready)
        seconds.append(round(time.perf_counter() - began_s, 4))
    bench.emit("staging", first_s=seconds[0], again_s=seconds[1], state_gib=round(size_bytes(state) / 2**30, 4))
