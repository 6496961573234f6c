"""Measures tokens per CPU-second of the trainer's loop and of other loops with the same model and precision.

    OMP_WAIT_POLICY=PASSIVE python bench/trainer.py [--rounds 8] [--steps 3] [--ctx 256 1024]

Loading counts for every loop: ours takes packed rows from the trainer's own stream and separates their documents; the
others take random crops of the same tokens from a memory-mapped file, as nanoGPT does, and let documents attend to each
other. In each round every loop takes `--steps` steps, in rotating order, and CPU-seconds are counted, so a busy moment
of the machine affects them all, and little. `ratio` is against the fastest loop of the same model that is not compiled;
a compiled one is measured beside. Both a Llama and a GPT-2 with as many parameters are trained: the GPT-2 needs less
work per token, in every loop.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from anchors import PEAK_LR, Anchor, Crops, Sizes, hf_trainer, minimal, nano
from record import emit, write

from prime_train import spec
from prime_train.trainer import device
from prime_train.trainer.data import stream
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.loops.step import Training, adamw, train_step
from prime_train.trainer.model.decoder import ModelConfig, build, config_of
from prime_train.trainer.parallel import World

TOKENS = 2048  # of a step
SIZES = Sizes(layers=6, hidden_size=384, heads=6, mlp_size=1024, ctx_tokens=256, vocab_size=8192)
RUN = spec.RunSpec(
    run=spec.Run(name="bench-trainer", max_steps=1000),
    model=spec.Model(layers=SIZES.layers, hidden_size=SIZES.hidden_size, heads=SIZES.heads, tie_embeddings=True),
    data=spec.Data(sources=(spec.Source(kind="python-stdlib"),), loader_workers=0),  # in this process, so it counts
    tokenizer=spec.Tokenizer(vocab_size=SIZES.vocab_size),
    optim=spec.Optim(lr=PEAK_LR),
    precision=spec.Precision(compute="fp32"),
)
CROPPED_DOCUMENTS = 1000  # in the file of the other loops


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3, help="optimizer steps of each loop in a round")
    parser.add_argument("--ctx", type=int, nargs="+", default=[256, 1024], help="tokens of a row")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows: list[dict[str, Any]] = []
    for ctx_tokens in arguments.ctx:
        rows += compare(ctx_tokens, arguments.rounds, arguments.steps)
    write("trainer", rows)


def compare(ctx_tokens: int, rounds: int, steps: int) -> list[dict[str, Any]]:
    """One row for each loop at this length of rows."""
    batch = TOKENS // ctx_tokens
    run = replace(
        RUN, data=replace(RUN.data, ctx_tokens=ctx_tokens), batch=spec.Batch(micro_batch=batch, global_batch=batch)
    )
    sizes = replace(SIZES, ctx_tokens=ctx_tokens)
    llama = config_of(run.model, SIZES.vocab_size)
    with tempfile.TemporaryDirectory() as folder:
        crops = Crops(str(write_tokens(run, Path(folder))), batch, ctx_tokens)
        mine, mine_gpt2 = ours("prime-train", run, llama), ours("prime-train, GPT-2 model", run, as_gpt2(llama, sizes))
        eager = [make(sizes, crops) for make in (minimal.make, nano.make, hf_trainer.make)]
        compiled, gpt2 = nano.make_compiled(sizes, crops), nano.make_gpt2(sizes, crops)
        loops = [mine, *eager, compiled, mine_gpt2, gpt2]
        measured = measure(loops, rounds, steps)
    beside = {
        mine.name: _compare(mine, eager, measured, compiled),
        mine_gpt2.name: _compare(mine_gpt2, [gpt2], measured),
    }
    return [_row(loop, measured, ctx_tokens, beside.get(loop.name, {})) for loop in loops]


def as_gpt2(llama: ModelConfig, sizes: Sizes) -> ModelConfig:
    """GPT-2 of the same width and depth, whose MLP of two matrices has about as many weights as a Llama's of three."""
    return replace(
        llama,
        biases="all",
        layer_norm=True,
        gated_mlp=False,
        mlp_size=4 * sizes.hidden_size,
        learned_positions=sizes.ctx_tokens,
    )


def write_tokens(run: spec.RunSpec, folder: Path) -> Path:
    """The file of tokens for the other loops, from the documents that ours trains on."""
    (corpus,) = open_corpora(run, stream.prepare(run))
    tokens, _ = corpus.gather(corpus.train[:CROPPED_DOCUMENTS])
    path = folder / "tokens.bin"
    tokens.astype(np.uint16).tofile(path)
    return path


def ours(name: str, run: spec.RunSpec, config: ModelConfig) -> Anchor:
    """The trainer's own stream and step. Each step has its share of the time to build a buffer of rows."""
    model = build(config, run.run.seed)
    training = Training(model, adamw(model, run.optim), World(rank=0, size=1), device.pick("fp32"), run.optim.clip_norm)
    rows = stream.TrainStream(run, stream.prepare(run), rank=0, world_size=1, position=None)
    began = time.process_time()
    rows.next_micro_batch()  # builds the first buffer
    first_s = time.process_time() - began
    assert rows._buffer is not None
    buffer_s = first_s * run.batch.micro_batch / len(rows._buffer)

    def take(steps: int) -> list[float]:
        seconds = []
        for _ in range(steps):
            began = time.process_time()
            train_step(training, [rows.next_micro_batch()], PEAK_LR)
            seconds.append(time.process_time() - began + buffer_s)
        return seconds

    return Anchor(name, sum(weight.numel() for weight in model.parameters()), take)


def measure(loops: list[Anchor], rounds: int, steps: int) -> dict[str, list[list[float]]]:
    """Tokens per CPU-second of each step: loop -> round -> step, after one round of warm-up."""
    measured: dict[str, list[list[float]]] = {loop.name: [] for loop in loops}
    for turn in range(rounds + 1):
        start = turn % len(loops)
        for loop in loops[start:] + loops[:start]:
            seconds = loop.run(steps)
            if turn > 0:
                measured[loop.name].append([TOKENS / s for s in seconds])
    return measured


def _compare(
    mine: Anchor, others: list[Anchor], measured: dict[str, list[list[float]]], compiled: Anchor | None = None
) -> dict[str, Any]:
    """Our speed divided by that of the fastest other loop, over all steps and per round."""
    median = {name: statistics.median(step for turn in turns for step in turn) for name, turns in measured.items()}
    fastest = max((other.name for other in others), key=lambda name: median[name])
    by_round = [
        statistics.median(turn) / max(statistics.median(measured[other.name][number]) for other in others)
        for number, turn in enumerate(measured[mine.name])
    ]
    ratios = {
        "ratio": median[mine.name] / median[fastest],
        "ratio_by_round_median": statistics.median(by_round),
        "ratio_by_round_min": min(by_round),
    }
    if compiled is not None:
        ratios["ratio_to_compiled"] = median[mine.name] / median[compiled.name]
    return {"beside": fastest, **{name: round(ratio, 4) for name, ratio in ratios.items()}}


def _row(
    loop: Anchor, measured: dict[str, list[list[float]]], ctx_tokens: int, beside: dict[str, Any]
) -> dict[str, Any]:
    """One loop's tokens per CPU-second."""
    return emit(
        f"trainer, {ctx_tokens} tokens: {loop.name}",
        [step for turn in measured[loop.name] for step in turn],
        unit="tokens/CPU-s",
        **beside,
        parameters=loop.parameters,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
    )


if __name__ == "__main__":
    main()
