"""Questions made of random words: four endings of different lengths, and each label equally often."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

WORDS = ("a", "dog", "runs", "over", "the", "hill", "and", "sees", "größe", "two", "cats", "then", "stops")


def make_questions(count: int, seed: int = 0) -> list[dict[str, Any]]:
    draw = random.Random(seed)

    def words(least: int, most: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))

    labels = [number % 4 for number in range(count)]
    draw.shuffle(labels)
    return [
        {"ctx": words(2, 8), "endings": [words(1, 6) + f" {number}{ending}" for ending in range(4)], "label": label}
        for number, label in enumerate(labels)
    ]


def write_questions(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file
