"""The progress lines of well-known trainers and servers. Copied into the folder of a made program, which imports it."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator

_START = 1_773_456_000.0  # seconds since 1970: a Saturday in March 2026
_Line = Callable[[random.Random, float, int, int], str]  # (draw, seconds since 1970, step, steps)


def _clock(now: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return time.strftime(form, time.gmtime(now))


def _loss(draw: random.Random, step: int) -> float:
    return 2.0 + 9.0 / (step + 2) + draw.uniform(-0.05, 0.05)


def _hf(draw: random.Random, now: float, step: int, steps: int) -> str:
    norm = draw.uniform(0.2, 2.0)
    return f"{{'loss': {_loss(draw, step):.4f}, 'grad_norm': {norm:.6f}, 'learning_rate': 1.9e-05, 'epoch': {step / steps:.2f}}}"


def _tqdm(draw: random.Random, now: float, step: int, steps: int) -> str:
    done = "█" * (10 * step // steps)
    return f" {100 * step // steps:>2}%|{done:<10}| {step}/{steps} [00:{step % 60:02}<04:{draw.randrange(60):02},  {draw.uniform(1, 2):.2f}it/s]"


def _megatron(draw: random.Random, now: float, step: int, steps: int) -> str:
    return (
        f" [{_clock(now)}] iteration {step:>8}/{steps:>8} | consumed samples: {step * 256:>12} | elapsed time per iteration "
        f"(ms): {draw.uniform(1800, 2100):.1f} | learning rate: 2.983E-04 | global batch size:   256 | lm loss: "
        f"{_loss(draw, step):.6E} | loss scale: 1.0 | grad norm: {draw.uniform(0.3, 2):.3f} | number of skipped iterations:   0 "
        "| number of nan iterations:   0 |"
    )


def _titan(draw: random.Random, now: float, step: int, steps: int) -> str:
    return (
        f"[titan] {_clock(now)},{draw.randrange(1000):03} - root - INFO - step: {step:>2}  loss: {_loss(draw, step):.4f}  "
        f"grad_norm:  {draw.uniform(0.3, 2):.4f}  memory: 41.22GiB(52.04%)  tps: {draw.randrange(6800, 7100):,}  mfu: 42.10%"
    )


def _prime(draw: random.Random, now: float, step: int, steps: int) -> str:
    return (
        f"{_clock(now, '%H:%M:%S')} SUCCESS Step {step} | Time: {draw.uniform(9, 14):.2f}s | Loss: {_loss(draw, step) / 40:.4f} | "
        f"Entropy: {draw.random():.4f} | Mismatch KL: {draw.random() / 500:.4f} | Grad. Norm: {draw.random():.4f} | LR: 1.00e-06 | "
        f"Throughput: {draw.randrange(8000, 9999)} tokens/s | MFU: 31.2%"
    )


def _plain(draw: random.Random, now: float, step: int, steps: int) -> str:
    return f"step {step:05}/{steps:05} ({100 * step / steps:.2f}%) | loss: {_loss(draw, step):.6f} | lrm: 1.00 | dt: {draw.uniform(300, 400):.2f}ms | tok/sec: {draw.randrange(1_400_000, 1_500_000):,}"


def _logging(draw: random.Random, now: float, step: int, steps: int) -> str:
    return f"{_clock(now)},{draw.randrange(1000):03} - train - INFO - epoch 1 step {step}/{steps} loss={_loss(draw, step):.4f} lr=0.0003"


def _verl(draw: random.Random, now: float, step: int, steps: int) -> str:
    return (
        f"(TaskRunner pid=48211) step:{step} - global_seqlen/mean:{draw.randrange(20000, 40000)}.0 - actor/entropy:{draw.random():.6f} - "
        f"actor/kl_loss:{draw.random() / 100:.6f} - actor/pg_loss:{draw.uniform(-0.1, 0.1):.6f} - actor/grad_norm:{draw.random():.4f} - "
        f"critic/score/mean:{draw.random():.4f} - timing_s/gen:{draw.uniform(30, 60):.3f} - timing_s/step:{draw.uniform(90, 120):.3f}"
    )


def _vllm(draw: random.Random, now: float, step: int, steps: int) -> str:
    if step % 3:
        return f'(APIServer pid=1284) INFO:     10.42.0.{draw.randrange(2, 250)}:{draw.randrange(32768, 61000)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
    return (
        f"(APIServer pid=1284) INFO {_clock(now, '%m-%d %H:%M:%S')} [loggers.py:127] Engine 000: Avg prompt throughput: "
        f"{draw.uniform(900, 2000):.1f} tokens/s, Avg generation throughput: {draw.uniform(3000, 5000):.1f} tokens/s, Running: "
        f"{draw.randrange(8, 64)} reqs, Waiting: 0 reqs, GPU KV cache usage: {draw.uniform(5, 40):.1f}%, Prefix cache hit rate: 61.2%"
    )


def _keras(draw: random.Random, now: float, step: int, steps: int) -> str:
    return f"Epoch {step}/{steps}\n625/625 ━━━━━━━━━━━━━━━━━━━━ 12s 19ms/step - accuracy: {min(0.99, 0.5 + step / steps / 2):.4f} - loss: {_loss(draw, step):.4f}"


def _lightning(draw: random.Random, now: float, step: int, steps: int) -> str:
    return f"Epoch 0: {100 * step // steps:>3}%|{'█' * (10 * step // steps):<10}| {step}/{steps} [00:{step % 60:02}<00:{draw.randrange(60):02}, 18.{draw.randrange(99):02}it/s, v_num=0, train_loss={_loss(draw, step):.3f}]"


STYLES: dict[str, _Line] = {
    "hf": _hf, "tqdm": _tqdm, "megatron": _megatron, "titan": _titan, "prime": _prime, "plain": _plain,
    "logging": _logging, "verl": _verl, "vllm": _vllm, "keras": _keras, "lightning": _lightning,
}  # fmt: skip


def progress(style: str, count: int, first: int = 1, steps: int = 0) -> Iterator[str]:
    """`count` lines of progress from step `first` of `steps` on; the same ones at every call."""
    draw = random.Random(f"{style}{first}")
    now = _START + 11.0 * first
    for step in range(first, first + count):
        now += draw.uniform(9.0, 13.0)
        yield STYLES[style](draw, now, step, max(steps, first + count - 1))


def steps(style: str = "plain", count: int = 12, first: int = 1, of: int = 400) -> None:
    """Print progress to stdout."""
    for line in progress(style, count, first, of):
        print(line, flush=True)


def note(text: str) -> None:
    """Print one line to stderr."""
    print(text, file=sys.stderr, flush=True)
