"""The memory that torch reserves for the trainer's step beside the estimate, each case in a process of its own.

A CPU has no such allocator: there the live tensors of a step are counted beside the terms of the estimate.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from typing import Any

import torch

from gpu.bench import Bench
from gpu.training import Scale, batch_of, find_hardware, pick_device, take_steps, training_of
from prime_train import spec
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import shape_from_run
from prime_train.estimate.values import Hardware
from prime_train.trainer import device as devices

STEPS = 3  # the first creates the optimizer states, the second has the peak, the third confirms the peak
CASE_LIMIT_S = 60.0

_SMALL = spec.Model(layers=12, hidden_size=768, heads=12, mlp_size=2048, tie_embeddings=True)
_MIDDLE = spec.Model(
    layers=24, hidden_size=1024, heads=16, kv_heads=8, mlp_size=3072, tie_embeddings=True, qk_norm=True
)
_LARGE = spec.Model(layers=24, hidden_size=2048, heads=16, kv_heads=8, mlp_size=5632, tie_embeddings=False)
CASES = (  # from 100 million to a billion parameters, with large and small activations
    Scale("0.1 B, 8 x 2048 tokens, bf16", _SMALL, 32768, 2048, 8),
    Scale("1 B, 4 x 2048 tokens, bf16", _LARGE, 32768, 2048, 4),
    Scale("0.5 B, 4 x 2048 tokens, 2 micro-batches, bf16", _MIDDLE, 151936, 2048, 4, micro_batches=2),
    Scale("0.1 B, 8 x 1024 tokens, fp32", _SMALL, 32768, 1024, 8, "fp32"),
    Scale("1 B, 1 x 512 tokens, 2 micro-batches, bf16", _LARGE, 32768, 512, 1, micro_batches=2),
)


def measure(bench: Bench) -> None:
    if not bench.on_gpu:
        with bench.case("live tensors"):
            _count_live(bench)
        return
    hardware = find_hardware(bench, pick_device(bench))
    for number, scale in enumerate(CASES):
        with bench.case(scale.name):
            child = [sys.executable, "-m", "gpu.memory", str(number)]
            done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True, timeout=CASE_LIMIT_S)
            bench.emit(scale.name, **compare(scale, json.loads(done.stdout.splitlines()[-1]), hardware))


def compare(scale: Scale, measured: dict[str, int], hardware: Hardware) -> dict[str, Any]:
    """The values of a row. An error is estimated / measured - 1."""
    memory = training_memory(setup_of(scale.run, hardware, shape_from_run(scale.run, scale.vocab_size)), hardware)
    tensors = sum(term.bytes for term in memory.terms if term.name != "allocator reserve")
    reserved, allocated = measured["reserved"], measured["allocated"]
    return {
        "reserved_gib": round(reserved / 2**30, 3),
        "predicted_gib": round(memory.reserved.typical / 2**30, 3),
        "error": round(memory.reserved.typical / reserved - 1, 4),
        "inside": memory.reserved.low <= reserved <= memory.reserved.high,
        "allocated_gib": round(allocated / 2**30, 3),
        "tensors_error": round(tensors / allocated - 1, 4),
        "phase": memory.phase,
    }


def reserve(scale: Scale) -> dict[str, int]:
    """The most bytes that torch reserved and allocated over a few steps on this GPU."""
    training = training_of(scale, devices.pick(scale.compute))
    batches = [batch_of(scale, documents=2, seed=seed) for seed in range(scale.micro_batches)]
    take_steps(training, batches, STEPS)
    return {"reserved": torch.cuda.max_memory_reserved(), "allocated": torch.cuda.max_memory_allocated()}


def _count_live(bench: Bench) -> None:
    live_tensors = import_module("tests.system.trainer.live_tensors")
    case = live_tensors.cases()[0]
    peak = live_tensors.measured(case).peak
    predicted = sum(term.bytes for term in live_tensors.estimated(case))
    bench.emit("live tensors", peak_bytes=peak, predicted_bytes=round(predicted), error=round(predicted / peak - 1, 4))


if __name__ == "__main__":
    print(json.dumps(reserve(CASES[int(sys.argv[1])])))
