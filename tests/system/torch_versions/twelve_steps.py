"""`python -m tests.system.torch_versions.twelve_steps`: twelve steps per model on a CPU, printed.

Losses and norms are printed in full, and the weights as a hash, so that two interpreters can be compared to the bit.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import torch
from torch import nn

from prime_train import spec
from prime_train.trainer.loops.step import Training, train_step
from prime_train.trainer.model.decoder import ModelConfig, build
from prime_train.trainer.muon import build_optimizer
from prime_train.trainer.parallel import World
from tests.unit.trainer import tiny

STEPS = 12
LLAMA = replace(tiny.CONFIG, vocab_size=300, hidden_size=96, heads=6, kv_heads=2, mlp_size=256, qk_norm=True)
GPT2 = replace(
    tiny.CONFIG,
    kv_heads=2,
    layer_norm=True,
    biases="all",
    gated_mlp=False,
    learned_positions=1024,
)
ADAMW = spec.Optim(kind="adamw", lr=0.003)
MUON = spec.Optim(kind="muon", lr=0.003, muon_lr=0.02)


def hash_weights(model: nn.Module) -> str:
    """SHA-256 of the bytes of all weights, in the order of their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode() + weight.numpy().tobytes())
    return digest.hexdigest()


def take_steps(config: ModelConfig, optim: spec.Optim, ctx_tokens: int) -> dict[str, object]:
    """The losses and gradient norms of the steps, each of two micro-batches with two documents in a row, and a hash."""
    model = build(config, seed=1)
    training = Training(model, build_optimizer(model, optim), World(0, 1), tiny.CPU, clip_norm=1.0)
    found = []
    for step in range(STEPS):
        batches = [tiny.batch(seed, rows=2, ctx_tokens=ctx_tokens) for seed in (2 * step, 2 * step + 1)]
        result = train_step(training, batches, lr=optim.lr)
        found.append([result.loss.hex(), result.grad_norm.hex()])
    return {"loss_and_norm": found, "weights": hash_weights(model)}


def main() -> None:
    torch.set_num_threads(1)  # the order of a sum depends on the number of threads
    steps = {
        "llama, adamw, short rows": take_steps(LLAMA, ADAMW, ctx_tokens=64),
        "llama, muon, long rows": take_steps(LLAMA, MUON, ctx_tokens=768),
        "gpt-2, adamw, long rows": take_steps(GPT2, ADAMW, ctx_tokens=768),
    }
    print(json.dumps({"torch": torch.__version__, "steps": steps}))


if __name__ == "__main__":
    main()
