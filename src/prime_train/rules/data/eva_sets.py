"""Sets of text and benchmarks that a run cannot measure, or that measure nothing. Pure: the facts are given."""

from __future__ import annotations

import os.path
import re
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.core.installation import install_command
from prime_train.rules.rule import Problems, facts_rule, lacks, must_be_installed, rule, suggest
from prime_train.spec import Benchmark, RunSpec, Source
from prime_train.spec.answers import policy_of

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TAKEN = ("loss", "tokens", "step")  # eval/loss, eval/tokens and eval/step are those of the held-out text


@rule("EVA006", Severity.ERROR)
def set_is_trained_on(run: RunSpec) -> Problems:
    """A set of eval.sets must not be text that the run trains on.

    the loss on text that the model was trained on does not show how it does on other text

    The trainer also compares the files, and the documents of sources that are tokenised in advance.

    Source: trainer/evaluation/eval_sets.py.

    Bad:
        [[data.sources]]
        kind = "files"
        path = "corpus/*.jsonl"
        [[eval.sets]]
        name = "books"
        sources = [{kind = "files", path = "corpus/books.jsonl"}]
    Bad:
        [[eval.sets]]
        name = "code"
        sources = [{kind = "python-stdlib"}]
    Good:
        [[data.sources]]
        kind = "files"
        path = "corpus/*.jsonl"
        [[eval.sets]]
        name = "books"
        sources = [{kind = "files", path = "held-out/books.jsonl"}]
    """
    for number, one in enumerate(run.eval.sets):
        for place, source in enumerate(one.sources):
            for trained in run.data.sources:
                if _is_part(source, trained):
                    named = f" with path {trained.path}" if trained.path else ""
                    yield Problem(
                        f"eval.sets.{number}.sources.{place}",
                        f"the run trains on it: data.sources has kind {trained.kind}{named}",
                        fix="take it out of one of them; held-out text of data.sources has a loss of its own",
                    )


def _is_part(source: Source, trained: Source) -> bool:
    """Whether the text of `source` is known to be text of `trained`, by their paths alone."""
    if source.kind != trained.kind:
        return False
    if source.kind not in ("files", "tokens"):
        return (source.path, source.subset, source.split) == (trained.path, trained.subset, trained.split)
    if not source.path or not trained.path:
        return False
    inner, outer = (os.path.normpath(os.path.expanduser(path)) for path in (source.path, trained.path))  # noqa: PTH111
    return inner == outer or inner.startswith(f"{outer}/") or fnmatchcase(inner, outer)


@rule("EVA007", Severity.ERROR)
def names_of_evaluations(run: RunSpec) -> Problems:
    """Each set and benchmark needs a name of its own: letters, digits, dots, hyphens, underscores.

    metrics are called eval/NAME/METRIC, and one would overwrite the other

    Source: events/trainer_events.py, Measured.

    Bad:
        [[eval.sets]]
        name = "my text"
        sources = [{kind = "files", path = "held-out/a.txt"}]
    Bad:
        [[eval.benchmarks]]
        kind = "hellaswag"
        path = "hellaswag_val.jsonl"
        [[eval.benchmarks]]
        kind = "hellaswag"
        path = "hellaswag_test.jsonl"
    Good:
        [[eval.benchmarks]]
        kind = "hellaswag"
        path = "hellaswag_val.jsonl"
        [[eval.benchmarks]]
        kind = "hellaswag"
        path = "hellaswag_test.jsonl"
        name = "hellaswag-test"
    """
    names = [(f"eval.sets.{number}.name", one.name) for number, one in enumerate(run.eval.sets)]
    names += [
        (f"eval.benchmarks.{number}.{'name' if one.kind == 'hellaswag' else 'task'}", _name(one))
        for number, one in enumerate(run.eval.benchmarks)
        if _name(one)
    ]
    counts = Counter(name for _, name in names)
    for at, name in names:
        if not _NAME.fullmatch(name) or name in _TAKEN:
            taken = "the name of another metric" if name in _TAKEN else "not of letters, digits, dots, - and _"
            yield Problem(at, f'"{name}" is {taken}', fix='for example "wiki" or "books-2024"')
        elif counts[name] > 1:
            yield Problem(
                at, f'"{name}" is the name of {counts[name]} evaluations', fix=f'"{name}-2", or leave one out'
            )


def _name(one: Benchmark) -> str:
    return (one.task or "") if one.kind == "lm-eval" else one.name or one.kind


@rule("EVA008", Severity.ERROR)
def benchmark_incomplete(run: RunSpec) -> Problems:
    """`hellaswag` needs the path of its file, `lm-eval` a task; each takes only its own keys.

    nothing is loaded from the network unless the config asks for it

    A key that its kind does not use is a warning.

    Source: trainer/benchmarks/.

    Bad:
        [[eval.benchmarks]]
        kind = "hellaswag"
    Bad:
        [[eval.benchmarks]]
        kind = "lm-eval"
    Bad:
        [[eval.benchmarks]]
        kind = "hellaswag"
        path = "hellaswag_val.jsonl"
        shots = 5
    Good:
        [[eval.benchmarks]]
        kind = "lm-eval"
        task = "arc_easy"
        shots = 5
        download = true
    """
    for number, one in enumerate(run.eval.benchmarks):
        at = f"eval.benchmarks.{number}"
        if one.kind == "hellaswag":
            if not one.path:
                example = 'path = "hellaswag_val.jsonl", the file of https://rowanzellers.com/hellaswag'
                yield lacks(at, one.kind, "path", example)
            unused = {"task": one.task, "shots": one.shots, "download": one.download or None}
        else:
            if not one.task:
                yield lacks(at, one.kind, "task", 'task = "arc_easy"')
            unused = {"name": one.name}
        for key, value in unused.items():
            if value is not None:
                yield suggest(
                    f"{at}.{key}",
                    f'kind = "{one.kind}" does not use {key}',
                    None,
                    why="the value has no effect",
                    fix="take it out",
                    severity=Severity.WARNING,
                )


@rule("EVA009", Severity.WARNING)
def evaluation_of_no_text(run: RunSpec) -> Problems:
    """A run of kind `rl` measures no eval.sets and no eval.benchmarks.

    its evaluations pose the held-out tasks of [[tasks]], and nothing else

    Source: trainer/loops/grpo.py.

    Bad (rl):
        [[eval.benchmarks]]
        kind = "hellaswag"
        path = "hellaswag_val.jsonl"
    Good:
        [[eval.benchmarks]]
        kind = "hellaswag"
        path = "hellaswag_val.jsonl"
    """
    if policy_of(run) is None:
        return
    for key, given in (("sets", run.eval.sets), ("benchmarks", run.eval.benchmarks)):
        if given:
            yield suggest(f"eval.{key}", 'run.kind = "rl" does not measure them', None, fix="take them out")


@facts_rule("EVA010", Severity.ERROR, needs=("part_packages",))
def lm_eval_not_installed(_run: RunSpec, facts: Facts) -> Problems:
    """A benchmark of kind `lm-eval` needs the `eval` extra in the interpreter of the trainer.

    the trainer ends before its first step

    Source: trainer/evaluation/lm_eval_tasks.py.

    Bad:
        [[eval.benchmarks]]
        kind = "lm-eval"
        task = "arc_easy"
        [[facts.part_packages]]
        field = "eval.benchmarks.0.kind"
        package = "lm-eval"
        python = "/venv/bin/python"
        fault = "it is not installed"
    Good:
        [[eval.benchmarks]]
        kind = "lm-eval"
        task = "arc_easy"
        [[facts.part_packages]]
        field = "eval.benchmarks.0.kind"
        package = "lm-eval"
        python = "/venv/bin/python"
    """
    yield from must_be_installed(facts, "eval.benchmarks.", lambda _: install_command("eval"))
