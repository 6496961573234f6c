"""The local files that a config names: model, tokenizer, data. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.architecture import KNOWN_MODEL_TYPES
from prime_train.findings import Problem, Severity
from prime_train.rules.base import facts_rule, known
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts


@facts_rule("MOD002", Severity.ERROR, needs=("model_folder",))
def model_folder_unusable(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """model.path must be a Hugging Face folder of a model that the trainer computes.

    the trainer takes its sizes, and its weights, from there

    These are models of type llama and qwen3.

    Source: trainer/hf_config.py (the model types that it maps).

    Bad:
        [model]
        path = "models/gone"
        init = "random"
        [facts.model_folder]
        path = "models/gone"
        problem = "there is no such folder"
    Bad:
        [model]
        path = "models/gpt2"
        init = "random"
        [facts.model_folder]
        path = "models/gpt2"
        model_type = "gpt2"
    Good:
        [model]
        path = "models/mine"
        init = "random"
        [facts.model_folder]
        path = "models/mine"
        model_type = "llama"
    """
    folder = known(facts.model_folder)
    if folder is None:
        return
    if folder.problem:
        fix = f"download one there (hf download OWNER/NAME --local-dir {folder.path}), or correct the path"
        yield Problem("model.path", f"{folder.path}: {folder.problem}", fix=fix)
    elif folder.model_type not in KNOWN_MODEL_TYPES:
        legal = " or ".join(KNOWN_MODEL_TYPES)
        what = f'{folder.path}: model_type is "{folder.model_type}", not {legal}'
        yield Problem("model.path", what, fix=f"take a model of type {legal}")
    elif folder.architecture is None:
        yield Problem(
            "model.path", f"{folder.path}: config.json lacks a size of the model", fix="download the folder again"
        )
    elif run.model.init == "weights" and not folder.has_weights:
        yield Problem(
            "model.path",
            f"{folder.path}: it has no model.safetensors",
            fix='download the weights too, or `model.init` = "random" to train from scratch',
        )


@facts_rule("TOK001", Severity.ERROR, needs=("tokenizer_folder",))
def tokenizer_folder_unusable(_run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """tokenizer.path must be a Hugging Face tokenizer folder.

    without its tokenizer no text becomes tokens

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
        path = "tokenizers/mine"
        vocab_size = 32000
    """
    folder = known(facts.tokenizer_folder)
    if folder is not None and folder.problem:
        yield Problem(
            "tokenizer.path",
            f"{folder.path}: {folder.problem}",
            fix="correct the path, or take it out to train a tokenizer on the data",
        )


@facts_rule("TOK004", Severity.ERROR, needs=("tokenizer_folder", "model_folder"))
def more_tokens_than_embeddings(run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The model of a folder must embed every token of the tokenizer.

    a token beyond the embedding has no row to look up

    Source: torch, nn.Embedding (num_embeddings rows).

    Bad:
        [model]
        path = "models/mine"
        init = "random"
        [tokenizer]
        path = "tokenizers/mine"
        [facts.model_folder]
        path = "models/mine"
        [facts.tokenizer_folder]
        path = "tokenizers/mine"
        vocab_size = 151936
    Good:
        [model]
        path = "models/mine"
        init = "random"
        [tokenizer]
        path = "tokenizers/mine"
        [facts.model_folder]
        path = "models/mine"
        [facts.tokenizer_folder]
        path = "tokenizers/mine"
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


@facts_rule("DAT003", Severity.ERROR, needs=("source_files",))
def source_unreadable(_run: RunSpec, facts: Facts) -> Iterator[Problem]:
    """The files of a data source must be there, readable, and not empty.

    the trainer ends before its first step where a source has no text

    Source: trainer/data/sources.py.

    Bad:
        [[data.sources]]
        kind = "files"
        path = "corpus/*.txt"
        [[facts.source_files]]
        source = 0
        path = "corpus/*.txt"
        problem = "no .txt, .jsonl or .parquet file matches"
    Good:
        [[data.sources]]
        kind = "files"
        path = "corpus/*.txt"
        [[facts.source_files]]
        source = 0
        path = "corpus/*.txt"
        files = 12
    """
    for found in known(facts.source_files):
        if found.problem:
            fix = "correct the path: it is relative to the working directory"
            if "may not be read" in found.problem:
                fix = f"chmod -R u+rX {found.path}"
            yield Problem(f"data.sources.{found.source}.path", f"{found.path}: {found.problem}", fix=fix)
