from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prime_train.core.errors import UserError
from prime_train.trainer import draws
from prime_train.trainer.data.corpus import open_corpora
from prime_train.trainer.data.stream import TrainStream, held_out_batches
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from tests.unit.trainer.data.small_runs import files, small_run, write_texts


def test_the_same_batches_each_time(tmp_path: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 200)))
    run = replace(run, eval=replace(run.eval, batches=2))
    tokenizer = load_tokenizer(run)
    once, again = held_out_batches(run, tokenizer), held_out_batches(run, tokenizer)
    assert len(once) == len(again) == 8 * run.eval.batches // run.batch.micro_batch
    assert all(batch.tokens.shape == (2, 32) for batch in once)
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(once, again, strict=True))


def test_the_sequences_do_not_depend_on_the_micro_batch(tmp_path: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 200)))
    run = replace(run, eval=replace(run.eval, batches=5))
    tokenizer = load_tokenizer(run)
    sets = {
        micro_batch: held_out_batches(replace(run, batch=replace(run.batch, micro_batch=micro_batch)), tokenizer)
        for micro_batch in (1, 4, 16)
    }
    for part in ("tokens", "labels", "positions", "documents"):
        alone, *others = [torch.cat([getattr(batch, part) for batch in batches]) for batches in sets.values()]
        assert len(alone) == 8 * run.eval.batches
        assert all(torch.equal(alone, other) for other in others)


def test_the_tokens_are_whole_sequences(tmp_path: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 200)))
    run = replace(run, eval=replace(run.eval, tokens=5 * 32 - 7))
    batches = held_out_batches(run, load_tokenizer(run))
    assert [batch.tokens.shape for batch in batches] == [(2, 32), (2, 32), (1, 32)]


def test_short_text_gives_fewer_batches(tmp_path: Path) -> None:
    run = small_run(files(write_texts(tmp_path / "texts", 2)), ctx_tokens=2048)
    (batch,) = held_out_batches(run, load_tokenizer(run))
    assert batch.tokens.shape == (1, 2048)
    assert batch.labelled_tokens > 0


def test_nothing_but_blanks_held_out_is_refused(tmp_path: Path) -> None:
    folder = write_texts(tmp_path / "texts", 20)
    run = small_run(files(folder))
    _, held_out = draws.split(20, run.eval.held_out_ratio, run.run.seed, 0)
    for number in held_out.tolist():
        (folder / f"{number:04d}.txt").write_text("\n\n")
    with pytest.raises(UserError, match="the held-out documents have no text"):
        held_out_batches(run, load_tokenizer(run))


def test_held_out_text_is_never_trained_on(tmp_path: Path) -> None:
    # Each document begins with a number of its own; long sequences keep every document whole.
    run = small_run(files(write_texts(tmp_path / "texts", 40)), ctx_tokens=1024)
    tokenizer = load_tokenizer(run)
    (corpus,) = open_corpora(run, tokenizer)

    def texts(batches: list[torch.Tensor]) -> set[str]:
        pieces: list[list[int]] = [[]]
        for token in torch.cat([tokens.flatten() for tokens in batches]).tolist():
            if token == tokenizer.eos_id:
                pieces.append([])
            else:
                pieces[-1].append(token)
        return {tokenizer.decode(piece) for piece in pieces if piece}

    held_out = texts([batch.tokens for batch in held_out_batches(run, tokenizer)])
    stream = TrainStream(run, tokenizer, 0, 1, None)
    trained = texts([stream.next_micro_batch().tokens for _ in range(60)])
    assert len(held_out) == len(corpus.held_out)
    assert len(trained) == len(corpus.train)
    assert not held_out & trained
