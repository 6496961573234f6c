"""What the spans of a profile cost: the same steps with and without them, in turns.

    python bench/profile_overhead.py [--steps 60]

The file is not called profile.py, because cProfile imports a module of that name from the folder of a script.
Runs on one CPU core, and counts its CPU seconds: other processes of a busy machine change them less than the time of
day. Every second step writes spans.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import record
import torch

from prime_train.core.spans import ENV
from prime_train.spec import Optim
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.device import Device
from prime_train.trainer.loops.step import Training, adamw, train_step
from prime_train.trainer.loops.step_spans import StepSpans
from prime_train.trainer.model.decoder import ModelConfig, build
from prime_train.trainer.parallel import World

CPU = Device(torch.device("cpu"), "CPU", "fp32", None)
MOST_RATIO = 1.03
SIZES = {"tiny": (64, 2, 32, 2), "small": (256, 3, 128, 4)}  # width, blocks, tokens of a sequence, sequences


def training(width: int, blocks: int) -> Training:
    config = ModelConfig(
        vocab_size=1024,
        layers=blocks,
        hidden_size=width,
        heads=4,
        kv_heads=4,
        head_dim=width // 4,
        mlp_size=2 * width,
        rope_theta=10000.0,
        norm_eps=1e-5,
        tie_embeddings=True,
        qk_norm=False,
    )
    model = build(config, 1)
    return Training(model, adamw(model, Optim()), World(rank=0, size=1), CPU, 1.0)


def random_batch(ctx_tokens: int, rows: int) -> MicroBatch:
    drawn = torch.randint(0, 1024, (rows, ctx_tokens + 1))
    tokens, labels = drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
    return MicroBatch(tokens, labels, torch.arange(ctx_tokens).repeat(rows, 1), torch.zeros_like(tokens))


def step_of(base: Training, batch: MicroBatch, spans: StepSpans) -> Callable[[int], float]:
    """A function that returns the CPU seconds of one step."""
    watched = replace(base, spans=spans)

    def run(number: int) -> float:
        began_s = time.process_time()
        with spans.step(number), spans.host_span("data"):
            pass
        train_step(watched, [batch, batch], 1e-4)
        return time.process_time() - began_s

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60, help="pairs of steps")
    steps: int = parser.parse_args().steps
    torch.set_num_threads(1)
    rows = []
    for name, (width, blocks, ctx_tokens, sequences) in SIZES.items():
        base, batch = training(width, blocks), random_batch(ctx_tokens, sequences)
        without = step_of(base, batch, StepSpans(0, CPU.torch))
        with tempfile.TemporaryDirectory() as folder:
            os.environ[ENV] = str(Path(folder) / "spans.jsonl")
            spans = StepSpans(0, CPU.torch)
            with_spans = step_of(base, batch, spans)
            del os.environ[ENV]
            pairs = []
            for number in range(steps + 5):
                # The order alternates, so that the second step of a pair is not always of the same side.
                if number % 2:
                    plain_s, spans_s = without(number), with_spans(number)
                else:
                    spans_s, plain_s = with_spans(number), without(number)
                pairs.append((plain_s, spans_s))
            pairs = pairs[5:]
            spans.close()
        plain = [plain_s for plain_s, _ in pairs]
        watched = [spans_s for _, spans_s in pairs]
        ratio = statistics.median(watched) / statistics.median(plain)
        rows.append(record.emit(f"a step of the {name} model without spans", plain, unit="CPU s"))
        measured = {"unit": "CPU s", "ratio": round(ratio, 4), "at_most": MOST_RATIO}
        rows.append(record.emit(f"a step of the {name} model with spans", watched, **measured))
    record.write("profile_overhead", rows)


if __name__ == "__main__":
    main()
