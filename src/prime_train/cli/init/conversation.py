"""Asks for the flags that are not given, one question after another, with a way back. Writes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import questionary
import typer
from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings

from prime_train.choose.wishes import TASKS
from prime_train.choose.workload import environment_names, find_workload
from prime_train.cli.estimate.inputs import EstimateOptions, find_gpus
from prime_train.cli.init.answers import (
    CHEAPEST,
    Flags,
    ReadAnswers,
    check_task,
    find_shape,
    list_models,
    parse_place,
    read_environment,
)
from prime_train.cli.init.preview import JudgedConfig, show
from prime_train.cli.init.records import look_at_data
from prime_train.cli.init.verdict import describe_model
from prime_train.cli.terminal.render import message
from prime_train.core.errors import UserError
from prime_train.core.units import GIB

_BACK = object()
_KEYS = "(Esc: back, Ctrl-C: stop)"
_TASKS = {"pretrain": "pretraining on text", "sft": "fine-tuning on chats (SFT)", "rl": "learning from rewards (RL)"}
_AUDIO = "audio (not trained yet: a trainer of yours can be supervised with --command)"
_WRITE, _AGAIN = "write it", "change an answer"

Converse = tuple[ReadAnswers, JudgedConfig]
Choose = Callable[[Flags], Converse]


class Asked(NamedTuple):
    """One question. `flag` is the field that it sets, `is_open` whether it is asked after these answers.

    `look` describes an answer, or raises UserError for one that cannot be used; then the question comes again.
    """

    flag: str
    ask: Callable[[], Any]
    is_open: Callable[[Flags], bool]
    look: Callable[[Flags], str]
    read: Callable[[str], Any] = str.strip


def converse(given: Flags, choose: Choose) -> Converse:
    """The answers, and the config that the user agreed to write. Raises KeyboardInterrupt for Ctrl-C.

    Flags of the command line are not asked for; their questions are skipped on the way back, too.
    """
    flags, at = given, 0
    questions = [one for one in _questions() if not _is_given(given, one.flag)]
    while True:
        flags = _ask_all(questions, flags, at)
        try:
            answered, judged = choose(flags)
        except UserError as error:
            typer.echo(message(error, sys.stderr), err=True)
        else:
            typer.echo(f"{judged.chosen.text}\n{show(judged)}\n", err=True)
            if _ask(questionary.select(f"Write it? {_KEYS}", [_WRITE, _AGAIN])) == _WRITE:
                return answered, judged
        at = len(questions) - 1


def _is_given(flags: Flags, flag: str) -> bool:
    return bool(getattr(flags, flag) != Flags._field_defaults[flag])


def _ask_all(questions: list[Asked], flags: Flags, at: int) -> Flags:
    """The flags after the questions from `at` on. Escape leads to the question before."""
    step = 1
    while at < len(questions):
        question = questions[at]
        if question.is_open(flags):
            answer = _ask(question.ask())
            step = -1 if answer is _BACK else 1
            if step > 0:
                step, flags = _take(question, _set(flags, question.flag, question.read(answer)), flags)
        at = max(0, at + step)
        if at == 0 and not questions[0].is_open(flags):
            step = 1
    return flags


def _set(flags: Flags, name: str, value: Any) -> Flags:
    return Flags(**{**flags._asdict(), name: value})


def _take(question: Asked, wanted: Flags, before: Flags) -> tuple[int, Flags]:
    """(step to the next question, flags) of an answer; (0, as before) for one that cannot be used."""
    try:
        line = question.look(wanted)
    except UserError as error:
        typer.echo(message(error, sys.stderr), err=True)
        return 0, before
    if line:
        typer.echo(line, err=True)
    return 1, wanted


def _ask(question: Any) -> Any:
    """The answer; _BACK for Escape. Raises KeyboardInterrupt for Ctrl-C."""
    keys = KeyBindings()

    @keys.add("escape", eager=True)  # else it waits for the rest of a longer key
    def _back(event: Any) -> None:
        event.app.exit(result=_BACK)

    bound = question.application.key_bindings
    question.application.key_bindings = merge_key_bindings([bound, keys] if bound is not None else [keys])
    return question.unsafe_ask()


def _questions() -> Iterator[Asked]:
    """The questions in their order."""

    def always(_: Flags) -> bool:
        return True

    def is_rl(flags: Flags) -> bool:
        return flags.task == "rl"

    def is_unknown(flags: Flags) -> bool:
        return is_rl(flags) and flags.env is not None and find_workload(flags.env) is None

    yield Asked("task", _ask_task, always, lambda flags: check_task(flags.task or "") and "")
    names = list_models()
    yield Asked("model", lambda: _text("Which model: a folder, or a name on the hub?", names), always, _look_at_model)
    gpus = "Which GPUs: here, 1xrtx4090, 8xh100-80gb, 2x8xh100, or cheapest?"
    yield Asked("gpus", lambda: _text(gpus, ["here", CHEAPEST], "here"), always, _look_at_gpus)
    yield Asked("env", lambda: _text("Which environment?", environment_names(), "reverse-text"), is_rl, _look_at_env)
    yield Asked("turns", lambda: _select("How many answers has a rollout?", ["single", "multi"]), is_unknown, _nothing)
    tools = ["none", "local", "sandbox", "service"]
    yield Asked("tools", lambda: _select("Where do its tools run?", tools), is_unknown, _look_at_env)
    data = "Which data: a file, a folder, a glob, or a dataset on the hub?"
    yield Asked("data", lambda: _text(data, []), lambda flags: not is_rl(flags), _look_at_records)
    trainers = ["auto", "bundled", "prime-rl"]
    yield Asked("trainer", lambda: _select("Which trainer?", trainers), is_rl, _nothing)
    kinds = ["on demand", "spot: cheaper, and taken away at any time"]
    yield Asked(
        "spot",
        lambda: _select("Which machines?", kinds),
        lambda flags: flags.gpus != "here",
        _nothing,
        lambda answer: answer != kinds[0],
    )
    usd, hours = "The most that it may cost, in USD", "The longest that it may take, in hours"
    yield Asked("budget_usd", lambda: _amount(f"{usd} (empty: no limit)?"), always, _nothing, _read_amount)
    yield Asked("budget_hours", lambda: _amount(f"{hours} (empty: no limit)?"), always, _nothing, _read_amount)


def _nothing(_: Flags) -> str:
    return ""


def _select(text: str, choices: list[str]) -> Any:
    return questionary.select(f"{text} {_KEYS}", choices)


def _text(text: str, names: list[str], default: str = "") -> Any:
    return questionary.autocomplete(
        f"{text} {_KEYS}", names, default=default, match_middle=True, validate=lambda answer: bool(answer.strip())
    )


def _amount(text: str) -> Any:
    def check(answer: str) -> bool | str:
        try:
            return not answer or 0 < float(answer) < 1e12 or "a number above zero, or nothing"
        except ValueError:
            return "a number above zero, or nothing"

    return questionary.text(f"{text} {_KEYS}", validate=check)


def _read_amount(answer: str) -> float | None:
    return float(answer) if answer else None


def _ask_task() -> Any:
    choices = [questionary.Choice(_TASKS[task], task) for task in TASKS]
    return questionary.select(f"What is trained? {_KEYS}", [*choices, questionary.Choice(_AUDIO, "audio")])


def _look_at_model(flags: Flags) -> str:
    assert flags.model is not None
    find_shape(flags.model, offline=flags.offline)
    return describe_model(flags.model, offline=flags.offline)


def _look_at_gpus(flags: Flags) -> str:
    if flags.gpus == CHEAPEST:
        return "every offer of the price table is tried, which takes a minute"
    found = find_gpus(EstimateOptions("")) if flags.gpus == "here" else parse_place(flags.gpus or "")[0]
    return f"{found.gpus} x {found.id}, {found.usable_bytes / GIB:.1f} GiB each"


def _look_at_env(flags: Flags) -> str:
    if flags.env is not None and flags.turns is None and find_workload(flags.env) is None:
        return f"how {flags.env} works is not known, so it is asked"
    work = read_environment(flags)
    return (
        f"{work.words}: {work.rollouts} rollouts of a step in groups of {work.group_size}, {work.concurrency} at once"
    )


def _look_at_records(flags: Flags) -> str:
    _, lines = look_at_data(flags.data or "", check_task(flags.task or ""), flags.subset)
    return "\n".join(lines)
