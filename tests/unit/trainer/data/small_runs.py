"""Small texts and run specs for the tests of the data path."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from prime_train.spec import Batch, Data, Eval, Run, RunSpec, Source, Tokenizer

WORDS = ("alpha", "beta", "gamma", "delta", "loss", "step", "token", "größe", "日本", "def f(x):\n    return x\n")


def text(seed: int, words: int) -> str:
    """Random words that begin with the seed, so that every document differs."""
    draw = random.Random(seed)
    return f"{seed} " + " ".join(draw.choice(WORDS) for _ in range(words))


def write_texts(folder: Path, count: int, seed: int = 0) -> Path:
    """Documents of very different length, one per .txt file."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(seed)
    for number in range(count):
        file = folder / f"{number:04d}.txt"
        file.write_text(text(seed * 10_000 + number, draw.choice((1, 3, 8, 20, 90))), encoding="utf-8")
    return folder


def write_lines(file: Path, rows: list[dict[str, Any]]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def files(path: Path, text_field: str = "text") -> Source:
    return Source(kind="files", path=str(path), text_field=text_field)


def small_run(*sources: Source, micro_batch: int = 2, held_out_ratio: float = 0.1, **data: Any) -> RunSpec:
    """32 tokens per sequence, 4 documents per buffer, a vocabulary of 300, no worker."""
    settings = Data(sources=sources, ctx_tokens=32, pack_buffer_docs=4, loader_workers=0)
    return RunSpec(
        run=Run(name="small", max_steps=10, seed=7),
        data=replace(settings, **data),
        tokenizer=Tokenizer(vocab_size=300),
        batch=Batch(micro_batch=micro_batch),
        eval=Eval(held_out_ratio=held_out_ratio),
    )
