"""Data sources that cannot be read, or not as written. Pure: the facts are given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, known, lacks, rule, suggest
from prime_train.spec import RunSpec, Source

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_PATHS = {"files": "corpus/*.jsonl", "hf-dataset": "HuggingFaceFW/fineweb-edu", "tokens": "fineweb/*.bin"}
_SUM_TOLERANCE = 1e-6  # the rounding error of thirds written with seven digits


@rule("DAT001", Severity.ERROR)
def sampling_probs_wrong(run: RunSpec) -> Problems:
    """sampling_probs must have one entry per source and sum to 1.

    each source is drawn with a probability of its own

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
        yield suggest(
            "data.sampling_probs",
            f"{len(probs)} probabilities for {sources} source{'s' if sources != 1 else ''}",
            None,
            fix="one per source, or take it out to draw each source in proportion to its documents",
        )
    elif abs(total - 1) > _SUM_TOLERANCE:
        normal = [prob / total for prob in probs] if total else [1 / sources] * sources
        yield suggest("data.sampling_probs", f"they sum to {total:g}, not to 1", normal)


@rule("DAT002", Severity.ERROR)
def source_path(run: RunSpec) -> Problems:
    """`files`, `hf-dataset` and `tokens` need a path; `python-stdlib` takes none.

    without a path there is nothing to read

    A path beside `python-stdlib` is a warning, because it is not read.

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
    for at, source in _list_sources(run):
        match source:
            case Source(kind="python-stdlib", path=str()):
                yield suggest(
                    f"{at}.path",
                    'kind = "python-stdlib" reads the interpreter\'s own files and no path',
                    None,
                    why="the path is not read",
                    fix='take the path out, or kind = "files"',
                    safe=True,
                    severity=Severity.WARNING,
                )
            case Source(kind="files" | "hf-dataset" | "tokens", path=None | ""):
                yield lacks(at, source.kind, "path", f'path = "{_PATHS[source.kind]}"')


def _list_sources(run: RunSpec) -> Iterator[tuple[str, Source]]:
    """(RunSpec field, source) of the training data and of each set of text that is measured."""
    for number, source in enumerate(run.data.sources):
        yield f"data.sources.{number}", source
    for number, one in enumerate(run.eval.sets):
        for place, source in enumerate(one.sources):
            yield f"eval.sets.{number}.sources.{place}", source


@facts_rule("DAT003", Severity.ERROR, needs=("source_files",))
def source_unreadable(_run: RunSpec, facts: Facts) -> Problems:
    """The files of a data source must exist, be readable, and not be empty.

    the training ends before its first step if what it loads is not there, or has no text

    Source: trainer/data/sources.py.

    Bad:
        [[data.sources]]
        kind = "files"
        path = "corpus/*.txt"
        [[facts.source_files]]
        path = "corpus/*.txt"
        problem = "no .txt, .jsonl or .parquet file matches"
    Good:
        [[data.sources]]
        kind = "files"
        path = "corpus/*.txt"
        [[facts.source_files]]
        path = "corpus/*.txt"
        files = 12
    Bad (prime-rl 2026-08 sft):
        [data]
        name = "data/chats.jsonl"
        [[facts.source_files]]
        field = "finetune.data_name"
        path = "data/chats.jsonl"
        problem = "there is no such file or folder"
    """
    for found in known(facts.source_files):
        if found.problem:
            relative = "correct the path: it is relative to the working directory"
            fix = f"chmod -R u+rX {found.path}" if found.is_denied else relative
            at = found.field or f"data.sources.{found.source}.path"
            yield Problem(at, f"{found.path}: {found.problem}", fix=fix)


@rule("DAT004", Severity.ERROR)
def tokens_without_tokenizer(run: RunSpec) -> Problems:
    """Ready-made tokens need the tokenizer that wrote them: `tokenizer.path`.

    without it the run trains a tokenizer of its own, which needs text and has other tokens

    The trainer refuses files that another tokenizer wrote, as far as their header and tokens show it.

    Source: trainer/data/token_files.py.

    Bad:
        [[data.sources]]
        kind = "tokens"
        path = "fineweb/*.bin"
    Good:
        [[data.sources]]
        kind = "tokens"
        path = "fineweb/*.bin"
        [tokenizer]
        path = "./gpt2"
    """
    if run.tokenizer.path is None:
        for at, source in _list_sources(run):
            if source.kind == "tokens":
                fix = '`tokenizer.path` = the folder of their tokenizer, for example "./gpt2"'
                yield Problem(f"{at}.kind", "the run has no tokenizer for its tokens", fix=fix)


@rule("DAT005", Severity.WARNING)
def data_setting_unused(run: RunSpec) -> Problems:
    """`sampling_unit` counts `sampling_probs` of several sources; `document_start` is of documents of text.

    the setting has no effect

    Without sampling_probs each document is drawn once per epoch, which is in proportion to tokens, too. A chat begins
    as its template has it, and a run with kind `rl` draws tasks.

    Source: trainer/data/stream.py, trainer/data/corpus.py.

    Bad:
        [data]
        sampling_unit = "tokens"
    Bad (sft):
        [data]
        document_start = "eos"
    Good:
        [data]
        sampling_unit = "tokens"
        sampling_probs = [0.3, 0.7]
        document_start = "eos"
        [[data.sources]]
        kind = "python-stdlib"
        [[data.sources]]
        kind = "files"
        path = "corpus/*.txt"
    """
    data, kind = run.data, run.run.kind
    if data.sampling_unit == "tokens" and (data.sampling_probs is None or len(data.sources) < 2 or kind == "rl"):
        what = "a run of kind rl draws tasks" if kind == "rl" else "there are no sampling_probs of several sources"
        yield suggest("data.sampling_unit", what, None, fix="take it out, or set sampling_probs")
    if data.document_start != "none" and kind != "pretrain":
        what = f"a run of kind {kind} has no documents of text"
        yield suggest("data.document_start", what, None, fix="take it out", safe=True)
