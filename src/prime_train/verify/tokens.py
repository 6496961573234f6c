"""Checks of a model's tokenizer: does it load, does it fit the embedding, does it know how a turn ends. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prime_train.facts.chat_questions import ANSWER
from prime_train.facts.chat_template import Renderings
from prime_train.facts.facts import NotKnown
from prime_train.facts.model_evidence import TURN_END
from prime_train.facts.tokenizer import Tokenized
from prime_train.verify.check import Check, failure, not_known, ok, warning
from prime_train.verify.config import stop_ids


def check_tokenizer(tokenized: Tokenized | NotKnown | None) -> Check:
    if tokenized is None:
        return failure(
            "tokenizer",
            "there is no tokenizer",
            "neither a trainer nor vLLM can turn text into tokens",
            "copy tokenizer.json and tokenizer_config.json from the model it came from",
        )
    if isinstance(tokenized, NotKnown):
        return not_known("tokenizer", tokenized.reason, "name an interpreter that has tokenizers: --python PATH")
    if tokenized.fault:
        return failure(
            "tokenizer",
            f"it does not load: {tokenized.fault}",
            "every process of a run loads it first",
            "download it again, or install a newer tokenizers",
        )
    if not tokenized.restored:
        return warning(
            "tokenizer",
            f"{tokenized.size:,} tokens; a text with tabs, accents and an emoji does not come back as it was",
            "what it cannot write the model cannot learn",
            "check that it is the tokenizer of this model",
        )
    return ok("tokenizer", f"it loads: {tokenized.size:,} tokens")


def check_vocabulary(tokenized: Tokenized | NotKnown | None, rows: int) -> Check | None:
    """None where one of the two is not known: there is nothing to compare."""
    if not isinstance(tokenized, Tokenized) or tokenized.fault or not rows:
        return None
    if tokenized.highest >= rows:
        return failure(
            "vocabulary",
            f"the tokenizer's highest token is {tokenized.highest}, the embedding has {rows} rows",
            "a token beyond the last row ends in a CUDA assert, on whichever step meets it first",
            "take the tokenizer of this model, or resize the embedding",
        )
    return ok("vocabulary", f"highest token {tokenized.highest} of {rows} rows in the embedding")


def check_turn_end(
    tokenized: Tokenized | NotKnown | None,
    renderings: Renderings | NotKnown | None,
    config: Mapping[str, Any],
    generation: Mapping[str, Any],
) -> Check | None:
    """Whether what the template writes after an answer is a token that ends a generation. None where not known."""
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
        "vLLM does not stop there: each answer runs on to max_tokens",
        f"add {first[0]} to eos_token_id in generation_config.json, or name it in the stop_token_ids of the sampling",
    )
