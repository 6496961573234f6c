"""Measures what redaction costs, how many ordinary lines it changes, and how many planted secrets it leaves.

Ordinary lines are those of real logs: files and folders given with --logs (every *.log, *.jsonl, *.txt and *.md below
them). Throughput is CPU time over the same text, in chunks of 64 KiB as `logs` reads it. Planted are 10,000 secrets of
the kinds of tests/planted.py, each in its own line between ordinary ones.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import record

sys.path.insert(0, str(record.HERE.parent))

from tests.planted import KINDS, draw, in_text

from prime_train.core.redaction import LineRedactor, redact

_SUFFIXES = frozenset({".log", ".jsonl", ".txt", ".md", ".out", ".prom", ".csv"})
_CHUNK = 64 * 1024
_PLANTED = 10_000
_REPEATS = 5


def _texts(places: list[Path]) -> Iterator[str]:
    for place in places:
        files = sorted(place.rglob("*")) if place.is_dir() else [place]
        for path in files:
            if path.suffix in _SUFFIXES and path.is_file() and not path.is_symlink():
                yield path.read_text(encoding="utf-8", errors="replace")


def _throughput(text: str) -> list[float]:
    """MB per second of CPU time, for each repetition."""
    rates = []
    for _ in range(_REPEATS):
        redactor, start_s = LineRedactor(), time.process_time()
        for at in range(0, len(text), _CHUNK):
            redactor.feed(text[at : at + _CHUNK])
        redactor.flush()
        rates.append(len(text.encode()) / 1e6 / (time.process_time() - start_s))
    return rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path, nargs="+", required=True)
    options = parser.parse_args()
    lines = [line for text in _texts(options.logs) for line in text.splitlines()]
    changed = [line for line in lines if redact(line) != line]
    for line in changed[:20]:
        print("changed:", line[:300], file=sys.stderr)
    rates = _throughput("\n".join(lines))
    chance, left = random.Random(13), 0
    for number in range(_PLANTED):
        secret, text = draw(chance, list(KINDS)[number % len(KINDS)])
        left += in_text(redact(f"{chance.choice(lines)}\n{chance.choice(lines)} {text}\n"), secret)
    rows = [
        record.emit("redaction of real logs", rates, unit="MB/s"),
        record.emit("ordinary lines changed", [len(changed)], unit="lines", of=len(lines)),
        record.emit("planted secrets left", [left], unit="secrets", of=_PLANTED, kinds=len(KINDS)),
    ]
    record.write("redaction", rows)


if __name__ == "__main__":
    main()
