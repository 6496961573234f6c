"""Evaluation measures, and leaves everything as it was."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from prime_train import spec
from prime_train.environments.environment import Message
from prime_train.events import Evaluated, Phase, Sampled
from prime_train.spec.rl import TaskSource
from prime_train.trainer import seed
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.data.stream import held_out_batches
from prime_train.trainer.evaluation import evaluate
from prime_train.trainer.evaluation.evaluate import measure_all
from prime_train.trainer.loops.step import Training, adamw, loss_sum
from prime_train.trainer.loops.work import load_chats
from prime_train.trainer.parallel import World
from prime_train.trainer.tokenizer import LoadedTokenizer
from tests.unit.trainer import tiny
from tests.unit.trainer.chats.chats import write_glm
from tests.unit.trainer.data.small_runs import files, small_run, write_texts

LETTERS = LoadedTokenizer(
    encode_batch=lambda texts: [[ord(letter) % 64 for letter in text] for text in texts],
    decode=lambda tokens: "".join(chr(64 + token) for token in tokens),
    vocab_size=64,
    eos_id=0,
    files=(),
    fingerprint="",
)


@pytest.fixture
def training() -> Training:
    model = tiny.decoder()
    return Training(model, adamw(model, spec.Optim()), World(rank=0, size=1), tiny.CPU, None)


def test_held_out_loss_weighs_tokens_not_batches(training: Training) -> None:
    batches = [tiny.batch(1), tiny.batch(2, rows=1, unlabelled=5)]
    sums = [float(loss_sum(training.model, batch, tiny.CPU).detach()) for batch in batches]
    tokens = sum(batch.labelled_tokens for batch in batches)
    loss, counted = evaluate.measure_held_out_loss(training, batches)
    assert counted == tokens
    assert loss == pytest.approx(sum(sums) / tokens, rel=1e-6)


def test_held_out_loss_does_not_depend_on_the_micro_batch(training: Training, tmp_path: Path) -> None:
    """A run whose micro-batch shrinks because memory ran out keeps one curve."""
    run = small_run(files(write_texts(tmp_path / "texts", 200)), ctx_tokens=64)
    letters = replace(LETTERS, fingerprint=str(tmp_path))
    losses = [
        evaluate.measure_held_out_loss(
            training, held_out_batches(replace(run, batch=replace(run.batch, micro_batch=micro_batch)), letters)
        )
        for micro_batch in (4, 16, 1)
    ]
    assert {tokens for _, tokens in losses} == {losses[0][1]}
    assert [loss for loss, _ in losses] == pytest.approx([losses[0][0]] * 3, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_ranks_share_the_batches_and_call_the_model_equally_often(size: int) -> None:
    batches = [tiny.batch(number) for number in range(4)]
    shares = [list(evaluate.share(batches, rank, size)) for rank in range(size)]
    assert len({len(share) for share in shares}) == 1
    counted = [batch for share in shares for batch, counts in share if counts]
    assert sorted(map(id, counted)) == sorted(map(id, batches))


def test_evaluation_leaves_generators_and_mode_alone(training: Training, tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path, eval=spec.Eval(prompts=("abc", ""), sample_tokens=5))
    attempt = tiny.attempt(tiny.prepare(tmp_path, run), run)
    before = seed.rng_state()
    evaluations = (evaluate.HeldOut([tiny.batch(1)]), evaluate.Samples(LETTERS, [[1, 2, 3], []], frozenset({0})))
    loss = measure_all(attempt, training, 3, evaluations)
    assert seed.rng_state() == before
    assert training.model.training
    assert all(weight.grad is None for weight in training.model.parameters())
    assert loss is not None
    phase, evaluated, *sampled = tiny.events(attempt.run_dir)
    assert phase == Phase(1, "evaluate")
    assert evaluated == Evaluated(1, 3, loss, tiny.batch(1).labelled_tokens)
    assert [event.prompt for event in sampled if isinstance(event, Sampled)] == ["abc", ""]
    random.random()
    np.random.rand()
    torch.rand(1)
    assert seed.rng_state() != before  # the states compared above do move


def test_samples_are_the_same_at_each_try_of_a_step(training: Training, tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path, eval=spec.Eval(prompts=("abc",), sample_tokens=12, temperature=1.0))
    attempt = replace(tiny.attempt(tiny.prepare(tmp_path, run), run))
    samples = evaluate.Samples(LETTERS, [[1, 2, 3]], frozenset())
    tries = [samples.continue_prompts(attempt, training, 3) for _ in range(2)]
    assert tries[0] == tries[1]
    assert tries[0] != samples.continue_prompts(attempt, training, 4)


@pytest.mark.parametrize("end", ["<|user|>", "<|observation|>", "<|endoftext|>"])
def test_a_sample_of_a_chat_ends_where_an_answer_of_its_template_ends(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GLM-4-MoE ends an answer with the token that begins the next message."""
    monkeypatch.setenv("PRIME_TRAIN_CACHE", str(tmp_path / "cache"))
    folder = write_glm(tmp_path / "glm")
    run = tiny.run_spec(
        tmp_path,
        run=spec.Run(name="tiny", kind="sft", max_steps=1),
        tasks=(TaskSource(kind="reverse-text"),),
        data=spec.Data(sources=(spec.Source(kind="demonstrations", count=60),), ctx_tokens=192, loader_workers=0),
        tokenizer=spec.Tokenizer(path=str(folder)),
        eval=spec.Eval(prompts=("Reverse: ab",), held_out_ratio=0.1, sample_tokens=9, temperature=0),
    )
    attempt, world = tiny.attempt(tiny.prepare(tmp_path / "run", run), run), World(rank=0, size=1)
    work, chat = load_chats(run, world), load_chat_tokenizer(run)
    ready = work.get_ready(attempt, tiny.CPU, world)
    *_, samples = work.open_evaluations(attempt, ready)
    prompt = chat.prompt_tokens([Message("user", "Reverse: ab")])
    answer = torch.tensor([*chat.encode("ba"), chat.tokenizer.control_tokens[end]])

    def answer_again_and_again(_tokens: Tensor, _positions: Tensor, _plan: None, at: Tensor) -> Tensor:
        return torch.eye(ready.known.config.vocab_size)[answer[(at + 1 - len(prompt)) % len(answer)]]  # (B, V)

    monkeypatch.setattr(ready.training.model, "forward", answer_again_and_again)
    samples.measure(attempt, ready.training, 1)
    assert [event.text for event in tiny.events(attempt.run_dir) if isinstance(event, Sampled)] == ["ba"]


def test_the_loss_of_all_evaluations_is_the_last_that_one_of_them_has(training: Training, tmp_path: Path) -> None:
    run = tiny.run_spec(tmp_path, eval=spec.Eval(prompts=("abc",), sample_tokens=2))
    attempt = tiny.attempt(tiny.prepare(tmp_path, run), run)
    samples = evaluate.Samples(LETTERS, [[1, 2, 3]], frozenset())
    first, last = (evaluate.HeldOut([tiny.batch(number)]) for number in (1, 2))
    assert measure_all(attempt, training, 3, (samples,)) is None
    assert measure_all(attempt, training, 3, (first, last, samples)) == last.measure(attempt, training, 3)
