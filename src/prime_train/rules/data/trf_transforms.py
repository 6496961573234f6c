"""Functions that change documents: names, sources and what a trial of them found. Pure: the facts are given."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.rules.rule import Problems, facts_rule, known, rule, suggest
from prime_train.spec import RunSpec

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


@rule("TRF001", Severity.ERROR)
def transform_not_allowed(run: RunSpec) -> Problems:
    """Each of `transforms` must be one of `allowed_transforms`, which are written `"module:function"`.

    only code that the config names is imported, and a change while the run trains names nothing else

    Source: trainer/data/transforms.py.

    Bad:
        [data]
        transforms = ["cleaning:lower_case"]
    Bad:
        [data]
        allowed_transforms = ["cleaning.py"]
    Good:
        [data]
        transforms = ["cleaning:lower_case"]
        allowed_transforms = ["cleaning:lower_case", "cleaning:no_links"]
    """
    data = run.data
    for number, name in enumerate(data.allowed_transforms):
        if not _NAME.fullmatch(name):
            example = f'write "module:function", for example "{name.partition(".")[0] or "cleaning"}:lower_case"'
            yield Problem(f"data.allowed_transforms.{number}", f'"{name}" names no function of a module', example)
    missing = [name for name in data.transforms if name not in data.allowed_transforms]
    if missing:
        yield suggest(
            "data.transforms",
            f"{', '.join(missing)} is not in `data.allowed_transforms`",
            [name for name in data.transforms if name in data.allowed_transforms],
            fix="add it to `data.allowed_transforms`, or take it out",
        )


@rule("TRF002", Severity.ERROR)
def transforms_without_documents(run: RunSpec) -> Problems:
    """Transformations change documents of text: chats, tasks and ready-made tokens have none.

    the trainer would have no text to hand to the functions

    Source: trainer/data/corpus.py.

    Bad (sft):
        [data]
        transforms = ["cleaning:lower_case"]
        allowed_transforms = ["cleaning:lower_case"]
    Bad:
        [data]
        transforms = ["cleaning:lower_case"]
        allowed_transforms = ["cleaning:lower_case"]
        [[data.sources]]
        kind = "tokens"
        path = "fineweb/*.bin"
        [tokenizer]
        path = "gpt2"
    Good:
        [data]
        transforms = ["cleaning:lower_case"]
        allowed_transforms = ["cleaning:lower_case"]
    """
    for key in ("transforms", "allowed_transforms"):
        if not getattr(run.data, key):
            continue
        if run.run.kind != "pretrain":
            yield suggest(f"data.{key}", f'`run.kind` is "{run.run.kind}", and only pretrain reads documents', None)
        elif any(source.kind == "tokens" for source in run.data.sources):
            yield suggest(f"data.{key}", "a source has ready-made tokens", None)


@facts_rule("TRF003", Severity.ERROR, needs=("transforms",))
def transform_fails(_run: RunSpec, facts: Facts) -> Problems:
    """Each of `allowed_transforms` must be a function that returns a text for the first documents.

    the run would end at the first document that the function fails on

    Judged only with --deep, and by `run` before its first attempt, because it runs the functions, in a child.

    Source: trainer/data/transforms.py.

    Bad:
        [data]
        allowed_transforms = ["cleaning:lower_case"]
        [[facts.transforms]]
        field = "data.allowed_transforms.0"
        where = "corpus/a.txt: record 1"
        what = "cleaning:lower_case failed: KeyError: 'title'"
        why = "a transformation takes each document, and returns a text"
        fix = "correct the function"
    Good:
        [data]
        allowed_transforms = ["cleaning:lower_case"]
        [[facts.transforms]]
        field = "data.allowed_transforms.0"
    """
    for trial in known(facts.transforms):
        if trial.what:
            yield Problem(trial.field, f"{trial.what} ({trial.where})", trial.fix, why=trial.why)
