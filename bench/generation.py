"""Measures tokens/s of the local engine, and of generation without a cache.

    python bench/generation.py [--requests 256] [--rounds 5]

Both continue the same random prompts with the same weights to the same length, in turns. Without a cache,
`evaluate.generate` computes the whole sequences for each token, for as many of them together as the engine has slots.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from record import emit, write

from prime_train import spec
from prime_train.trainer.evaluation.evaluate import Sampling, generate
from prime_train.trainer.model.decoder import Decoder, build, config_of
from prime_train.trainer.rl.engines.engine import Request
from prime_train.trainer.rl.engines.local_engine import LocalEngine

MODEL = spec.Model(layers=4, hidden_size=128, heads=4)
VOCAB_SIZE, CTX_TOKENS, PROMPT_TOKENS, ANSWER_TOKENS, GROUP, SLOTS = 512, 128, 48, 48, 8, 64


def make_prompts(requests: int) -> list[tuple[int, ...]]:
    """Groups of equal prompts, as in GRPO."""
    drawn = torch.randint(
        VOCAB_SIZE, (-(-requests // GROUP), PROMPT_TOKENS), generator=torch.Generator().manual_seed(1)
    )
    return [tuple(map(int, prompt)) for prompt in drawn for _ in range(GROUP)][:requests]


def time_engine(model: Decoder, prompts: list[tuple[int, ...]]) -> float:
    """Seconds of the local engine for all prompts, asked by as many threads as it has slots."""
    engine = LocalEngine(model.config, ctx_tokens=CTX_TOKENS, slots=SLOTS)
    engine.update(model.state_dict(), 1)
    requests = [Request(prompt, ANSWER_TOKENS, 1.0, frozenset(), seed) for seed, prompt in enumerate(prompts)]
    with ThreadPoolExecutor(SLOTS) as pool:
        list(pool.map(engine.generate, requests[:GROUP]))
        began = time.perf_counter()
        list(pool.map(engine.generate, requests))
        took = time.perf_counter() - began
    engine.close()
    return took


def time_without_cache(model: Decoder, prompts: list[tuple[int, ...]]) -> float:
    sampling = Sampling(new_tokens=ANSWER_TOKENS, ctx_tokens=CTX_TOKENS, temperature=1.0, seed=1)
    began = time.perf_counter()
    for start in range(0, len(prompts), SLOTS):
        generate(model, prompts[start : start + SLOTS], sampling)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model, prompts = build(config_of(MODEL, VOCAB_SIZE), 1), make_prompts(arguments.requests)
    tokens = ANSWER_TOKENS * len(prompts)
    times = [(time_engine(model, prompts), time_without_cache(model, prompts)) for _ in range(arguments.rounds)]
    cached, plain = ([tokens / took for took in column] for column in zip(*times, strict=True))
    shared = {"unit": "tokens/s", "parameters": sum(weight.numel() for weight in model.parameters()), "slots": SLOTS}
    ratio = round(statistics.median(cached) / statistics.median(plain), 2)
    rows = [
        emit("generation: local engine", cached, ratio=ratio, threads=torch.get_num_threads(), **shared),
        emit("generation: without a cache", plain, threads=torch.get_num_threads(), **shared),
    ]
    write("generation", rows)


if __name__ == "__main__":
    main()
