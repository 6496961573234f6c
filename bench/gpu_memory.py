"""Measures the memory that torch reserves for the bundled trainer on this machine's GPU, beside the estimate.

Each case runs three steps in a separate process and records max_memory_reserved, and max_memory_allocated to show the
allocator's overhead. Without a GPU it measures nothing and ends with exit code 4.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Literal

import record
import torch

sys.path.insert(0, str(record.HERE.parent))

from tests.trainer.live_tensors import Case, batches, training_of

from prime_train import spec
from prime_train.core.errors import ExitCode, UserError
from prime_train.estimate.hardware import hardware_from_devices
from prime_train.estimate.memory.setup_from_run import setup_of
from prime_train.estimate.memory.training import training_memory
from prime_train.estimate.model.shape import shape_from_run
from prime_train.estimate.values import Hardware
from prime_train.spec import RunSpec
from prime_train.trainer.step import train_step

STEPS = 3  # the first creates the optimizer states, the second has the peak, the third confirms the peak


def cases() -> tuple[Case, ...]:
    """From 100 million to a billion parameters, with large and small activations."""
    small = spec.Model(layers=12, hidden_size=768, heads=12, mlp_size=2048, tie_embeddings=True)
    middle = spec.Model(
        layers=24, hidden_size=1024, heads=16, kv_heads=8, mlp_size=3072, tie_embeddings=True, qk_norm=True
    )
    large = spec.Model(layers=24, hidden_size=2048, heads=16, kv_heads=8, mlp_size=5632, tie_embeddings=False)
    return (
        Case("0.1 B, 8 x 2048 tokens, bf16", _run(small, 8, 1, 2048), 32768),
        Case("0.1 B, 8 x 1024 tokens, fp32", _run(small, 8, 1, 1024, "fp32"), 32768),
        Case("0.5 B, 4 x 2048 tokens, 2 micro-batches, bf16", _run(middle, 4, 2, 2048), 151936),
        Case("1 B, 4 x 2048 tokens, bf16", _run(large, 4, 1, 2048), 32768),
        Case("1 B, 1 x 512 tokens, 2 micro-batches, bf16", _run(large, 1, 2, 512), 32768),
    )


def _run(
    model: spec.Model, rows: int, micro_batches: int, ctx_tokens: int, compute: Literal["bf16", "fp32"] = "bf16"
) -> RunSpec:
    return RunSpec(
        run=spec.Run(name="gpu", max_steps=STEPS),
        model=model,
        data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), ctx_tokens=ctx_tokens),
        batch=spec.Batch(micro_batch=rows, global_batch=rows * micro_batches),
        precision=spec.Precision(compute=compute),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", type=int, help="measure only this case, in this process, and print it")
    options = parser.parse_args()
    try:
        hardware = _this_gpu()
    except UserError as error:
        sys.stderr.write(f"error {error}\n")
        sys.exit(error.exit_code)
    if options.case is not None:
        sys.stdout.write(json.dumps(_reserved(cases()[options.case])) + "\n")
        return
    record.write("gpu_memory", [_row(number, case, hardware) for number, case in enumerate(cases())])


def _this_gpu() -> Hardware:
    """The first GPU. Raises UserError if torch sees none or the registry does not have it."""
    if not torch.cuda.is_available():
        raise UserError(
            what=f"torch {torch.__version__} sees no GPU, so nothing was measured",
            where="bench/gpu_memory.py",
            why="only the allocator of a GPU has max_memory_reserved",
            fix="run it on a machine with an NVIDIA GPU; bench/live_tensors.py measures the tensors on a CPU",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    name, total = torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory
    hardware = hardware_from_devices([(name, total)])
    if hardware is None:
        raise UserError(
            what=f"the registry has no GPU called {name}",
            where="bench/gpu_memory.py",
            why="the estimate needs the GPU's memory and compute capability",
            fix="add it to registry/gpus.toml",
            exit_code=ExitCode.OUT_OF_REACH,
        )
    return hardware


def _reserved(case: Case) -> dict[str, int]:
    """The most bytes that torch reserved and allocated over a few steps."""
    training = training_of(case, torch.device("cuda", 0))
    micro_batches = batches(case)
    for _ in range(STEPS):
        train_step(training, micro_batches, lr=1e-4)
    return {"reserved": torch.cuda.max_memory_reserved(0), "allocated": torch.cuda.max_memory_allocated(0)}


def _row(number: int, case: Case, hardware: Hardware) -> dict[str, Any]:
    child = [sys.executable, str(Path(__file__).resolve()), "--case", str(number)]
    done = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    memory = training_memory(setup_of(case.run, hardware, shape_from_run(case.run, case.vocab_size)), hardware)
    tensors = sum(term.bytes for term in memory.terms if term.name != "allocator reserve")
    row = {
        "what": f"reserved by the bundled trainer: {case.name}",
        "reserved_bytes": measured["reserved"],
        "estimated_bytes": round(memory.reserved.typical),
        "error": round(memory.reserved.typical / measured["reserved"] - 1, 4),
        "inside": memory.reserved.low <= measured["reserved"] <= memory.reserved.high,
        "allocated_bytes": measured["allocated"],
        "tensors_error": round(tensors / measured["allocated"] - 1, 4),
        "phase": memory.phase,
        "gpu": hardware.name,
        "torch": torch.__version__,
        "machine": record.machine(),
        "commit": record.commit(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    sys.stdout.write(json.dumps(row) + "\n")
    sys.stdout.flush()
    return row


if __name__ == "__main__":
    main()
