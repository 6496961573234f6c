"""Program for the run's interpreter: prints the lengths of the rows of local data, a trial of its chats, or first rows.

Stops when the time in its input is over. Needs `tokenizers` to count tokens, `pyarrow` for .parquet files, and the
bundled trainer for files of tokens and for chats.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

CHUNK_BYTES = 1 << 20
BATCH_ROWS = 256
LOOK_BYTES = 8 << 20  # of the first rows that are printed
TRIAL_BYTES = 2**33  # of memory for a trial of chats; the libraries reserve a part of it for each core
FIRST_FILES, FIRST_ROWS = 8, 5  # of each source, which are read however long it takes
UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError)


def main() -> None:
    request = json.load(sys.stdin)
    if "look_at" in request:
        resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))  # a small file may unpack to any size
        print(json.dumps(look(request["look_at"], request["rows"])))  # noqa: T201
        return
    share_s = request["budget_s"] / max(1, len(request["sources"]))
    if request["chats_with"]:
        resource.setrlimit(resource.RLIMIT_AS, (TRIAL_BYTES, TRIAL_BYTES))  # a chat template is untrusted code
        print(json.dumps([try_chats(source, request["chats_with"], share_s) for source in request["sources"]]))  # noqa: T201
        return
    tokenizer, problem = load(request["tokenizer"])
    print(json.dumps([measure(source, tokenizer, problem, share_s) for source in request["sources"]]))  # noqa: T201


def load(path: str) -> tuple[Any, str]:
    """(tokenizer or None, reason for None)."""
    if not path:
        return None, ""
    try:
        return importlib.import_module("tokenizers").Tokenizer.from_file(path), ""
    except ImportError:
        return None, "this interpreter has no tokenizers"
    except Exception as error:  # the library raises a bare Exception for an unreadable file
        return None, f"{path}: {error}"


def measure(source: dict[str, Any], tokenizer: Any, problem: str, share_s: float) -> dict[str, Any]:
    """The lengths of one source. A third of its time is for reading records, for counting rows, for counting tokens."""
    if source["has_tokens"]:
        return {"broken": next(filter(None, map(header_fault, source["files"][:FIRST_FILES])), "")}
    broken = find_fault(source, time.monotonic() + share_s / 3)
    try:
        rows = count(source["files"], time.monotonic() + share_s / 3)
        lengths: list[int] = []
        if tokenizer is not None:
            lengths = token_counts(source, tokenizer, time.monotonic() + share_s / 3)
    except ImportError as error:
        return {"problem": f"this interpreter has no {error.name}", "broken": broken}
    except UNREADABLE as error:
        return {"problem": f"{type(error).__name__}: {error}", "broken": broken}
    return {
        "rows": rows,
        "measured_rows": len(lengths),
        "longest_tokens": max(lengths) if lengths else None,
        "mean_tokens": sum(lengths) / len(lengths) if lengths else None,
        "problem": problem,
        "broken": broken,
    }


# --- the first records ---------------------------------------------------------------------------


def look(path: str, most: int) -> dict[str, Any]:
    """The first rows of a file, each as JSON without what JSON cannot hold; or why there are none."""
    found: list[str] = []
    try:
        for row in islice(rows(path), most):
            found.append(json.dumps(row, default=lambda _: None))  # bytes of a picture, a date
            if sum(map(len, found)) > LOOK_BYTES:
                break
    except ImportError as error:
        return {"lacks": error.name}
    except Exception as error:  # pyarrow has an exception of its own for each kind of damage
        return {"fault": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    return {"rows": found}


def find_fault(source: dict[str, Any], until_s: float) -> str:
    """The first fault in the records of a source, "" for none.

    FIRST_ROWS of FIRST_FILES are read in any case, and more until the time is over.
    """
    needed = source["columns"] if source["needs_column"] else []
    for number, path in enumerate(source["files"]):
        if number >= FIRST_FILES and time.monotonic() > until_s:
            break
        if fault := first_fault(path, needed, until_s):
            return fault
    return ""


def first_fault(path: str, needed: list[str], until_s: float) -> str:
    """What is wrong with the first rows of a file; "" for nothing, and if this interpreter cannot read the format.

    Each row must have one of the columns in `needed`, if there are any.
    """
    row: Any = None
    number = 0
    try:
        for number, row in enumerate(rows(path), start=1):
            if not isinstance(row, dict):
                return f"{path}: record {number} is no object"
            if needed and not any(isinstance(row.get(column), (str, list)) for column in needed):
                columns, had = " or ".join(map(repr, needed)), ", ".join(map(repr, row))[:200]
                return f"{path}: record {number} has no text in {columns}; it has {had}"
            if number >= FIRST_ROWS and time.monotonic() > until_s:
                break
    except ImportError:
        return ""
    except UNREADABLE as error:
        return f"{path}: record {number + 1} cannot be read: {error}"
    except Exception as error:  # pyarrow has an exception of its own for each kind of damage
        return f"{path}: {type(error).__name__}: {error}"
    return ""


def header_fault(path: str) -> str:
    """What is wrong with the header or the size of a file of tokens; "" for nothing, and without the trainer."""
    try:
        read_header = importlib.import_module("prime_train.trainer.data.token_header").read_header
        refused = importlib.import_module("prime_train.core.errors").UserError
    except ImportError:
        return ""
    try:
        read_header(Path(path))
    except refused as error:
        return f"{path}: {error.what}"
    return ""


# --- chats ---------------------------------------------------------------------------------------


def try_chats(source: dict[str, Any], folder: str, share_s: float) -> dict[str, Any]:
    """The first chat that the trainer would refuse, with the tokenizer of a folder; see its chat_trial.py."""
    trial = importlib.import_module("prime_train.trainer.chats.chat_tokenizer")
    found_rows = PlacedRows(source["files"])
    contexts, refusal = trial.try_chats(folder, source["columns"][0], found_rows, time.monotonic() + share_s)
    found: dict[str, Any] = {"chats": len(contexts), **refusal}
    if source["split"] and found_rows.is_over and not refusal:
        found |= {"is_whole": True, **trial.count_learned(contexts, *source["split"])}
    return found


class PlacedRows:
    """(place, row) of every row, up to one that cannot be read: `find_fault` reports it. `is_over`: all were read."""

    def __init__(self, files: list[str]) -> None:
        self._files = files
        self.is_over = False

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        for path in self._files:
            try:
                for number, row in enumerate(rows(path), start=1):
                    yield f"{path}: record {number}", row
            except (ImportError, *UNREADABLE):
                return
        self.is_over = True


# --- rows ----------------------------------------------------------------------------------------


def count(files: list[str], until_s: float) -> int | None:
    """The rows of all files; None if the time is not enough."""
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
        # The trainer refuses a .txt file in another encoding.
        with open(path, encoding="utf-8", errors="strict" if path.endswith(".txt") else "replace") as file:
            yield {"text": file.read()}


# --- tokens --------------------------------------------------------------------------------------


def token_counts(source: dict[str, Any], tokenizer: Any, until_s: float) -> list[int]:
    """The tokens of each row, for as many rows as the time allows."""
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
    """The text in the first column that the row has; the turns of a conversation are joined."""
    if not isinstance(row, dict):
        return None
    for column in columns:
        value = row.get(column)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(turn, dict) for turn in value):
            return "\n".join(turn["content"] for turn in value if isinstance(turn.get("content"), str))
    return None


if __name__ == "__main__":
    sys.path.pop(0)  # this folder: a module in it must not stand in for a package
    main()
