"""Loads the tokenizer of a run on text: that of tokenizer.path, or a BPE that is trained on the text and cached."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from prime_train.spec import RunSpec
from prime_train.trainer import cache, draws
from prime_train.trainer.data.sources import Documents, locate, open_documents
from prime_train.trainer.tokenizer import TRAINED_ON_CHARACTERS, LoadedTokenizer, read_folder, read_trained, train_bpe

FORMAT = 2  # of a trained tokenizer; another number trains it again
READ_AT_ONCE = 64


def load_tokenizer(run: RunSpec) -> LoadedTokenizer:
    """The tokenizer of this run; trained on the data and cached where tokenizer.path is unset."""
    if run.tokenizer.path is None:
        return read_trained(_train_once(run))
    return read_folder(Path(run.tokenizer.path))


def _train_once(run: RunSpec) -> Path:
    """The cached folder of the BPE for this data, vocabulary and split. It is not trained on held-out text."""
    origins = [locate(source) for source in run.data.sources]
    kept = [FORMAT, run.tokenizer.vocab_size, run.run.seed, run.eval.held_out_ratio]
    key = cache.digest([*kept, [origin.fingerprint for origin in origins]])

    def build(folder: Path) -> None:
        opened = [open_documents(origin, run.eval.held_out_ratio) for origin in origins]
        sys.stderr.write(f"training a tokenizer of {run.tokenizer.vocab_size} tokens on {origins[0].name}\n")
        train_bpe(_training_text(run, opened), run.tokenizer.vocab_size, folder)

    return cache.entry("tokenizers", key, build)


def _training_text(run: RunSpec, opened: Sequence[Documents]) -> Iterator[str]:
    """Training documents in a seeded order, from each source in proportion to its number of documents."""
    documents_in_all = sum(documents.count for documents in opened)
    for number, documents in enumerate(opened):
        if documents.count == 0:
            continue
        train, _ = draws.split(documents.count, run.eval.held_out_ratio, run.run.seed, number, documents.held_out)
        shuffled = draws.generator(run.run.seed, draws.SAMPLE, number).permutation(train).tolist()
        left = TRAINED_ON_CHARACTERS * documents.count // documents_in_all
        portions = (shuffled[start : start + READ_AT_ONCE] for start in range(0, len(shuffled), READ_AT_ONCE))
        for text in chain.from_iterable(map(documents.texts, portions)):
            if left <= 0:
                break
            yield text[:left]
            left -= len(text)
