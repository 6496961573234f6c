"""Data sources and tokenizers that cannot be read as written. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.findings import Problem, Severity
from prime_train.rules.base import if_known, rule, sharper_rule
from prime_train.spec import RunSpec, Source, Tokenizer

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_SUM_TOLERANCE = 1e-6  # what is lost by writing thirds with seven digits


@rule("DAT001", Severity.ERROR)
def sampling_probs_wrong(run: RunSpec) -> Iterator[Problem]:
    """sampling_probs must have one entry per source and sum to 1.

    the draw between sources needs a probability for each of them, and for nothing else

    Source: trainer/data/order.py (a draw between the sources).

    Bad:
        [data]
        sampling_probs = [0.5, 0.5]
    Bad:
        [data]
        sampling_probs = [0.9]
    Bad:
        [data]
        sampling_probs = [0.0]
    Good:
        [data]
        sampling_probs = [0.3, 0.7]
        [[data.sources]]
        kind = "python-stdlib"
        [[data.sources]]
        kind = "files"
        path = "corpus/*.txt"
    """
    probs, sources = run.data.sampling_probs, len(run.data.sources)
    if probs is None:
        return
    total = math.fsum(probs)
    if len(probs) != sources:
        yield Problem(
            "data.sampling_probs",
            f"{len(probs)} probabilities for {sources} source{'s' if sources != 1 else ''}",
            fix="one per source, or take it out to draw in proportion to their documents",
            patch={"data.sampling_probs": None},
        )
    elif abs(total - 1) > _SUM_TOLERANCE:
        normal = [prob / total for prob in probs] if total else [1 / sources] * sources
        yield Problem("data.sampling_probs", f"they sum to {total:g}, not to 1", patch={"data.sampling_probs": normal})


@rule("DAT002", Severity.ERROR)
def source_path(run: RunSpec) -> Iterator[Problem]:
    """`files` and `hf-dataset` need a path; `python-stdlib` takes none.

    without a path there is nothing to read

    A path beside `python-stdlib` is a warning: it is not read.

    Source: trainer/data/sources.py.

    Bad:
        [[data.sources]]
        kind = "files"
    Bad:
        [[data.sources]]
        kind = "python-stdlib"
        path = "corpus/"
    Good:
        [[data.sources]]
        kind = "files"
        path = "corpus/*.jsonl"
    """
    for number, source in enumerate(run.data.sources):
        at = f"data.sources.{number}"
        match source:
            case Source(kind="python-stdlib", path=str()):
                yield Problem(
                    f"{at}.path",
                    'kind = "python-stdlib" reads the interpreter\'s own files and no path',
                    why="what stands there is not read",
                    fix='take the path out, or kind = "files"',
                    patch={f"{at}.path": None},
                    safe=True,
                    severity=Severity.WARNING,
                )
            case Source(kind="files" | "hf-dataset", path=None | ""):
                example = "corpus/*.jsonl" if source.kind == "files" else "HuggingFaceFW/fineweb-edu"
                yield Problem(f"{at}.path", f'kind = "{source.kind}" has no path', fix=f'path = "{example}", say')
            case _:
                pass


@rule("TOK002", Severity.WARNING)
def vocab_size_unused(run: RunSpec) -> Iterator[Problem]:
    """vocab_size counts only where a tokenizer is trained.

    a tokenizer folder brings its own vocabulary

    Source: trainer/tokenizer.py.

    Bad:
        [tokenizer]
        path = "tokenizers/mine"
        vocab_size = 8192
    Good:
        [tokenizer]
        path = "tokenizers/mine"
    """
    if (
        run.tokenizer.path is not None
        and run.tokenizer.vocab_size != Tokenizer.__dataclass_fields__["vocab_size"].default
    ):
        yield Problem(
            "tokenizer.vocab_size",
            f"{run.tokenizer.vocab_size} is not used: `tokenizer.path` is set",
            fix="take it out",
            patch={"tokenizer.vocab_size": None},
            safe=True,
        )


@sharper_rule("TOK003", Severity.WARNING, uses=("model_folder",))
def weights_without_their_tokenizer(run: RunSpec, facts: Facts | None) -> Iterator[Problem]:
    """Loaded weights need the tokenizer they were trained with.

    every embedding belongs to one token: under another vocabulary what was learnt is noise

    Source: trainer/hf.py (weights are loaded by row of the embedding).

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
        return  # there are no weights to load, and MOD002 says so
    if run.model.path is not None and run.model.init == "weights" and run.tokenizer.path is None:
        yield Problem(
            "tokenizer.path",
            f"`model.path` loads weights, and a {run.tokenizer.vocab_size}-token BPE would be trained for them",
            patch={"tokenizer.path": run.model.path},
        )
