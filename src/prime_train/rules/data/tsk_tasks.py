"""Tasks that no environment poses as written, or that teach nothing. Pure: the facts are given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prime_train.core.findings import Problem, Severity
from prime_train.environments.arguments import find_faults
from prime_train.rules.rule import Problems, facts_rule, known, lacks, must_be_installed, rule, suggest
from prime_train.spec import RunSpec
from prime_train.spec.rl import TaskSource

if TYPE_CHECKING:
    from prime_train.facts.facts import Facts, PartPackage

_VERIFIERS = "verifiers"
_TOOL_TURNS = 2  # the call of the tool, and the answer


@rule("TSK001", Severity.ERROR)
def taskset_not_named(run: RunSpec) -> Problems:
    """Tasks of kind `verifiers` need an id; the built-in kinds take none.

    a taskset is found by its id only: without one there is nothing to open

    An `id` or a `python` beside a built-in kind is a warning, because it is not read.

    Source: environments/load.py.

    Bad (rl):
        [rl]
        warmup_steps = 0
        [model]
        path = "models/mine"
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 1e-6
        [[tasks]]
        kind = "verifiers"
    Bad (rl):
        [[tasks]]
        kind = "reverse-text"
        id = "primeintellect/reverse-text"
    Good (rl):
        [[tasks]]
        kind = "sort-digits"
    """
    for at, source in _tasks(run):
        if source.kind == _VERIFIERS:
            if not source.id:
                example = 'id = "gsm8k", an installed module, or the folder of your taskset'
                yield lacks(at, source.kind, "id", example)
            continue
        for name in ("id", "python"):
            if getattr(source, name) is not None:
                yield suggest(
                    f"{at}.{name}",
                    f'kind = "{source.kind}" is built in and has no {name}',
                    None,
                    why="it is not read",
                    fix='take it out, or kind = "verifiers"',
                    severity=Severity.WARNING,
                    safe=True,
                )


@rule("TSK002", Severity.ERROR)
def task_arguments_wrong(run: RunSpec) -> Problems:
    """The arguments of a built-in environment must be ones that it has, within their bounds.

    the environment refuses to open, and the trainer ends before its first step

    Source: environments/arguments.py.

    Bad (rl):
        [[tasks]]
        kind = "reverse-text"
        arguments = {max_leters = 5}
    Bad (rl):
        [[tasks]]
        kind = "reverse-text"
        arguments = {max_letters = "five"}
    Bad (rl):
        [[tasks]]
        kind = "sort-digits"
        arguments = {min_digits = 8, max_digits = 4}
    Good (rl):
        [[tasks]]
        kind = "reverse-text"
        arguments = {max_letters = 5}
    """
    for at, source in _tasks(run):
        for fault in find_faults(source):
            yield Problem(f"{at}.arguments.{fault.name}", fault.what, fault.fix, why=fault.why)


@facts_rule("TSK003", Severity.ERROR, needs=("part_packages",))
def taskset_not_installed(_run: RunSpec, facts: Facts) -> Problems:
    """The interpreter of a taskset must have verifiers and the taskset.

    the environment's process ends at the import, and no rollout gets a reward

    Source: verifiers 0.4, verifiers.v1 (a taskset is an importable module or a folder).

    Bad (rl):
        [rl]
        warmup_steps = 0
        [model]
        path = "models/mine"
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 1e-6
        [[tasks]]
        kind = "verifiers"
        id = "gsm8k"
        [[facts.part_packages]]
        field = "tasks.0.id"
        package = "gsm8k"
        python = "/venv/bin/python"
        fault = "it is not installed"
    Good (rl):
        [[facts.part_packages]]
        field = "tasks.0.id"
        package = "gsm8k"
        python = "/venv/bin/python"
    """
    yield from must_be_installed(facts, "tasks.", _fix)


def _fix(part: PartPackage) -> str:
    elsewhere = "tasks.python = an interpreter that has it"
    if "does not start" in part.fault:
        return "tasks.python = the path of an interpreter that has verifiers 0.4"
    if part.package == _VERIFIERS:
        return f"{part.python} -m pip install 'verifiers>=0.4,<0.5'; or {elsewhere}"
    if "there is no" in part.fault:
        return "correct the path, or create a taskset there: vf-init"
    return f"install the taskset into {part.python}, or `id` = its folder; or {elsewhere}"


@rule("TSK004", Severity.ERROR)
def demonstrations_of_no_task(run: RunSpec) -> Problems:
    """Demonstrations need a run with kind `sft` and tasks that an environment can show solved.

    a demonstration is a task with its solution: without such tasks there is nothing to learn from

    The built-in environments can show all of their tasks solved, tasksets of verifiers none.

    Source: environments/environment.py, Environment.demonstrate.

    Bad (sft):
        [[data.sources]]
        kind = "demonstrations"
    Bad:
        [[data.sources]]
        kind = "demonstrations"
        [[tasks]]
        kind = "reverse-text"
    Good (sft):
        [[data.sources]]
        kind = "demonstrations"
        [[tasks]]
        kind = "reverse-text"
    """
    for number, source in enumerate(run.data.sources):
        if source.kind != "demonstrations":
            continue
        at = f"data.sources.{number}.kind"
        if run.run.kind != "sft":
            what = f'demonstrations are chats, and `run.kind` is "{run.run.kind}"'
            yield Problem(at, what, fix='`run.kind` = "sft"', why="only a run of kind sft trains on chats")
        elif not any(task.kind != _VERIFIERS for task in run.tasks):
            have = "none of [[tasks]] can be shown solved" if run.tasks else "the config has no [[tasks]]"
            yield Problem(at, have, fix='add [[tasks]] with kind = "reverse-text", for example')


@rule("TSK005", Severity.WARNING)
def too_few_turns_for_the_tool(run: RunSpec) -> Problems:
    """A task with a tool needs at least two turns of the model.

    the first turn calls the tool and the second one answers: with one turn every rollout ends before its answer

    Source: environments/calculator.py.

    Bad (rl):
        [data]
        ctx_tokens = 512
        [[tasks]]
        kind = "calculator"
        max_turns = 1
    Good (rl):
        [data]
        ctx_tokens = 512
        [[tasks]]
        kind = "calculator"
        max_turns = 4
    """
    for at, source in _tasks(run):
        if source.kind == "calculator" and source.max_turns < _TOOL_TURNS:
            yield suggest(f"{at}.max_turns", f"{source.max_turns} turn for a call and an answer", _TOOL_TURNS)


@rule("TSK006", Severity.ERROR)
def sources_without_chats(run: RunSpec) -> Problems:
    """A run with kind `sft` trains on chats: python-stdlib and ready-made tokens have none.

    a source file has no messages with roles, so no token of it is the assistant's

    Source: trainer/loops/work.py.

    Bad (sft):
        [[data.sources]]
        kind = "python-stdlib"
    Bad (sft):
        [[data.sources]]
        kind = "tokens"
        path = "fineweb/*.bin"
        [tokenizer]
        path = "gpt2"
    Good (sft):
        [[data.sources]]
        kind = "files"
        path = "chats/*.jsonl"
    """
    for number, source in enumerate(run.data.sources):
        if run.run.kind == "sft" and source.kind in ("python-stdlib", "tokens"):
            yield Problem(
                f"data.sources.{number}.kind",
                f"{source.kind} is text, not chats" if source.kind != "tokens" else "tokens have no roles, so no chats",
                fix='kind = "files" with .jsonl files of messages, or `run.kind` = "pretrain"',
            )


@facts_rule("TSK007", Severity.ERROR, needs=("tasksets",))
def taskset_does_not_open(_run: RunSpec, facts: Facts) -> Problems:
    """A taskset must open, and the reward of an answer must be a finite number.

    a taskset that does not open ends the run at its start, and a rollout without a reward teaches nothing

    Judged only with --deep, and by `run` before its first attempt: the taskset is opened in its interpreter, and the
    answer "0" to its first task is scored. A reward that fails is a warning, because it may depend on the answer.

    Source: environments/verifiers.py.

    Bad (rl):
        [rl]
        warmup_steps = 0
        [model]
        path = "models/mine"
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 1e-6
        [[tasks]]
        kind = "verifiers"
        id = "gsm8k"
        [[facts.tasksets]]
        field = "tasks.0.id"
        fault = "RuntimeError: no data"
        fix = "correct gsm8k.py, line 12"
    Bad (rl):
        [rl]
        warmup_steps = 0
        [model]
        path = "models/mine"
        [tokenizer]
        path = "models/mine"
        [optim]
        lr = 1e-6
        [[tasks]]
        kind = "verifiers"
        id = "gsm8k"
        [[facts.tasksets]]
        field = "tasks.0.id"
        reward_fault = "it is nan"
    Good (rl):
        [[facts.tasksets]]
        field = "tasks.0.id"
    """
    for trial in known(facts.tasksets):
        if trial.fault:
            yield Problem(trial.field, f"it cannot be opened: {trial.fault}", fix=trial.fix)
        elif trial.reward_fault:
            yield Problem(
                trial.field,
                f'the answer "0" to its first task has no reward: {trial.reward_fault}',
                why="a rollout without a finite reward is not trained on, and too many of them end the run",
                fix=trial.fix or "return a finite number for every answer",
                severity=Severity.WARNING,
            )


def _tasks(run: RunSpec) -> Iterator[tuple[str, TaskSource]]:
    """(RunSpec field, environment) of each of [[tasks]]."""
    yield from ((f"tasks.{number}", source) for number, source in enumerate(run.tasks))
