"""Measures tokens/s of the training step and of three other loops with the same model, batches and precision.

    python bench/trainer.py [--rounds 8] [--steps 3]

Our loop separates packed documents with a mask; the others let documents attend to each other. Data loading is excluded
for all (the Trainer's own loader gets ready tensors). In each round every loop takes `--steps` steps, in rotating
order, so a busy moment of the machine affects them all. A GPT-2 with the same number of parameters is measured too; it
needs less work per token, so it is not part of the ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
from anchors import PEAK_LR, Anchor, Sizes, Tokens, hf_trainer, minimal, nano
from record import emit, write

from prime_train import spec
from prime_train.trainer import device
from prime_train.trainer.data import stream
from prime_train.trainer.data.batch import Batch
from prime_train.trainer.model import build, config_of
from prime_train.trainer.parallel import World
from prime_train.trainer.step import Training, adamw, train_step

BATCH = 8
SIZES = Sizes(layers=6, hidden_size=384, heads=6, mlp_size=1024, ctx_tokens=256, vocab_size=8192)
RUN = spec.RunSpec(
    run=spec.Run(name="bench-trainer", max_steps=1000),
    model=spec.Model(layers=SIZES.layers, hidden_size=SIZES.hidden_size, heads=SIZES.heads, tie_embeddings=True),
    data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), ctx_tokens=SIZES.ctx_tokens, loader_workers=0),
    tokenizer=spec.Tokenizer(vocab_size=SIZES.vocab_size),
    batch=spec.Batch(micro_batch=BATCH),
    optim=spec.Optim(lr=PEAK_LR),
    precision=spec.Precision(compute="fp32"),
)


def batches(count: int) -> list[Batch]:
    """The first micro-batches of a run on the standard library's source."""
    rows = stream.TrainStream(RUN, stream.prepare(RUN), rank=0, world_size=1, position=None)
    made = [rows.next_micro_batch() for _ in range(count)]
    rows.close()
    return made


def ours(made: list[Batch]) -> Anchor:
    """The trainer's own step. It finds its batches by identity, because the other loops get only tokens and labels."""
    model = build(config_of(RUN.model, SIZES.vocab_size), RUN.run.seed)
    training = Training(model, adamw(model, RUN.optim), World(rank=0, size=1), device.pick("fp32"), RUN.optim.clip_norm)
    batch_of = {id(batch.tokens): batch for batch in made}

    def run(tokens: list[Tokens]) -> list[float]:
        seconds = []
        for each in tokens:
            began = time.perf_counter()
            train_step(training, [batch_of[id(each.tokens)]], PEAK_LR)
            seconds.append(time.perf_counter() - began)
        return seconds

    return Anchor("prime-train", sum(weight.numel() for weight in model.parameters()), run)


def measure(loops: list[Anchor], made: list[Tokens], rounds: int, steps: int) -> dict[str, list[list[float]]]:
    """Tokens per second of each step: loop -> round -> step, after one round of warm-up."""
    measured: dict[str, list[list[float]]] = {loop.name: [] for loop in loops}
    for turn in range(rounds + 1):
        block = made[turn * steps : (turn + 1) * steps]
        start = turn % len(loops)
        for loop in loops[start:] + loops[:start]:
            seconds = loop.run(block)
            if turn > 0:
                measured[loop.name].append([block[0].tokens.numel() / s for s in seconds])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps of each loop in a round")
    arguments = parser.parse_args()

    made = batches((arguments.rounds + 1) * arguments.steps)
    mine, others = ours(made), [minimal.make(SIZES), nano.make(SIZES), hf_trainer.make(SIZES)]
    loops = [mine, *others, nano.make_gpt2(SIZES)]
    tokens = [Tokens(batch.tokens, batch.labels) for batch in made]
    measured = measure(loops, tokens, arguments.rounds, arguments.steps)
    write("trainer", [_row(loop, mine, others, measured) for loop in loops])


def _row(loop: Anchor, mine: Anchor, others: list[Anchor], measured: dict[str, list[list[float]]]) -> dict[str, Any]:
    """One loop's tokens/s; ours also with the ratio to the fastest other loop, over all steps and per round."""
    steps = {name: [step for turn in turns for step in turn] for name, turns in measured.items()}
    extra: dict[str, Any] = {}
    if loop is mine:
        fastest = max(others, key=lambda other: statistics.median(steps[other.name]))
        by_round = [
            statistics.median(turn) / max(statistics.median(measured[other.name][number]) for other in others)
            for number, turn in enumerate(measured[mine.name])
        ]
        extra = {
            "beside": fastest.name,
            "ratio": round(statistics.median(steps[mine.name]) / statistics.median(steps[fastest.name]), 4),
            "ratio_by_round_median": round(statistics.median(by_round), 4),
            "ratio_by_round_min": round(min(by_round), 4),
        }
    return emit(
        f"trainer: {loop.name}",
        steps[loop.name],
        unit="tokens/s",
        **extra,
        parameters=loop.parameters,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )


if __name__ == "__main__":
    main()
