"""Checks of a model's tokenizer: does it load, does it fit the embedding, does its end of turn stop vLLM. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.facts.facts import NotKnown
from prime_train.models.chat_questions import ANSWER
from prime_train.models.chat_template import Renderings
from prime_train.models.config import stop_ids
from prime_train.models.evidence import TURN_END
from prime_train.models.tokenizer import Tokenized
from prime_train.models.verdicts import Check, failure, not_known, ok, warning


def check_tokenizer(tokenized: Tokenized | NotKnown | None) -> Check:
    if tokenized is None:
        return failure(
            "tokenizer",
            "there is no tokenizer",
            "neither a trainer nor vLLM can turn text into tokens",
            "copy tokenizer.json and tokenizer_config.json from the original model",
        )
    if isinstance(tokenized, NotKnown):
        return not_known("tokenizer", tokenized.reason, "name an interpreter with tokenizers: --python PATH")
    if tokenized.fault:
        return failure(
            "tokenizer",
            f"it does not load: {tokenized.fault}",
            "every process of a run loads the tokenizer first",
            "download it again, or install a newer tokenizers",
        )
    if not tokenized.restored:
        return warning(
            "tokenizer",
            f"{tokenized.size:,} tokens; a text with tabs, accents and an emoji changes when encoded and decoded",
            "the model cannot learn text that its tokenizer cannot encode",
            "check that this is the tokenizer of this model",
        )
    return ok("tokenizer", f"it loads: {tokenized.size:,} tokens")


def check_vocabulary(tokenized: Tokenized | NotKnown | None, rows: int) -> Check | None:
    """None if the tokenizer or the number of rows is not known."""
    if not isinstance(tokenized, Tokenized) or tokenized.fault or not rows:
        return None
    if tokenized.highest >= rows:
        return failure(
            "vocabulary",
            f"the tokenizer's highest token is {tokenized.highest}, the embedding has {rows} rows",
            "the first step with a token beyond the last row fails with a CUDA assert",
            "use the tokenizer of this model, or resize the embedding",
        )
    return ok("vocabulary", f"highest token {tokenized.highest} of {rows} rows in the embedding")


def check_turn_end(
    tokenized: Tokenized | NotKnown | None,
    renderings: Renderings | NotKnown | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> Check | None:
    """Whether the token that the template writes after an answer ends a generation. None if not known."""
    if not isinstance(tokenized, Tokenized) or not isinstance(renderings, Renderings):
        return None
    text = renderings.texts.get("chat_2", "")
    stops = stop_ids(config, generation)
    after = text.rpartition(ANSWER)[2].strip()
    if not after or not stops:
        return None
    first = tokenized.ids.get(TURN_END, ())
    if not first or first[0] in stops:
        return ok("turn-end", f"{after.split()[0][:40]} ends a turn, and vLLM stops at it")
    return warning(
        "turn-end",
        f"the template ends a turn with {after.split()[0][:40]} (token {first[0]}), and the model's eos_token_id is "
        f"{', '.join(map(str, sorted(stops)))}",
        "vLLM does not stop there: each answer continues to max_tokens",
        f"add {first[0]} to eos_token_id in generation_config.json, or to stop_token_ids of the sampling",
    )
