"""The numbers in README.md, CHANGELOG.md and docs/ that count something: what they must be, from the code and the data.

`docs/generate.py` writes the counts and checks the figures of tables against bench/results/. A number of something
countable that no pattern covers is reported, so that a page cannot count without a source.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from prime_train.config.prime_rl.schema import shipped_generations
from prime_train.diagnose.signatures import catalogue
from prime_train.registry import gpus
from prime_train.registry.known import known_environments
from prime_train.registry.models import tested_models
from prime_train.rules.families import load_all

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_NUMBER = rf"(?P<number>\d[\d,]*|{'|'.join(_WORDS)})"


class Count(NamedTuple):
    """A number in a text: `pattern` has one group `number`, `count` returns what it must be."""

    pattern: re.Pattern[str]
    count: Callable[[re.Match[str]], int]


class Wrong(NamedTuple):
    """`where` is PAGE:LINE."""

    where: str
    what: str


def _count(pattern: str, count: Callable[[], int]) -> Count:
    return Count(re.compile(pattern.replace("N", _NUMBER, 1)), lambda _: count())


@cache
def _result_rows(name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return rows


def _gpus_with_preset() -> int:
    """GPUs with a preset for pretraining: those whose preset has the name of a GPU, so there is an RL one beside it."""
    return sum(f"rl-{name}" in gpus.presets() and "quickstart" not in name for name in gpus.presets())


def _csv_rows(match: re.Match[str]) -> int:
    with open(ROOT / match["path"], encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.DictReader(file))


COUNTS = (
    _count(r"\bN rules with examples", lambda: len(load_all())),
    _count(r"\bN signatures\b", lambda: len(catalogue().signatures)),
    _count(r"\bN tested models\b", lambda: len(tested_models())),
    _count(r"\bN environments of other projects\b", lambda: len(known_environments())),
    _count(r"\bN faults(?: in real processes|, each caused)", lambda: len(_result_rows("drills"))),
    _count(r"\b[Pp]resets for N GPUs\b", _gpus_with_preset),
    _count(r"\bcomplete files for N kinds of GPU\b", _gpus_with_preset),
    _count(r"\bconfigs of N generations\b", lambda: len(shipped_generations())),
    Count(re.compile(rf"\b{_NUMBER} rows of `(?P<path>[\w/]+\.csv)`"), _csv_rows),
)
# Nouns that the project can count.
_COUNTABLE = re.compile(
    r"(?<![\w.])(?:\d[\d,]*|" + "|".join(_WORDS[2:]) + r")\s+(?:[a-z-]+\s){0,2}?"
    r"(?:rules|signatures|drills|environments|presets|generations|tested models|faults)\b"
)


def pages() -> tuple[Path, ...]:
    """The pages whose numbers are checked. The others are generated as a whole."""
    generated = ("rules.md", "config.md", "drills.md")
    docs = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in generated)
    return (ROOT / "README.md", ROOT / "CHANGELOG.md", *docs)


def corrected(text: str) -> str:
    """The text with every count as the code and the data have it."""
    for pattern, count in COUNTS:
        text = pattern.sub(lambda match, count=count: _with_number(match, count(match)), text)  # type: ignore[misc]
    return text


def _with_number(match: re.Match[str], number: int) -> str:
    written = match["number"]
    if _value(written) == number:
        return match[0]
    word = written in _WORDS and number < len(_WORDS)
    start, end = match.start("number") - match.start(), match.end("number") - match.start()
    return match[0][:start] + (_WORDS[number] if word else str(number)) + match[0][end:]


def _value(written: str) -> int:
    return _WORDS.index(written) if written in _WORDS else int(written.replace(",", ""))


def uncounted(text: str) -> Iterator[tuple[int, str]]:
    """(line number, phrase) of each count without a source."""
    covered = [match.span() for pattern, _ in COUNTS for match in pattern.finditer(text)]
    for match in _COUNTABLE.finditer(text):
        if not any(start <= match.start() < end for start, end in covered):
            yield text.count("\n", 0, match.start()) + 1, match[0]


class Table(NamedTuple):
    """A table of a page whose cells come from a file of bench/results.

    `labels` maps the label of a line to the part of a row that identifies it; `columns` maps the heading of a column
    to (another part of the row's identity, the key of the figure). A column or line without an entry is not checked.
    """

    page: str
    heading: str
    result: str
    labels: Mapping[str, Mapping[str, str]]
    columns: Mapping[str, tuple[Mapping[str, str], str]]


def _memory(by: str, key: str) -> tuple[Mapping[str, str], str]:
    return {"by": by}, key


def _speed(kind: str, key: str) -> tuple[Mapping[str, str], str]:
    return {"what": kind}, key


_PROGRAMS = {
    **{name: name for name in ("prime-rl", "peft", "litgpt", "ms-swift", "torchtitan", "torchtune", "all")},
    "ms-swift before 2024-08": "ms-swift-2024",
    "transformers' Trainer": "hf",
    "Qwen finetune.py": "qwen-finetune",
}
_FILES = {name: name for name in ("axolotl", "ms-swift", "torchtitan", "torchtune")} | {
    "every file": "all",
    "no fit ever had": "unseen",
    "figures in guides, which no fit had either": "guides",
    "TRL": "trl",
    "scripts on the Trainer": "hf",
}
TABLES = (
    Table(
        "docs/estimate.md",
        "| rows | n | fitted: mean |",
        "estimate_memory",
        {name: {"group": group} for name, group in _PROGRAMS.items()},
        {
            "n": _memory("prime-train", "n"),
            "fitted: mean": _memory("prime-train", "mean"),
            "left out: mean": _memory("prime-train, table left out", "mean"),
            "median": _memory("prime-train, table left out", "median"),
            "within 10 %": _memory("prime-train, table left out", "within_10_percent"),
            "above": _memory("prime-train, table left out", "bound_above"),
            "inside": _memory("prime-train, table left out", "inside"),
            "refused": _memory("prime-train, table left out", "refused"),
        },
    ),
    Table(
        "docs/estimate.md",
        "| files of | n | mean |",
        "estimate_foreign",
        {name: {"group": group} for name, group in _FILES.items()},
        {
            "n": _memory("prime-train", "n"),
            "mean": _memory("prime-train", "mean"),
            "median": _memory("prime-train", "median"),
            "within 10 %": _memory("prime-train", "within_10_percent"),
            "above": _memory("prime-train", "bound_above"),
            "refused": _memory("prime-train", "refused"),
            "accelerate": _memory("accelerate estimate-memory 1.15.0", "mean"),
            "DeepSpeed": _memory("DeepSpeed estimate_zero3 (its formula)", "mean"),
            "README": _memory("LLaMA-Factory README, Hardware Requirement", "mean"),
        },
    ),
    Table(
        "docs/throughput.md",
        "| rows | n | held out: mean |",
        "estimate_throughput",
        {
            "llm-foundry, dense bf16": {"what": "llm-foundry, dense: "},
            "llm-foundry, fp8": {"what": "llm-foundry, fp8: "},
            "prime-rl": {"what": "prime-rl: "},
            "torchtune: no basis, a roofline": {"what": "torchtune: "},
            "torchtitan": {"what": "torchtitan: "},
            "llm.c, GPT-2 124M: published costs": {"what": "llm.c: "},
            "nanochat, d24: published costs": {"what": "nanochat: "},
        },
        {
            "n": _speed("held out", "n"),
            "held out: mean": _speed("held out", "mean"),
            "median": _speed("held out", "median"),
            "in the interval": _speed("held out", "covered"),
            "shipped rates: mean": _speed("shipped", "mean"),
            "constant MFU, held out": _speed("constant mfu", "mean"),
            "40 % MFU": _speed("naive mfu", "mean"),
        },
    ),
)


def wrong_figures(table: Table, text: str) -> Iterator[Wrong]:
    """The cells of a table that differ from their result, at the precision of the cell."""
    lines = text.splitlines()
    head = next((number for number, line in enumerate(lines) if line.startswith(table.heading)), None)
    if head is None:
        yield Wrong(f"{table.page}:1", f"no table begins with {table.heading}")
        return
    columns = _cells(lines[head])
    for number, line in enumerate(lines[head + 2 :], head + 3):
        if not line.startswith("|"):
            return
        cells = _cells(line)
        for column, cell in zip(columns, cells, strict=False):
            expected = _figure(table, cells[0], column)
            if expected is not None and cell != "" and not _agrees(cell, expected):
                yield Wrong(f"{table.page}:{number}", f"{cells[0]}, {column}: {cell}, the result has {expected}")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _figure(table: Table, label: str, column: str) -> float | None:
    if label not in table.labels or column not in table.columns:
        return None
    part, key = table.columns[column]
    wanted = dict(table.labels[label])
    for name, value in part.items():
        wanted[name] = wanted.get(name, "") + value
    row = next(row for row in _result_rows(table.result) if all(row.get(n) == v for n, v in wanted.items()))
    return row.get(key)


def _agrees(cell: str, figure: float) -> bool:
    """Whether the cell is the figure, rounded to the digits that it shows; half a digit may go either way."""
    written = cell.removesuffix("%").strip()
    digits = len(written.partition(".")[2])
    scaled = figure * 100 if cell.endswith("%") else figure
    return abs(float(written) - scaled) <= 0.5 * 10.0**-digits + 1e-6 + (0.005 if cell.endswith("%") else 0)


def wrong() -> list[Wrong]:
    """Every wrong number, every count without a source and every figure that differs from its result."""
    found = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(ROOT).as_posix()
        fixed = corrected(text).splitlines()
        for number, (line, right) in enumerate(zip(text.splitlines(), fixed, strict=True), 1):
            if line != right:
                found.append(Wrong(f"{name}:{number}", f"{line.strip()[:80]} -> {right.strip()[:80]}"))
        found += [Wrong(f"{name}:{number}", f"{phrase}: no source") for number, phrase in uncounted(text)]
    for table in TABLES:
        found += wrong_figures(table, (ROOT / table.page).read_text(encoding="utf-8"))
    return found
