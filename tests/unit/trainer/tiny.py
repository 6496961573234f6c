"""A run small enough to train in a second, and the real trainer on it as a process of its own."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from prime_train import spec
from prime_train.core.rundir import RunDir
from prime_train.events import Event, EventLog, read
from prime_train.spec import RunSpec, to_json
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.device import Device
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import Decoder, ModelConfig, build, parameter_shapes
from tests import fork_server

DEADLINE_S = 240.0
CPU = Device(torch.device("cpu"), "CPU", "fp32", None)
CONFIG = ModelConfig(
    vocab_size=64,
    layers=2,
    hidden_size=32,
    heads=2,
    kv_heads=1,
    head_dim=16,
    mlp_size=64,
    rope_theta=10000.0,
    norm_eps=1e-5,
    tie_embeddings=True,
    qk_norm=False,
)


def save_hf(folder: Path, config: ModelConfig, weights: Mapping[str, torch.Tensor], export: hf.Export) -> None:
    """Write a Hugging Face folder from a gathered state dict."""
    hf.save_rows(folder, config, lambda name, start, stop: weights[name].detach()[start:stop].cpu(), export)


def parameter_count(config: ModelConfig) -> int:
    return sum(math.prod(shape) for shape in parameter_shapes(config).values())


def decoder(seed: int = 1) -> Decoder:
    return build(CONFIG, seed)


def batch(seed: int, rows: int = 2, ctx_tokens: int = 16, unlabelled: int = 0) -> MicroBatch:
    """Random tokens, two documents in each row, the first `unlabelled` positions without a label."""
    drawn = torch.randint(0, CONFIG.vocab_size, (rows, ctx_tokens + 1), generator=torch.Generator().manual_seed(seed))
    half = ctx_tokens // 2
    labels = drawn[:, 1:].clone()
    labels[:, half - 1] = -100
    labels[:, :unlabelled] = -100
    return MicroBatch(
        tokens=drawn[:, :-1].contiguous(),
        labels=labels,
        positions=(torch.arange(ctx_tokens) % half).repeat(rows, 1),
        documents=(torch.arange(ctx_tokens) // half).repeat(rows, 1),
    )


def run_spec(texts: Path, **parts: Any) -> RunSpec:
    """A run over the text files in `texts`; `parts` replaces whole sections."""
    run = RunSpec(
        run=spec.Run(name="tiny", max_steps=10, seed=7),
        model=spec.Model(layers=2, hidden_size=32, heads=2, kv_heads=1, mlp_size=64),
        data=spec.Data(
            sources=(spec.Source(kind="files", path=str(texts)),), ctx_tokens=32, pack_buffer_docs=16, loader_workers=0
        ),
        tokenizer=spec.Tokenizer(vocab_size=300),
        batch=spec.Batch(micro_batch=4, global_batch=4),
        schedule=spec.Schedule(kind="wsd", warmup_steps=3, decay_steps=4),
        checkpoint=spec.Checkpoint(interval_steps=5),
        eval=spec.Eval(interval_steps=5, held_out_ratio=0.1, batches=3, prompts=("alpha",), sample_tokens=4),
    )
    return replace(run, **parts)


def write_texts(folder: Path, documents: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for number in range(documents):
        words = " ".join(
            draw.choice(("alpha", "beta", "loss", "step", "日本")) for _ in range(draw.choice((3, 20, 90)))
        )
        (folder / f"{number:03d}.txt").write_text(f"{number} {words}", encoding="utf-8")
    return folder


def prepare(path: Path, run: RunSpec) -> RunDir:
    """A run directory as the supervisor leaves it before the first attempt."""
    path.mkdir(parents=True, exist_ok=True)
    run_dir = RunDir(path)
    run_dir.resolved.write_text(to_json(run), encoding="utf-8")
    return run_dir


def attempt(run_dir: RunDir, run: RunSpec, resume_step: int = 0, number: int = 1) -> Attempt:
    return Attempt(run, run_dir, number, resume_step, EventLog(run_dir.events, f"trainer-{number:03d}-rank0"), 0)


def start(
    run_dir: RunDir, number: int = 1, resume_step: int = 0, processes: int = 1, **options: Any
) -> subprocess.Popen[str]:
    """The trainer as the supervisor starts it. It is forked, unless its process has `options`."""
    python = options.pop("python", "") or (sys.executable if options else fork_server.interpreter())
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    module = ["-m", "prime_train.trainer", str(run_dir.path), "--attempt", str(number)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHON_EXEC": python} | options.pop("environment", {})
    return subprocess.Popen(
        [python, *(launcher if processes > 1 else []), *module, "--resume-step", str(resume_step)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        **options,
    )


def train(
    run_dir: RunDir, number: int = 1, resume_step: int = 0, processes: int = 1, **options: Any
) -> tuple[int, str]:
    """Exit code and output of an attempt that ends by itself, started by `start`."""
    process = start(run_dir, number, resume_step, processes, **options)
    try:
        output, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    return process.returncode, output


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a trainer, and wait until nothing that it started writes any more: its output ends with the last of them."""
    process.kill()
    process.communicate(timeout=DEADLINE_S)


def events(run_dir: RunDir) -> list[Event]:
    return [record.event for record in read(run_dir.events)]


def metrics(run_dir: RunDir) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run_dir.metrics.read_text(encoding="utf-8").splitlines()]


def until(holds: Callable[[], bool]) -> None:
    """Return as soon as the condition holds; fail where it does not in time."""
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)
