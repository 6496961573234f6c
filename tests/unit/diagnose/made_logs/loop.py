"""The progress lines of well-known trainers and servers. Copied into the folder of a made program, which imports it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

_START = 1_773_456_000.0  # seconds since 1970: a Saturday in March 2026

# The names in braces are those of `_fields`.
_STYLES = {
    "hf": "{{'loss': {loss:.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': 1.9e-05, 'epoch': {part:.2f}}}",
    "tqdm": " {percent:>2}%|{bar:<10}| {step}/{steps} [00:{second:02}<04:{left:02},  {rate:.2f}it/s]",
    "megatron": (
        " [{date} {clock}] iteration {step:>8}/{steps:>8} | consumed samples: {samples:>12} | elapsed time per "
        "iteration (ms): {milli:.1f} | learning rate: 2.983E-04 | global batch size:   256 | lm loss: {loss:.6E} "
        "| loss scale: 1.0 | grad norm: {norm:.3f} | number of skipped iterations:   0 "
        "| number of nan iterations:   0 |"
    ),
    "titan": (
        "[titan] {date} {clock},{left:03} - root - INFO - step: {step:>2}  loss: {loss:.4f}  grad_norm:  {norm:.4f}  "
        "memory: 41.22GiB(52.04%)  tps: {tokens:,}  mfu: 42.10%"
    ),
    "prime": (
        "{clock} SUCCESS Step {step} | Time: {rate:.2f}s | Loss: {small:.4f} | Entropy: {small:.4f} | "
        "Mismatch KL: {small:.4f} | Grad. Norm: {norm:.4f} | LR: 1.00e-06 | Throughput: {tokens} tokens/s | MFU: 31.2%"
    ),
    "plain": (
        "step {step:05}/{steps:05} ({percent_exact:.2f}%) | loss: {loss:.6f} | lrm: 1.00 | dt: {milli:.2f}ms | "
        "tok/sec: 1,4{left},{milli:03.0f}"
    ),
    "logging": "{date} {clock},{left:03} - train - INFO - epoch 1 step {step}/{steps} loss={loss:.4f} lr=0.0003",
    "verl": (
        "(TaskRunner pid=48211) step:{step} - global_seqlen/mean:{tokens}.0 - actor/entropy:{small:.6f} - "
        "actor/kl_loss:{small:.6f} - actor/pg_loss:{small:.6f} - actor/grad_norm:{norm:.4f} - "
        "critic/score/mean:{small:.4f} - timing_s/gen:{rate:.3f} - timing_s/step:{milli:.3f}"
    ),
    "vllm": (
        '(APIServer pid=1284) INFO:     10.42.0.{left}:4{tokens} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        "(APIServer pid=1284) INFO {day} {clock} [loggers.py:127] Engine 000: Avg prompt throughput: {milli:.1f} "
        "tokens/s, Avg generation throughput: {tokens}.1 tokens/s, Running: {left} reqs, Waiting: 0 reqs, "
        "GPU KV cache usage: {norm:.1f}%, Prefix cache hit rate: 61.2%"
    ),
    "keras": (
        "Epoch {step}/{steps}\n625/625 ━━━━━━━━━━━━━━━━━━━━ 12s 19ms/step - accuracy: {part:.4f} - loss: {loss:.4f}"
    ),
    "lightning": (
        "Epoch 0: {percent:>3}%|{bar:<10}| {step}/{steps} [00:{second:02}<00:{left:02}, 18.{left:02}it/s, v_num=0, "
        "train_loss={loss:.3f}]"
    ),
}


def _fields(draw: random.Random, now: float, step: int, steps: int) -> dict[str, object]:
    when = time.gmtime(now)
    return {
        "date": time.strftime("%Y-%m-%d", when),
        "day": time.strftime("%m-%d", when),
        "clock": time.strftime("%H:%M:%S", when),
        "step": step,
        "steps": steps,
        "part": step / steps,
        "percent": 100 * step // steps,
        "percent_exact": 100 * step / steps,
        "bar": "█" * (10 * step // steps),
        "second": step % 60,
        "left": draw.randrange(10, 60),
        "samples": step * 256,
        "loss": 2.0 + 9.0 / (step + 2) + draw.uniform(-0.05, 0.05),
        "norm": draw.uniform(0.2, 2.0),
        "small": draw.random(),
        "rate": draw.uniform(1.0, 2.0),
        "milli": draw.uniform(300.0, 400.0),
        "tokens": draw.randrange(6800, 7100),
    }


def progress(style: str, count: int, first: int = 1, steps: int = 0) -> Iterator[str]:
    """`count` steps of progress from step `first` of `steps` on, one or two lines each; the same ones at every call."""
    draw = random.Random(f"{style}{first}")
    now = _START + 11.0 * first
    for step in range(first, first + count):
        now += draw.uniform(9.0, 13.0)
        yield _STYLES[style].format(**_fields(draw, now, step, max(steps, first + count - 1)))


def steps(style: str = "plain", count: int = 12, first: int = 1, of: int = 400) -> None:
    """Print progress to stdout."""
    for line in progress(style, count, first, of):
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def note(text: str) -> None:
    """Print one line to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
