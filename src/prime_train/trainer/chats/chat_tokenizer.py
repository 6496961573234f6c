"""Loads the chat tokenizer of a run: that of tokenizer.path, or one that is trained on the run's chats and cached.

Tries the first chats of local data with it, for `validate`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prime_train.core.chat_template import read_object
from prime_train.core.errors import UserError
from prime_train.spec import RunSpec, Source
from prime_train.trainer import cache, draws
from prime_train.trainer.cache import Origin
from prime_train.trainer.chats.chat import Chat, Completion, RowFault, read_row
from prime_train.trainer.chats.chat_template import (
    BUILT_IN,
    CALL_END,
    CALL_START,
    TURN_END,
    TURN_START,
    ChatTemplate,
    built_in_template,
    folder_template,
)
from prime_train.trainer.chats.chat_tokens import ChatTokenizer
from prime_train.trainer.chats.demonstrations import LEAST_CHATS, Chats, locate_demonstrations, open_chats
from prime_train.trainer.chats.labels import label
from prime_train.trainer.tokenizer import TRAINED_ON_CHARACTERS, ControlTokens, read_folder, read_trained, train_bpe

FORMAT = 1  # of a trained chat tokenizer; another number trains it again
TRAINED_ON_TASKS = 2048  # more solved tasks do not change a vocabulary of some thousands of tokens
CONTROL = ControlTokens(eos=TURN_END, others=(TURN_START,), words=(CALL_START, CALL_END))


def load_chat_tokenizer(run: RunSpec) -> ChatTokenizer:
    """The tokenizer of tokenizer.path with its template; else one trained on the run's chats. Raises UserError."""
    if run.tokenizer.path is None:
        return ChatTokenizer(read_trained(_train_once(run)), built_in_template())
    return read_chat_folder(Path(run.tokenizer.path))


def read_chat_folder(folder: Path) -> ChatTokenizer:
    """The tokenizer of a Hugging Face folder with its template. Raises UserError."""
    tokenizer = read_folder(folder)
    template = folder_template(folder, tuple(tokenizer.control_tokens))
    return ChatTokenizer(tokenizer, template, _stop_tokens(folder))


def _stop_tokens(folder: Path) -> frozenset[int]:
    """The stop tokens that generation_config.json names."""
    named = read_object(folder / "generation_config.json").get("eos_token_id")
    several = named if isinstance(named, list) else [named]
    return frozenset(token for token in several if isinstance(token, int) and not isinstance(token, bool))


def _train_once(run: RunSpec) -> Path:
    """The cached folder of the BPE for these chats, vocabulary and split. It is not trained on held-out chats."""
    origins, fields = _locate(run)
    kept = [FORMAT, BUILT_IN, run.tokenizer.vocab_size, run.run.seed, run.eval.held_out_ratio, fields]
    key = cache.digest([*kept, [origin.fingerprint for origin in origins]])

    def build(folder: Path) -> None:
        sys.stderr.write(f"training a tokenizer of {run.tokenizer.vocab_size} tokens on {origins[0].name}\n")
        train_bpe(_training_text(run, origins), run.tokenizer.vocab_size, folder, CONTROL)
        (folder / "chat_template.jinja").write_text(BUILT_IN, encoding="utf-8")

    return cache.entry("tokenizers", key, build)


def _locate(run: RunSpec) -> tuple[list[Origin[Chats]], list[str]]:
    """The chats that a tokenizer is trained on, and the field of each source that has the messages."""
    if run.run.kind != "sft":
        solved = Source(kind="demonstrations", count=TRAINED_ON_TASKS)
        return [locate_demonstrations(run, solved.count)], [solved.messages_field]
    from prime_train.trainer.chats.chat_sources import locate_chats  # reads files, of which a run on rewards has none

    sources = run.data.sources
    return [locate_chats(run, source) for source in sources], [source.messages_field for source in sources]


def _training_text(run: RunSpec, origins: Sequence[Origin[Chats]]) -> Iterator[str]:
    """The text of training chats in a seeded order, as much from each source as from the others."""
    template = built_in_template()
    for number, origin in enumerate(origins):
        chats = open_chats(origin)
        train, _ = draws.split(chats.count, run.eval.held_out_ratio, run.run.seed, number)
        left = TRAINED_ON_CHARACTERS // len(origins)
        for index in draws.generator(run.run.seed, draws.SAMPLE, number).permutation(train).tolist():
            if left <= 0:
                break
            for text in _texts(chats.read(index), template):
                yield text
                left -= len(text)


def _texts(chat: Chat | Completion, template: ChatTemplate) -> list[str]:
    """The text of a chat between its control tokens."""
    if isinstance(chat, Completion):
        return [chat.prompt, chat.completion]
    return template.split(template.render(chat.messages, chat.tools, generation_prompt=False))[::2]


def try_chats(
    folder: str, messages_field: str, rows: Iterable[tuple[str, Any]], until_s: float
) -> tuple[list[int | None], dict[str, str]]:
    """The context that each good chat needs, and of the first refused chat `where`, `what`, `why` and `fix`.

    A chat needs the smallest data.ctx_tokens with which it has a token to learn, None if no context is enough.
    `folder` has tokenizer and template, `rows` are (place, row). Ends at `until_s` of the monotonic clock.
    """
    contexts: list[int | None] = []
    try:
        tokenizer = read_chat_folder(Path(folder))
    except UserError as error:
        return contexts, {"where": error.where, "what": error.what, "why": error.why, "fix": error.fix}
    for place, row in rows:
        try:
            documents = label(read_row(row, messages_field), tokenizer)
        except RowFault as fault:
            return contexts, {"where": place, "what": f"it is no chat: {fault}", "fix": fault.fix}
        except UserError as error:
            where = f"{place} with {error.where}"
            return contexts, {"where": where, "what": error.what, "why": error.why, "fix": error.fix}
        needed = [document.least_ctx_tokens for document in documents]
        contexts.append(min((tokens for tokens in needed if tokens is not None), default=None))
        if time.monotonic() > until_s:
            break
    return contexts, {}


def count_learned(
    contexts: Sequence[int | None], ctx_tokens: int, held_out_ratio: float, seed: int, source: int
) -> dict[str, int | None]:
    """How many training and held-out chats of a whole source have a token to learn in `ctx_tokens`.

    `contexts`: what each chat needs; see `try_chats`. Nothing for fewer chats than a source must have.
    """
    if len(contexts) < LEAST_CHATS:
        return {}
    parts = draws.split(len(contexts), held_out_ratio, seed, source)
    train, held_out = ([needed for at in part.tolist() if (needed := contexts[at]) is not None] for part in parts)
    return {
        "learned_train": sum(needed <= ctx_tokens for needed in train),
        "learned_held_out": sum(needed <= ctx_tokens for needed in held_out),
        "least_ctx_tokens": max(min(train), min(held_out)) if train and held_out else None,
    }
