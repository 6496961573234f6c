"""Measures tokens/s of the local engine, of transformers.generate, and of generation without a cache.

    python bench/generation.py [--rounds 9] [--requests 128] [--threads N]

All continue the same random prompts with the same weights to the same length, in turns. transformers.generate, with its
KV cache, continues batches of 1, 8 and 32 prompts with the most probable tokens, which must be those of the engine. The
engine of a small model computes in one thread, so there transformers.generate is measured with one, too, and the ratio
is that to the faster of both. Without a cache, `evaluate.generate` computes the whole sequences for each token, for as
many of them together as the engine has slots; there the tokens are sampled, in a third of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from anchors import hf_generate
from record import emit, write

from prime_train import spec
from prime_train.trainer.evaluation.evaluate import Sampling, generate
from prime_train.trainer.model import hf
from prime_train.trainer.model.decoder import Decoder, build, config_of
from prime_train.trainer.rl.engines.engine import GenerationRequest
from prime_train.trainer.rl.engines.exact_rows import WIDE
from prime_train.trainer.rl.engines.local_engine import LocalEngine

CTX_TOKENS, PROMPT_TOKENS, ANSWER_TOKENS, GROUP, SLOTS = 128, 48, 48, 8, 64
BATCHES = (1, 8, 32)
SIZES = {
    "0.9M": (spec.Model(layers=4, hidden_size=128, heads=4), 512),
    "25M": (spec.Model(layers=8, hidden_size=512, heads=8, kv_heads=4), 4096),
}

Prompts = list[tuple[int, ...]]
Generate = Callable[[Prompts], object]  # continues all prompts


def make_prompts(count: int, vocab_size: int, group: int = 1) -> Prompts:
    """Groups of equal prompts, as in GRPO."""
    drawn = torch.randint(vocab_size, (-(-count // group), PROMPT_TOKENS), generator=torch.Generator().manual_seed(1))
    return [tuple(map(int, prompt)) for prompt in drawn for _ in range(group)][:count]


@contextmanager
def open_engine(model: Decoder, slots: int, temperature: float) -> Iterator[Callable[[Prompts], list[list[int]]]]:
    """The local engine, asked by as many threads as it has slots."""
    engine = LocalEngine(model.config, ctx_tokens=CTX_TOKENS, slots=slots)
    engine.update(model.state_dict(), 1)

    def ask(prompts: Prompts) -> list[list[int]]:
        requests = [
            GenerationRequest(prompt, ANSWER_TOKENS, temperature, frozenset(), seed)
            for seed, prompt in enumerate(prompts)
        ]
        return [list(answer.tokens) for answer in pool.map(engine.generate, requests)]

    with ThreadPoolExecutor(slots) as pool:
        yield ask
    engine.close()


def measure_in_turns(loops: Sequence[Generate], prompts: Prompts, rounds: int) -> list[list[float]]:
    """Tokens/s of each loop in each round. Which is the first of a round changes; a round before them warms up."""
    speeds: list[list[float]] = [[] for _ in loops]
    for turn in range(rounds + 1):
        for place in range(len(loops)):
            number = (turn + place) % len(loops)
            began = time.perf_counter()
            loops[number](prompts)
            took = time.perf_counter() - began
            if turn > 0:
                speeds[number].append(ANSWER_TOKENS * len(prompts) / took)
    return speeds


def describe(names: Sequence[str], speeds: Sequence[Sequence[float]], **shared: Any) -> list[dict[str, Any]]:
    """A row for each loop. The first has the ratio of its speed to the fastest other: the median over the rounds."""
    ratio = statistics.median(ours / max(others) for ours, *others in zip(*speeds, strict=True))
    shared = {"unit": "tokens/s", "threads": torch.get_num_threads(), **shared}
    return [
        emit(f"generation: {name}", of_one, **({"ratio": round(ratio, 2)} if number == 0 else {}), **shared)
        for number, (name, of_one) in enumerate(zip(names, speeds, strict=True))
    ]


def use_one_thread(loop: Generate) -> Generate:
    def call(prompts: Prompts) -> object:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return loop(prompts)
        finally:
            torch.set_num_threads(threads)

    return call


def compare_with_transformers(size: str, rounds: int) -> list[dict[str, Any]]:
    """Raises ValueError if the tokens differ."""
    sizes, vocab_size = SIZES[size]
    model = build(config_of(sizes, vocab_size), 1)
    parameters = sum(weight.numel() for weight in model.parameters())
    with tempfile.TemporaryDirectory() as folder:
        exported = Path(folder) / "model"
        weights = model.state_dict()
        export = hf.Export(ctx_tokens=CTX_TOKENS)
        hf.save_rows(exported, model.config, lambda name, start, stop: weights[name][start:stop], export)
        other = hf_generate.load(exported)

    def continue_greedily(prompts: Prompts) -> list[list[int]]:
        return hf_generate.generate(other, prompts, ANSWER_TOKENS)

    anchors: dict[str, Generate] = {"transformers.generate": continue_greedily}
    if model.config.hidden_size < WIDE:
        anchors["transformers.generate in one thread"] = use_one_thread(continue_greedily)
    rows: list[dict[str, Any]] = []
    for batch in BATCHES:
        prompts = make_prompts(batch, vocab_size)
        with open_engine(model, batch, temperature=0.0) as ask:
            if ask(prompts) != continue_greedily(prompts):
                raise ValueError(f"{size}, batch {batch}: transformers generates other tokens")
            speeds = measure_in_turns((ask, *anchors.values()), prompts, rounds)
        names = [f"{name}, {size}, batch {batch}" for name in ("local engine", *anchors)]
        rows += describe(names, speeds, parameters=parameters)
    return rows


def compare_without_cache(requests: int, rounds: int) -> list[dict[str, Any]]:
    sizes, vocab_size = SIZES["0.9M"]
    model, prompts = build(config_of(sizes, vocab_size), 1), make_prompts(requests, vocab_size, GROUP)
    sampling = Sampling(new_tokens=ANSWER_TOKENS, ctx_tokens=CTX_TOKENS, temperature=1.0, seed=1)

    def recompute(prompts: Prompts) -> None:
        for start in range(0, len(prompts), SLOTS):
            generate(model, prompts[start : start + SLOTS], sampling)

    with open_engine(model, SLOTS, temperature=1.0) as ask:
        speeds = measure_in_turns((ask, recompute), prompts, rounds)
    parameters = sum(weight.numel() for weight in model.parameters())
    return describe(("local engine", "without a cache"), speeds, parameters=parameters, slots=SLOTS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = [row for size in SIZES for row in compare_with_transformers(size, arguments.rounds)]
    rows += compare_without_cache(arguments.requests, max(1, arguments.rounds // 3))
    write("generation", rows)


if __name__ == "__main__":
    main()
