"""Run as a program by the interpreter that a run will use: prints how long the rows of local data are, as JSON.

Reads for as long as it is told to and no longer. Needs `tokenizers` where tokens are to be counted, and `pyarrow`
for .parquet files; the standard library else.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
BATCH_ROWS = 256
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def main() -> None:
    asked = json.load(sys.stdin)
    tokenizer, problem = load(asked["tokenizer"])
    share_s = asked["budget_s"] / max(1, len(asked["sources"]))
    print(json.dumps([measured(source, tokenizer, problem, share_s) for source in asked["sources"]]))  # noqa: T201


def load(path: str) -> tuple[Any, str]:
    """(tokenizer or None, why there is none)."""
    if not path:
        return None, ""
    try:
        return importlib.import_module("tokenizers").Tokenizer.from_file(path), ""
    except ImportError:
        return None, "this interpreter has no tokenizers"
    except Exception as error:  # the library raises Exception itself for a file that it cannot read
        return None, f"{path}: {error}"


def measured(source: dict[str, Any], tokenizer: Any, problem: str, share_s: float) -> dict[str, Any]:
    """The lengths of one source: half of its time goes into counting rows, the rest into tokens."""
    began_s = time.monotonic()
    try:
        rows = count(source["files"], began_s + share_s / 2)
        lengths: list[int] = []
        if tokenizer is not None:
            lengths = token_counts(source, tokenizer, time.monotonic() + share_s / 2)
    except ImportError as error:
        return {"problem": f"this interpreter has no {error.name}"}
    except UNREADABLE as error:
        return {"problem": f"{type(error).__name__}: {error}"}
    return {
        "rows": rows,
        "measured_rows": len(lengths),
        "longest_tokens": max(lengths) if lengths else None,
        "mean_tokens": sum(lengths) / len(lengths) if lengths else None,
        "problem": problem,
    }


# --- rows ----------------------------------------------------------------------------------------


def count(files: list[str], until_s: float) -> int | None:
    """The rows of all files; None where the time does not suffice."""
    total = 0
    for path in files:
        if time.monotonic() > until_s:
            return None
        if path.endswith(".parquet"):
            total += importlib.import_module("pyarrow.parquet").ParquetFile(path).metadata.num_rows
        elif path.endswith(".jsonl"):
            lines = count_lines(path, until_s)
            if lines is None:
                return None
            total += lines
        else:
            total += 1  # a text file is one document
    return total


def count_lines(path: str, until_s: float) -> int | None:
    lines, last = 0, b"\n"
    with open(path, "rb") as file:
        while True:
            chunk = file.read(CHUNK_BYTES)
            if not chunk:
                return lines + (last != b"\n")
            lines += chunk.count(b"\n")
            last = chunk[-1:]
            if time.monotonic() > until_s:
                return None


def rows(path: str) -> Iterator[Any]:
    """The rows of a file as objects; a text file is one row."""
    if path.endswith(".parquet"):
        parquet = importlib.import_module("pyarrow.parquet").ParquetFile(path)
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS):
            yield from batch.to_pylist()
    elif path.endswith(".jsonl"):
        with open(path, encoding="utf-8") as file:
            for line in file:
                if line.strip():
                    yield json.loads(line)
    elif Path(path).stat().st_size <= 16 * CHUNK_BYTES:
        with open(path, encoding="utf-8", errors="replace") as file:
            yield {"text": file.read()}


# --- tokens --------------------------------------------------------------------------------------


def token_counts(source: dict[str, Any], tokenizer: Any, until_s: float) -> list[int]:
    """Tokens of each row, of as many rows as there is time for."""
    lengths: list[int] = []
    texts: list[str] = []
    for path in source["files"]:
        for row in rows(path):
            text = text_of(row, source["columns"])
            if text is not None:
                texts.append(text)
            if len(texts) >= BATCH_ROWS:
                lengths += [len(item.ids) for item in tokenizer.encode_batch(texts)]
                texts = []
            if time.monotonic() > until_s:
                break
        if time.monotonic() > until_s:
            break
    return lengths + [len(item.ids) for item in tokenizer.encode_batch(texts[:BATCH_ROWS])]


def text_of(row: Any, columns: list[str]) -> str | None:
    """The text in the first of the columns that a row has; the turns of a conversation one after another."""
    if not isinstance(row, dict):
        return None
    for column in columns:
        value = row.get(column)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
            said = [turn["content"] for turn in value if isinstance(turn.get("content"), str)]
            return "\n".join(said)
    return None


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    main()
