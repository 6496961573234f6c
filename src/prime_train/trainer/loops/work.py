"""A kind of training as one value, which is all that the loop knows of it: text, or chats. Trains nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from prime_train.environments.environment import Message
from prime_train.spec import RunSpec
from prime_train.trainer.attempt import Attempt
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.build import Ready, TextModel, get_ready
from prime_train.trainer.chats.chat_sources import open_chat_corpora
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.data import stream
from prime_train.trainer.data.corpus import Corpus
from prime_train.trainer.data.text_tokenizer import load_tokenizer
from prime_train.trainer.data.tokenised import Share
from prime_train.trainer.device import Device
from prime_train.trainer.evaluation.eval_sets import prepare_sets
from prime_train.trainer.evaluation.evaluate import Evaluation, HeldOut, Samples
from prime_train.trainer.evaluation.suite import open_suite
from prime_train.trainer.loops.after_step import export_text
from prime_train.trainer.loops.step import AnyBatch, LossSum, loss_sum
from prime_train.trainer.parallel import World
from prime_train.trainer.rl.rollouts.task_targets import open_targets
from prime_train.trainer.tokenizer import LoadedTokenizer

Position = dict[str, Any]  # JSON-able
Drawn = TypeVar("Drawn", covariant=True)  # a micro-batch: a dataclass of tensors (B, T)


class TrainRows(Protocol[Drawn]):
    """The micro-batches of one rank, in an order that depends only on the seed."""

    def next_micro_batch(self) -> Drawn: ...

    def take_settings(self, run: RunSpec) -> None:
        """Go on with the settings of the run that change while it trains. Called by every rank before one step."""

    def position(self) -> Position:
        """The position after the rows that all ranks have used, the same on every rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work(Generic[AnyBatch]):
    """What a kind of training learns from, and how."""

    get_ready: Callable[[Attempt, Device, World], Ready[Any]]  # called by every rank
    # Both are opened late: the position is in the checkpoint, and the evaluations need the model.
    open_rows: Callable[[int, int, Position | None], TrainRows[AnyBatch]]  # (rank, ranks, where an attempt goes on)
    loss: LossSum[AnyBatch]
    unit: str  # of what the loss counts, for the progress: "tokens"
    open_evaluations: Callable[[Attempt, Ready[Any]], tuple[Evaluation, ...]]  # called by every rank
    export: Callable[[Attempt, Ready[Any]], Path]  # writes the folder `final`; called by every rank


LoadWork = Callable[[RunSpec, World], Work[Any]]  # called by every rank; one prepares what the others read


def load_text(run: RunSpec, world: World) -> Work[MicroBatch]:
    """The packed documents of data.sources."""
    # One rank of a machine tokenises, because the others would make the same cache.
    tokenizer = world.load_in_turn(partial(stream.prepare, run)) or load_tokenizer(run)
    rows = partial(stream.TrainStream, run, tokenizer, share=Share(world.local_rank, world.local_size))
    held_out = partial(stream.held_out_batches, run, tokenizer)
    samples = partial(_plan_samples, tokenizer, partial(encode_prompt, run, tokenizer), frozenset({tokenizer.eos_id}))
    return _learn_rows(tokenizer, rows, held_out, samples)


def encode_prompt(run: RunSpec, tokenizer: LoadedTokenizer, prompt: str) -> list[int]:
    """The tokens of a prompt, as the beginning of a document."""
    # Where documents begin with a token, a prompt without it would be the middle of one.
    start = [] if run.data.document_start == "none" else [tokenizer.eos_id]
    return [*start, *tokenizer.encode(prompt)]


def load_chats(run: RunSpec, world: World) -> Work[MicroBatch]:
    """The packed chats of data.sources, with labels only for the assistant's tokens."""
    # Before the first step, because a chat without a token to learn is left out, and only its tokens show that.
    # One rank of a machine tokenises them, the others read its cache.
    chat_tokenizer, corpora = world.load_in_turn(partial(_load_chats, run)) or _load_chats(run)
    tokenizer = chat_tokenizer.tokenizer
    rows = partial(stream.TrainStream, run, tokenizer, corpora=corpora)
    held_out = partial(stream.held_out_batches, run, tokenizer, corpora)
    # A prompt is the turn of a user, because that is what the model has learned to answer.
    samples = partial(
        _plan_samples,
        tokenizer,
        lambda text: chat_tokenizer.prompt_tokens([Message("user", text)]),
        chat_tokenizer.stop_tokens,
    )
    return _learn_rows(tokenizer, rows, held_out, samples)


def _load_chats(run: RunSpec) -> tuple[ChatTokenizer, tuple[Corpus, ...]]:
    chat_tokenizer = load_chat_tokenizer(run)
    return chat_tokenizer, open_chat_corpora(run, chat_tokenizer)


def _plan_samples(
    tokenizer: LoadedTokenizer,
    encode: Callable[[str], Sequence[int]],
    stop_tokens: frozenset[int],
    prompts: Sequence[str],
) -> Samples:
    """The samples of eval.prompts. `stop_tokens` end one, as they end an answer in training."""
    return Samples(tokenizer, [encode(prompt) for prompt in prompts], stop_tokens)


def _learn_rows(
    tokenizer: LoadedTokenizer,
    open_rows: Callable[[int, int, Position | None], TrainRows[MicroBatch]],
    load_held_out: Callable[[], Sequence[MicroBatch]],
    plan_samples: Callable[[Sequence[str]], Samples],
) -> Work[MicroBatch]:
    """The work on packed rows of tokens."""
    evaluations = partial(open_evaluations, load_held_out=load_held_out, plan_samples=plan_samples)
    return Work(
        get_ready=partial(get_ready, tokenizer),
        open_rows=open_rows,
        loss=loss_sum,
        unit="tokens",
        open_evaluations=evaluations,
        export=export_text,
    )


def open_evaluations(
    attempt: Attempt,
    ready: Ready[TextModel],
    load_held_out: Callable[[], Sequence[MicroBatch]],
    plan_samples: Callable[[Sequence[str]], Samples],
) -> tuple[Evaluation, ...]:
    """Everything that a run on text or chats measures, in its order. Raises UserError where something is missing."""
    run, tokenizer, world = attempt.run, ready.known.tokenizer, ready.training.world
    targets = open_targets(attempt, tokenizer, ready.known.config, ready.training.device)
    held_out = HeldOut(load_held_out())
    sets = prepare_sets(run, tokenizer, world)
    suite = open_suite(run, tokenizer, world)
    return targets, *sets, suite, held_out, plan_samples(run.eval.prompts)
