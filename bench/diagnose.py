"""Measures how fast `diagnose` reads a healthy log of 100 MB, compared with `grep -E` and the same patterns, on one
core; and how many lines per second it reads if every line matches.

Two healthy logs: the usual output of a server and a trainer, whose lines differ only in numbers; and one whose lines
are all different (samples of text), so no line can be remembered. Neither may give a finding. CPU time is measured, so
a busy machine has little effect. grep gets the patterns that its syntax can express. Three floods of errors: one error
with changing numbers, one traceback, and errors with different words. The last is also read like a log on which the
supervisor is behind: in pieces of 128 KiB, with 100 lines matched exactly in each.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import resource
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import record

from prime_train.diagnose.cause import judge
from prime_train.diagnose.log_scanner import Scanner
from prime_train.diagnose.signatures import catalogue

_CHUNK_BYTES = 1024 * 1024
_PIECE_BYTES, _HURRIED_LOOKS = 128 * 1024, 100  # as supervise/services/log_follower.py
_FLOOD_LINES = 200_000
_WORDS = (
    "the", "model", "answers", "with", "sum", "of", "two", "numbers", "and", "then", "thinks", "again", "about", "what",
    "question", "asks", "while", "tokens", "are", "drawn", "one", "after", "another", "until", "end", "text", "is",
)  # fmt: skip


def _usual(draw: random.Random) -> Iterator[str]:
    step = 0
    while True:
        step += 1
        clock = f"{step // 3600 % 24:02}:{step // 60 % 60:02}:{step % 60:02}"
        yield (
            f"(APIServer pid=31247) INFO 11-21 {clock} [loggers.py:257] Engine 000: Avg prompt throughput: "
            f"{draw.uniform(1, 9000):.1f} tokens/s, Avg generation throughput: {draw.uniform(1, 9000):.1f} tokens/s, "
            f"Running: {draw.randrange(256)} reqs, Waiting: {draw.randrange(9)} reqs, GPU KV cache usage: 41.2%"
        )
        for _ in range(6):
            yield f'INFO:     127.0.0.1:{draw.randrange(2**16)} - "POST /v1/chat/completions HTTP/1.1" 200 OK'
        yield (
            f"\x1b[32m{clock}\x1b[0m \x1b[1m   INFO\x1b[0m Step {step} | Time: {draw.uniform(1, 9):.2f}s | "
            f"Loss: {draw.uniform(1, 9):.4f} | Entropy: {draw.random():.4f} | Grad. Norm: {draw.random():.3e} | "
            f"LR: 1.0e-06 | Throughput: {draw.randrange(90000)} tokens/s | MFU: {draw.uniform(20, 50):.1f}%"
        )
        yield f"rank {step % 8} error_rate: 0.0 failed rollouts: 0 of {draw.randrange(512)}"


def _unlike(draw: random.Random) -> Iterator[str]:
    while True:
        words = " ".join(draw.choices(_WORDS, k=18))
        yield f"DEBUG 11-21 07:40:38 [samples.py:12] cmpl-{draw.getrandbits(64):016x} answered: {words}"


def _same(draw: random.Random) -> Iterator[str]:
    while True:
        yield (
            f"2026-11-21 10:{draw.randrange(60):02}:{draw.randrange(60):02} ERROR torch.OutOfMemoryError: CUDA out of "
            f"memory. Tried to allocate {draw.uniform(1, 9):.2f} GiB. GPU {draw.randrange(8)}"
        )


def _tracebacks(draw: random.Random) -> Iterator[str]:
    while True:
        yield "Traceback (most recent call last):"
        yield f'  File "/src/env.py", line {draw.randrange(50)}, in score'
        yield "    answer = client.get(url)"
        yield '  File "/usr/lib/python3.11/site-packages/requests/api.py", line 73, in get'
        yield '    return request("get", url)'
        yield "ConnectionRefusedError: [Errno 111] Connection refused"


def _unlike_errors(draw: random.Random) -> Iterator[str]:
    while True:
        yield f"ERROR {' '.join(draw.choices(_WORDS, k=8))}: connection refused"


def _flooded(lines: Iterator[str], count: int, most_scans: int | None) -> float:
    """CPU seconds for `count` lines."""
    data = "\n".join(next(lines) for _ in range(count)).encode() + b"\n"
    scanner = Scanner("flood.log")
    begun = time.process_time()
    for start in range(0, len(data), _PIECE_BYTES):
        scanner.feed(data[start : start + _PIECE_BYTES], most_scans)
    scanner.finish()
    return time.process_time() - begun


def _write(path: Path, lines: Iterator[str], size: int) -> None:
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write("\n".join(next(lines) for _ in range(2000)) + "\n")


def _diagnose(path: Path) -> float:
    begun = time.process_time()
    scanner = Scanner(path.name, path.stat().st_mtime)
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            scanner.feed(chunk)
    found = judge([scanner.finish()])
    if found.cause is not None:
        raise SystemExit(f"a healthy log gave a finding: {found.cause}")
    return time.process_time() - begun


def _patterns(folder: Path) -> tuple[Path, int]:
    """The patterns as extended regular expressions, one per line; only those that match their own example in grep."""
    patterns = [(_extended(signature.pattern), signature.example) for signature in catalogue().signatures]
    kept = [pattern for pattern, example in patterns if pattern and _finds(pattern, example)]
    path = folder / "patterns"
    path.write_text("\n".join(kept) + "\n", encoding="utf-8")
    return path, len(kept)


def _extended(pattern: str) -> str:
    """The pattern in grep's syntax; empty if it cannot be expressed (look-ahead and look-behind)."""
    plain = re.sub(r"\(\?P<\w+>|\(\?:", "(", pattern)
    if "(?" in plain:
        return ""
    plain = re.sub(r"\[(?:\\.|[^\]\\])*\]", _in_brackets, plain)
    return re.sub(r"(\{\d+,\d+\}|[*+?])\?", r"\1", plain.replace("\\d", "[0-9]"))


def _in_brackets(found: re.Match[str]) -> str:
    return found[0].replace("\\d", "0-9").replace("\\w", "A-Za-z0-9_").replace("\\s", " ").replace("\\]", "]")


def _finds(pattern: str, text: str) -> bool:
    grep = ["grep", "-E", "-i", "-c", "-e", pattern]
    return subprocess.run(grep, input=text, text=True, capture_output=True, check=False).returncode == 0


def _grep(path: Path, patterns: Path) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["grep", "-E", "-i", "-c", "-f", str(patterns), str(path)]
    subprocess.run(command, capture_output=True, check=False, env={**os.environ, "LC_ALL": "C"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write bench/results/diagnose.json")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        patterns, count = _patterns(Path(folder))
        for name, lines in (("usual", _usual(random.Random(1))), ("unlike", _unlike(random.Random(1)))):
            path = Path(folder, f"{name}.log")
            _write(path, lines, options.megabytes * 10**6)
            size = {"megabytes": options.megabytes, "signatures": len(catalogue().signatures)}
            rows.append(record.emit(f"diagnose_{name}", [_diagnose(path) for _ in range(options.samples)], **size))
            if shutil.which("grep"):
                rows.append(
                    record.emit(f"grep_{name}", [_grep(path, patterns)], megabytes=options.megabytes, patterns=count)
                )
    floods = (("same", _same, None), ("tracebacks", _tracebacks, None), ("unlike", _unlike_errors, _HURRIED_LOOKS))
    for name, flood, most_scans in floods:
        samples = [_flooded(flood(random.Random(1)), _FLOOD_LINES, most_scans) for _ in range(options.samples)]
        rows.append(record.emit(f"diagnose_flood_{name}", samples, lines=_FLOOD_LINES))
    if options.write:
        record.write("diagnose", rows)


if __name__ == "__main__":
    main()
