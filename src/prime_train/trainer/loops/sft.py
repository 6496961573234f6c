"""Fine-tunes a language model on chats: the loop of pretraining, with labels only for the assistant's tokens."""

from __future__ import annotations

from functools import partial

from prime_train.environments.environment import Message
from prime_train.spec import RunSpec
from prime_train.trainer import parallel
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.chats.chat_corpus import open_chat_corpora
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.data.corpus import Corpus
from prime_train.trainer.data.stream import TrainStream, held_out_batches
from prime_train.trainer.loops.pretrain import Material, train


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Fine-tune on chats."""
    train(attempt, stop, load_chats)


def load_chats(run: RunSpec, world: parallel.World) -> Material:
    """The packed chats of data.sources. One rank of a machine tokenises them, the others read its cache."""
    chat_tokenizer, corpora = world.load_in_turn(partial(_load, run)) or _load(run)
    tokenizer = chat_tokenizer.tokenizer
    return Material(
        tokenizer,
        partial(TrainStream, run, tokenizer, corpora=corpora),
        partial(held_out_batches, run, tokenizer, corpora),
        encode_prompt=lambda prompt: chat_tokenizer.prompt_tokens([Message("user", prompt)]),
    )


def _load(run: RunSpec) -> tuple[ChatTokenizer, tuple[Corpus, ...]]:
    chat_tokenizer = load_chat_tokenizer(run)
    return chat_tokenizer, open_chat_corpora(run, chat_tokenizer)
