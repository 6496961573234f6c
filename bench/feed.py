"""Measures the feed of a trainer: shares of 8 ranks, a killed tokenising, the first step of 100 files, memory, workers,
and the micro-batches of rollouts.

Each part runs in processes of its own, over text of random words and a tokenizer trained on it. `--only` chooses parts.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import record

from prime_train import spec
from prime_train.spec import RunSpec
from prime_train.spec.rl import Rl
from prime_train.trainer.data import corpus, tokenised, worker_count
from prime_train.trainer.data.progress import SourceProgress
from prime_train.trainer.data.stream import TrainStream, held_out_batches, prepare
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.rl.batch import share_prompts, share_rows, to_policy_batch
from prime_train.trainer.rl.rollouts.groups import Group, select_samples
from prime_train.trainer.rl.rollouts.rollout import Rollout
from prime_train.trainer.tokenizer import LoadedTokenizer

FORK = multiprocessing.get_context("fork")
SLOW_TOKENS_PER_S = 50_000
STEP_S = 0.2
LETTERS = "aeioulnrst"
VOCAB_SIZE = 151_936  # of the rollouts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--jsonl-mib", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--folder", type=Path, help="where text and cache are written; unset = a temporary folder")
    parser.add_argument("--memory-of", type=Path, help=argparse.SUPPRESS)  # a run in a process of its own
    parser.add_argument("--tokenise", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of or options.tokenise:
        run = spec.from_json((options.memory_of or options.tokenise).read_text(encoding="utf-8"))
        print(json.dumps(train_in_jsonl(run) if options.memory_of else tokenise_counted(run)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        os.environ["PRIME_TRAIN_CACHE"] = str(Path(folder, "cache"))
        rows = [row for name in options.only for row in PARTS[name](Path(folder), options)]
    measured = {row["what"] for row in rows}
    results = record.HERE / "results" / "feed.json"
    before = json.loads(results.read_text(encoding="utf-8")) if results.exists() else []
    record.write("feed", [row for row in before if row["what"] not in measured] + rows)


@cache
def lexicon() -> list[str]:
    """5,000 words of a small alphabet."""
    draw = random.Random(0)
    return ["".join(draw.choices(LETTERS, k=draw.randint(2, 8))) for _ in range(5000)]


def words(seed: int, count: int) -> str:
    """Random words."""
    return " ".join(random.Random(seed).choices(lexicon(), k=count))


def write_lines(file: Path, texts: Iterator[str]) -> Path:
    with open(file, "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": text}) + "\n" for text in texts)
    return file


def make_run(path: Path, **data: Any) -> RunSpec:
    settings = spec.Data(sources=(spec.Source(kind="files", path=str(path)),), ctx_tokens=512, loader_workers=0)
    return RunSpec(
        run=spec.Run(name="feed", max_steps=10_000, seed=7),
        data=replace(settings, **data),
        tokenizer=spec.Tokenizer(vocab_size=1024),
        batch=spec.Batch(micro_batch=4),
    )


def documents_made() -> int:
    """Documents in the caches of all sources."""
    files = Path(os.environ["PRIME_TRAIN_CACHE"]).glob("tokens/*/made")
    return sum(SourceProgress(file.parent, "", 0, "").total().documents for file in files)


def measure_shares(folder: Path, _: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """8 ranks that train in step on one source: what each tokenises, by what it trains on."""
    corpus.WHOLE_BYTES = 0
    tokenised.PATIENCE_S = 60.0  # the ranks share few cores here, so they come late
    texts = (words(number, 20 + number % 300) for number in range(20_000))
    run = make_run(write_lines(folder / "shares.jsonl", texts), pack_buffer_docs=1024)
    load_tokenizer(run)
    together, results = FORK.Barrier(8), FORK.SimpleQueue()

    def train(rank: int) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        stream = TrainStream(run, load_tokenizer(run), rank, 8, None)
        trained = 0
        for _ in range(120):
            together.wait()
            trained += stream.next_micro_batch().labelled_tokens
        results.put(stream.made().tokens / trained)

    children = [FORK.Process(target=train, args=(rank,)) for rank in range(8)]
    for child in children:
        child.start()
    ratios = [results.get() for _ in children]
    yield record.emit("tokenised / trained on, of each of 8 ranks", ratios, unit="ratio", most=round(max(ratios), 3))


def tokenise_counted(run: RunSpec) -> int:
    """Tokenise all of a source; the file BEGUN gets the number of documents before each call of the tokenizer."""
    begun = open(os.environ["BEGUN"], "a", encoding="utf-8")  # noqa: SIM115 - open until this process is killed
    tokenizer = load_tokenizer(run)

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        begun.write(f"{len(texts)}\n")
        begun.flush()
        return tokenizer.encode_batch(texts)

    corpus.WHOLE_BYTES = 2**40
    corpus.open_corpora(run, replace(tokenizer, encode_batch=encode_batch))
    return documents_made()


def run_apart(option: str, run: RunSpec, folder: Path, **environment: str) -> subprocess.Popen[str]:
    (folder / "run.json").write_text(spec.to_json(run), encoding="utf-8")
    command = [sys.executable, __file__, option, str(folder / "run.json")]
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.PIPE, text=True)


def measure_kill(folder: Path, _: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """SIGKILL at 60 % of a source, and the documents that are tokenised again by the next run."""
    for count in (500, 2000):
        os.environ["PRIME_TRAIN_CACHE"] = str(folder / f"cache-{count}")
        texts = (words(number, 300) for number in range(count))
        run = make_run(write_lines(folder / f"kill-{count}.jsonl", texts))
        load_tokenizer(run)
        begun = folder / f"begun-{count}"
        killed = run_apart("--tokenise", run, folder, BEGUN=str(begun))
        while documents_made() < 0.6 * count:
            if killed.poll() is not None:
                raise RuntimeError("it ended before it was killed")
            time.sleep(0.001)
        killed.kill()
        killed.wait()
        run_apart("--tokenise", run, folder, BEGUN=str(begun)).wait()
        again = sum(map(int, begun.read_text(encoding="utf-8").split())) / count - 1
        yield record.emit(
            f"tokenised again after a kill at 60 % of {count} documents", [100 * again], unit="% of the documents"
        )


def measure_first_step(folder: Path, _: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """100 parquet files of 1,000 documents: the time to the first micro-batch, and what is tokenised then."""
    import pyarrow as pa
    from pyarrow import parquet

    os.environ["PRIME_TRAIN_CACHE"] = str(folder / "cache-parquet")
    (folder / "parquet").mkdir()
    for number in range(100):
        table = pa.table({"text": [words(number * 1000 + row, 60) for row in range(1000)]})
        parquet.write_table(table, folder / "parquet" / f"{number:03d}.parquet")
    run = make_run(folder / "parquet", loader_workers=1)
    load_tokenizer(run)
    corpus.WHOLE_BYTES = 0
    began_s = time.perf_counter()
    tokenizer = prepare(run)
    stream = TrainStream(run, tokenizer, 0, 1, None)
    held_out_batches(run, tokenizer)
    stream.next_micro_batch()
    first_s = time.perf_counter() - began_s
    ratio = documents_made() / 100_000
    stream.close()
    yield record.emit(
        "first micro-batch of 100 parquet files", [first_s], tokenised_percent=round(100 * ratio, 2), documents=100_000
    )


def train_in_jsonl(run: RunSpec) -> dict[str, float]:
    """Take 200 micro-batches from all over a file, and the anonymous memory at the end."""
    corpus.WHOLE_BYTES = 0
    began_s = time.perf_counter()
    stream = TrainStream(run, prepare(run), 0, 1, None)
    stream.next_micro_batch()
    first_s = time.perf_counter() - began_s
    for _ in range(200):
        stream.next_micro_batch()
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    status = dict(line.split(":", 1) for line in lines)
    made = stream.made()
    return {
        "first_s": first_s,
        "anonymous_mib": int(status["RssAnon"].split()[0]) / 1024,
        "tokens_per_s": made.tokens_per_s or 0.0,
    }


def measure_memory(folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One .jsonl file of each size: the memory of a process that trains on documents from all over it."""
    block = "".join(json.dumps({"text": words(number, 400)}) + "\n" for number in range(4000))
    for size_mib in options.jsonl_mib:
        os.environ["PRIME_TRAIN_CACHE"] = str(folder / f"cache-{size_mib}")
        file = folder / f"{size_mib}.jsonl"
        with open(file, "w", encoding="utf-8") as lines:
            lines.writelines(block for _ in range(size_mib * 2**20 // len(block)))
        done = run_apart("--memory-of", make_run(file), folder)
        assert done.stdout is not None
        found = json.loads(done.stdout.read().splitlines()[-1])
        done.wait()
        file.unlink()
        yield record.emit(
            f"anonymous memory with a .jsonl file of {size_mib} MiB",
            [round(found["anonymous_mib"], 1)],
            unit="MiB",
            first_micro_batch_s=round(found["first_s"], 1),
            tokens_per_s=round(found["tokens_per_s"]),
        )


def slow(tokenizer: LoadedTokenizer) -> LoadedTokenizer:
    """The tokenizer at 50,000 tokens/s, without use of a core."""

    def encode_batch(texts: Sequence[str]) -> list[list[int]]:
        began_s = time.perf_counter()
        encoded = tokenizer.encode_batch(texts)
        rest_s = sum(map(len, encoded)) / SLOW_TOKENS_PER_S - (time.perf_counter() - began_s)
        time.sleep(max(0.0, rest_s))
        return encoded

    return replace(tokenizer, encode_batch=encode_batch)


def nine_cores(cpu_max: Path = worker_count.CPU_MAX) -> int:  # noqa: ARG001 - stands for count_cores
    return 9


def measure_workers(folder: Path, _: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """loader_workers = "auto" with a tokenizer of 50,000 tokens/s and steps of 200 ms: workers, and the wait for data.

    The tokenizer sleeps, so 8 workers need no 9 cores: the number of cores is given as 9.
    """
    corpus.WHOLE_BYTES = 0
    worker_count.count_cores = nine_cores
    os.environ["PRIME_TRAIN_CACHE"] = str(folder / "cache-workers")
    texts = (words(number, 20 + number % 300) for number in range(20_000))
    file = write_lines(folder / "workers.jsonl", texts)
    for rows in (4, 32):  # 10,240 and 81,920 tokens/s
        run = replace(make_run(file, loader_workers="auto", pack_buffer_docs=256), batch=spec.Batch(micro_batch=rows))
        os.environ["PRIME_TRAIN_CACHE"] = str(folder / f"cache-workers-{rows}")
        stream = TrainStream(run, slow(load_tokenizer(run)), 0, 1, None)
        waits = []
        for _step in range(80):
            began_s = time.perf_counter()
            stream.next_micro_batch()
            waits.append(time.perf_counter() - began_s)
            time.sleep(STEP_S)
        after = waits[20:]
        yield record.emit(
            f"wait for data in a step of 200 ms, {rows * 512 / STEP_S:,.0f} tokens/s",
            [100 * sum(after) / (sum(after) + STEP_S * len(after))],
            unit="% of the time after step 20",
            workers=stream.workers,
            longest_s=round(max(after), 3),
        )
        stream.close()


def make_groups(prompt_tokens: int, answer_tokens: int) -> tuple[Group, ...]:
    """16 groups of 8 rollouts, with answers of `answer_tokens` in the mean."""
    draw = random.Random(7)
    groups = []
    for task in range(16):
        prompt = draw.choices(range(VOCAB_SIZE), k=prompt_tokens)
        made = []
        for _ in range(8):
            written = draw.randint(answer_tokens // 4, 7 * answer_tokens // 4)
            made.append(
                Rollout(
                    environment="bench",
                    task=task,
                    tokens=(*prompt, *draw.choices(range(VOCAB_SIZE), k=written)),
                    sampled=(*[False] * prompt_tokens, *[True] * written),
                    logprobs=(*[0.0] * prompt_tokens, *[draw.uniform(-5, 0) for _ in range(written)]),
                    reward=draw.random(),
                    version=3,
                    truncated=False,
                    turns=1,
                )
            )
        groups.append(Group(tuple(made)))
    return tuple(groups)


def measure_rollouts(_: Path, __: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The groups of a step of 128 rollouts to the tensors of its micro-batches: CPU time."""
    for prompt_tokens, answer_tokens in ((500, 3100), (3000, 600)):
        groups = make_groups(prompt_tokens, answer_tokens)
        tokens = sum(len(each.tokens) for group in groups for each in group.outcomes if isinstance(each, Rollout))
        times_us = []
        for _round in range(20):
            began_s = time.process_time()
            selection = select_samples(groups, Rl(), version=3)
            rows = share_prompts(selection.samples, most=8)
            for part in share_rows(rows, micro_batch=8, rank=0, ranks=1):
                to_policy_batch(part, version=3)
            times_us.append(1e6 * (time.process_time() - began_s) / tokens)
        yield record.emit(
            f"micro-batches of 128 rollouts with prompts of {prompt_tokens} tokens",
            times_us,
            unit="CPU us / token",
            tokens=tokens,
            rows=len(rows),
        )


PARTS: dict[str, Callable[[Path, argparse.Namespace], Iterator[dict[str, Any]]]] = {
    "shares": measure_shares,
    "kill": measure_kill,
    "first-step": measure_first_step,
    "memory": measure_memory,
    "workers": measure_workers,
    "rollouts": measure_rollouts,
}

if __name__ == "__main__":
    main()
