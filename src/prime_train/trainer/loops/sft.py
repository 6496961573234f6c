"""The work of fine-tuning: packed chats, with labels only for the assistant's tokens, in the loop of pretraining."""

from __future__ import annotations

from functools import partial

from prime_train.environments.environment import Message
from prime_train.spec import RunSpec
from prime_train.trainer.attempt import Attempt, StopFlag
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.chats.chat_corpus import open_chat_corpora
from prime_train.trainer.chats.chat_tokenizer import load_chat_tokenizer
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.data.corpus import Corpus
from prime_train.trainer.data.stream import TrainStream, held_out_batches
from prime_train.trainer.loops.pretrain import train
from prime_train.trainer.loops.step import loss_sum
from prime_train.trainer.loops.text_work import open_evaluations
from prime_train.trainer.loops.work import Work
from prime_train.trainer.parallel import World


def main(attempt: Attempt, stop: StopFlag) -> None:
    """Fine-tune on chats."""
    train(attempt, stop, load_chats)


def load_chats(run: RunSpec, world: World) -> Work[MicroBatch]:
    """The packed chats of data.sources. One rank of a machine tokenises them, the others read its cache."""
    # Before the first step, because a chat without a token to learn is left out, and only its tokens show that.
    chat_tokenizer, corpora = world.load_in_turn(partial(_load, run)) or _load(run)
    tokenizer = chat_tokenizer.tokenizer
    return Work(
        tokenizer=tokenizer,
        open_rows=partial(TrainStream, run, tokenizer, corpora=corpora),
        loss=loss_sum,
        unit="tokens",
        open_evaluations=partial(
            open_evaluations,
            load_held_out=partial(held_out_batches, run, tokenizer, corpora),
            # A prompt is the turn of a user, because that is what the model has learned to answer.
            encode_prompt=lambda prompt: chat_tokenizer.prompt_tokens([Message("user", prompt)]),
            stop_tokens=chat_tokenizer.stop_tokens,
        ),
    )


def _load(run: RunSpec) -> tuple[ChatTokenizer, tuple[Corpus, ...]]:
    chat_tokenizer = load_chat_tokenizer(run)
    return chat_tokenizer, open_chat_corpora(run, chat_tokenizer)
