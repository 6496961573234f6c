"""Tokenizers that cannot be read, or that do not belong to the model. Pure: the facts are given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, if_known, known, rule, sharper_rule, suggest, unused
from prime_train.spec import RunSpec, Tokenizer

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


@facts_rule("TOK001", Severity.ERROR, needs=("tokenizer_folder",))
def tokenizer_folder_unusable(_run: RunSpec, facts: Facts) -> Problems:
    """tokenizer.path must be a Hugging Face tokenizer folder.

    without a tokenizer, text cannot become tokens

    Source: tokenizers, tokenizer.json; trainer/tokenizer.py.

    Bad:
        [tokenizer]
        path = "tokenizers/gone"
        [facts.tokenizer_folder]
        path = "tokenizers/gone"
        problem = "there is no such folder"
    Good:
        [tokenizer]
        path = "tokenizers/mine"
        [facts.tokenizer_folder]
        vocab_size = 32000
    """
    folder = known(facts.tokenizer_folder)
    if folder is not None and folder.problem:
        yield Problem(
            "tokenizer.path",
            f"{folder.path}: {folder.problem}",
            fix="correct the path, or take it out to train a tokenizer on the data",
        )


@rule("TOK002", Severity.WARNING)
def vocab_size_unused(run: RunSpec) -> Problems:
    """vocab_size has an effect only if a tokenizer is trained.

    a tokenizer folder has its own vocabulary

    Source: trainer/data/text_tokenizer.py.

    Bad:
        [tokenizer]
        path = "tokenizers/mine"
        vocab_size = 8192
    Good:
        [tokenizer]
        path = "tokenizers/mine"
    """
    if run.tokenizer.path is not None and run.tokenizer.vocab_size != Tokenizer().vocab_size:
        yield unused("tokenizer.vocab_size", run.tokenizer.vocab_size, "`tokenizer.path` is set")


@sharper_rule("TOK003", Severity.WARNING, uses=("model_folder",))
def weights_without_their_tokenizer(run: RunSpec, facts: Facts | None) -> Problems:
    """Loaded weights need the tokenizer they were trained with.

    every embedding belongs to one token: with another vocabulary the loaded embeddings are noise

    Source: trainer/model/hf.py (weights are loaded by row of the embedding).

    Bad:
        [model]
        path = "models/qwen3-0.6b"
    Good:
        [model]
        path = "models/qwen3-0.6b"
        [tokenizer]
        path = "models/qwen3-0.6b"
    Good:
        [model]
        path = "models/qwen3-0.6b"
        init = "random"
    """
    folder = if_known(facts, "model_folder")
    if folder is not None and folder.problem:
        return  # MOD002 reports it
    if run.model.init_from is not None:
        return  # the run takes the tokenizer of the other one
    if run.model.path is not None and run.model.init == "weights" and run.tokenizer.path is None:
        yield suggest(
            "tokenizer.path",
            f"`model.path` loads weights, and a {run.tokenizer.vocab_size}-token BPE would be trained for them",
            run.model.path,
        )


@facts_rule("TOK004", Severity.ERROR, needs=("tokenizer_folder", "model_folder"))
def more_tokens_than_embeddings(run: RunSpec, facts: Facts) -> Problems:
    """The model of a folder must embed every token of the tokenizer.

    a token beyond the embedding has no row to look up

    Source: torch, nn.Embedding (num_embeddings rows).

    Bad:
        [model]
        path = "models/mine"
        init = "random"
        [tokenizer]
        path = "tokenizers/mine"
        [facts.tokenizer_folder]
        vocab_size = 151936
    Good:
        [model]
        path = "models/mine"
        init = "random"
        [tokenizer]
        path = "tokenizers/mine"
        [facts.tokenizer_folder]
        vocab_size = 32000
    """
    model, tokenizer = known(facts.model_folder), known(facts.tokenizer_folder)
    if model is None or model.architecture is None:
        return
    tokens = run.tokenizer.vocab_size if tokenizer is None else tokenizer.vocab_size
    embedded = model.architecture.vocab_size
    if tokens is not None and tokens > embedded:
        at = "tokenizer.vocab_size" if tokenizer is None else "tokenizer.path"
        yield Problem(at, f"{tokens} tokens, and {model.path} embeds {embedded}", fix="take the model's own tokenizer")


@facts_rule("TOK005", Severity.ERROR, needs=("tokenizer_folder",))
def tokenizer_without_chat_template(run: RunSpec, facts: Facts) -> Problems:
    """The tokenizer of a run on chats must have a chat template.

    only the template defines how roles and messages become tokens: another one than the model's own confuses it

    Source: transformers, tokenizer_config.json and chat_template.jinja.

    Bad (sft):
        [tokenizer]
        path = "tokenizers/base"
        [facts.tokenizer_folder]
        path = "tokenizers/base"
        has_chat_template = false
    Bad (rl):
        [tokenizer]
        path = "tokenizers/base"
        [facts.tokenizer_folder]
        path = "tokenizers/base"
        has_chat_template = false
    Good (sft):
        [tokenizer]
        path = "tokenizers/chat"
        [facts.tokenizer_folder]
        path = "tokenizers/chat"
        has_chat_template = true
    """
    folder = known(facts.tokenizer_folder)
    if run.run.kind not in ("sft", "rl") or folder is None or folder.problem or folder.has_chat_template is not False:
        return
    yield Problem(
        "tokenizer.path",
        f"{folder.path}: neither chat_template.jinja nor a chat_template in tokenizer_config.json",
        fix="the tokenizer of the instruct version of the model, or a chat_template.jinja in that folder",
    )
