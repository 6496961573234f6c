"""Measures packing, compared with TRL's pack_dataset and concatenate-and-chunk, on documents of lognormal length.

Every token has a unique number, so one function can find in the rows of any packer which tokens it dropped and which
documents it cut. The packers take turns, so a slow moment of the machine affects all of them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version

import datasets
import numpy as np
import pyarrow as pa
import record
from numpy.typing import NDArray
from trl.data_utils import pack_dataset

from prime_train.trainer.data.packing import fill, pack

PADDING = -1
Integers = NDArray[np.int64]
Numbers = NDArray[np.int32]


@dataclass(frozen=True)
class Packed:
    """The rows of a packer: the tokens of all rows, without padding, and the number of tokens in each row."""

    tokens: Numbers
    row_lengths: Integers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=50_000)
    parser.add_argument("--ctx-tokens", type=int, default=2048)
    parser.add_argument("--buffer-docs", type=int, default=8192)
    parser.add_argument("--samples", type=int, default=3)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    lengths = document_lengths(options.documents)
    tokens = np.arange(int(lengths.sum()), dtype=np.int32)
    table = as_dataset(tokens, lengths)
    split = partial(pack_with_trl, table, options.ctx_tokens, "bfd_split")
    trl = f"TRL {version('trl')} pack_dataset"
    packers: dict[str, Callable[[], Callable[[], Packed]]] = {
        f"prime-train, buffers of {options.buffer_docs}": partial(
            pack_here, tokens, lengths, options.ctx_tokens, options.buffer_docs
        ),
        f"{trl} bfd": partial(pack_with_trl, table, options.ctx_tokens, "bfd", 1000),
        f"{trl} bfd_split": partial(split, 1000),
        f"{trl} bfd_split, batches of {options.buffer_docs}": partial(split, options.buffer_docs),
        f"{trl} wrapped": partial(pack_with_trl, table, options.ctx_tokens, "wrapped", 1000),
        "concatenate and chunk, ideal": partial(chunk, tokens, options.ctx_tokens),
    }
    corpus = {"documents": len(lengths), "tokens": len(tokens), "ctx_tokens": options.ctx_tokens}
    quality: dict[str, dict[str, float]] = {}
    samples: dict[str, list[float]] = {what: [] for what in packers}
    for number in range(options.samples + 1):  # the first round is not counted, because it touches memory first
        for what, packer in packers.items():
            began_s = time.perf_counter()
            made = packer()
            if number > 0:
                samples[what].append(time.perf_counter() - began_s)
            else:
                quality[what] = judge(made(), lengths, options.ctx_tokens)
    rows = [
        record.emit(what, samples[what], **quality[what], **rate(samples[what], len(lengths)), **corpus)
        for what in packers
    ]
    core = [core_s(lengths, options.ctx_tokens, len(lengths)) for _ in range(5 * options.samples)]
    buffered = [core_s(lengths, options.ctx_tokens, options.buffer_docs) for _ in range(5 * options.samples)]
    rows += [
        record.emit("prime-train pack() alone, one pool", core, **rate(core, len(lengths)), **corpus),
        record.emit(
            f"prime-train pack() alone, buffers of {options.buffer_docs}",
            buffered,
            **rate(buffered, len(lengths)),
            **corpus,
        ),
    ]
    record.write("packing", rows)


def document_lengths(count: int) -> Integers:
    """Tokens of each document: lognormal, mean about 900, one in ten longer than 2048."""
    drawn = np.random.default_rng(0).lognormal(6.2, 1.1, count)
    return np.clip(drawn, 8, 60_000).astype(np.int64)


def as_dataset(tokens: Numbers, lengths: Integers) -> datasets.Dataset:
    ends = np.concatenate([[0], np.cumsum(lengths)])
    return datasets.Dataset(pa.table({"input_ids": pa.LargeListArray.from_arrays(ends, tokens)}))


def pack_here(tokens: Numbers, lengths: Integers, ctx_tokens: int, buffer_docs: int) -> Callable[[], Packed]:
    """Builds rows with padding, one buffer at a time, like the trainer."""
    rows = []
    ends = np.concatenate([[0], np.cumsum(lengths)])
    for start in range(0, len(lengths), buffer_docs):
        mine = lengths[start : start + buffer_docs]
        flow = tokens[ends[start] : ends[start + len(mine)]]
        rows.append(fill(pack(mine, ctx_tokens), flow, mine, ctx_tokens, PADDING).tokens)

    def made() -> Packed:
        flat = np.concatenate(rows)
        used = flat != PADDING
        return Packed(flat[used].astype(np.int32), used.sum(axis=1))

    return made


def pack_with_trl(table: datasets.Dataset, ctx_tokens: int, strategy: str, batch: int) -> Callable[[], Packed]:
    packed = pack_dataset(table, ctx_tokens, strategy, {"batch_size": batch, "load_from_cache_file": False})

    def made() -> Packed:
        chunks = packed.data.column("input_ids").chunks
        return Packed(
            np.concatenate([chunk.flatten().to_numpy() for chunk in chunks]),
            np.concatenate([chunk.value_lengths().to_numpy() for chunk in chunks]).astype(np.int64),
        )

    return made


def chunk(tokens: Numbers, ctx_tokens: int) -> Callable[[], Packed]:
    """Only the last row has padding."""
    copied = tokens.copy()
    rows, rest = divmod(len(tokens), ctx_tokens)
    return lambda: Packed(copied, np.asarray([ctx_tokens] * rows + [rest] * (rest > 0)))


def judge(packed: Packed, lengths: Integers, ctx_tokens: int) -> dict[str, float]:
    """Percent of dropped tokens, padded positions, and documents that were cut although they fit in a sequence."""
    row_of = np.full(int(lengths.sum()), -1, dtype=np.int64)
    row_of[packed.tokens] = np.repeat(np.arange(len(packed.row_lengths)), packed.row_lengths)
    begins = np.cumsum(lengths) - lengths
    first, last = np.minimum.reduceat(row_of, begins), np.maximum.reduceat(row_of, begins)
    short = lengths <= ctx_tokens
    positions = len(packed.row_lengths) * ctx_tokens
    return {
        "tokens_dropped_percent": round(100 * float((row_of < 0).mean()), 4),
        "padding_percent": round(100 * (1 - len(packed.tokens) / positions), 4),
        "short_documents_cut_percent": round(100 * float((first != last)[short].mean()), 4),
        "rows": len(packed.row_lengths),
    }


def core_s(lengths: Integers, ctx_tokens: int, buffer_docs: int) -> float:
    """Seconds from lengths to bins, without moving tokens."""
    began_s = time.perf_counter()
    for start in range(0, len(lengths), buffer_docs):
        pack(lengths[start : start + buffer_docs], ctx_tokens)
    return time.perf_counter() - began_s


def rate(samples: list[float], documents: int) -> dict[str, int]:
    return {"documents_per_s": round(documents / record.percentile(samples, 0.5))}


if __name__ == "__main__":
    main()
