"""Asks for the flags that are not given, one question after another, with a way back. Writes nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import questionary
import typer
from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings

from prime_train.choose.wishes import BUNDLED, TASKS
from prime_train.choose.workload import EXECUTORS, TURNS, environment_names, find_workload
from prime_train.cli.estimate.inputs import find_named_shape
from prime_train.cli.init.answers import check_task, list_models, read_environment
from prime_train.cli.init.clips import look_at_clips
from prime_train.cli.init.flags import AUDIO, CHEAPEST, COMMAND, HERE, Flags
from prime_train.cli.init.place import find_here, parse_place
from prime_train.cli.init.preview import Proposal
from prime_train.cli.init.records import look_at_data
from prime_train.cli.init.trainers import find_prime_rl
from prime_train.cli.init.verdict import describe_model
from prime_train.cli.terminal.render import message
from prime_train.core.errors import UserError
from prime_train.core.units import GIB

_BACK = object()
_KEYS = "(Esc: back, Ctrl-C: stop)"
_TASKS = {"pretrain": "pretraining on text", "sft": "fine-tuning on chats (SFT)", "rl": "learning from rewards (RL)"}
_AUDIO = "an encoder on audio clips"
_WRITE, _AGAIN = "write it", "change an answer"
_MACHINES = ("on demand", "spot: cheaper, and taken away at any time")

Propose = Callable[[Flags], Proposal]


class Asked(NamedTuple):
    """One question. `flag` is the field that it sets, `is_open` whether it is asked after these answers.

    `look` describes an answer, or raises UserError for one that cannot be used; then the question comes again.
    """

    flag: str
    ask: Callable[[Flags], Any]
    is_open: Callable[[Flags], bool]
    look: Callable[[Flags], str]
    read: Callable[[str], Any] = str.strip


def converse(given: Flags, propose: Propose) -> Proposal:
    """The config that the user agreed to write. Raises KeyboardInterrupt for Ctrl-C.

    Flags of the command line are not asked for; their questions are skipped on the way back, too.
    """
    flags, at = given, 0
    questions = [one for one in _questions() if one.flag not in given.list_given()]
    while True:
        flags = _ask_all(questions, flags, at)
        try:
            proposal = propose(flags)
        except UserError as error:
            if not any(one.is_open(flags) for one in questions):
                raise  # every answer was given, so none can be changed
            typer.echo(message(error, sys.stderr), err=True)
        else:
            typer.echo(f"{proposal.text}\n{proposal.shown}\n", err=True)
            if _ask(questionary.select(f"Write it? {_KEYS}", [_WRITE, _AGAIN])) == _WRITE:
                return proposal
        at = max((at for at, one in enumerate(questions) if one.is_open(flags)), default=0)


def _ask_all(questions: list[Asked], flags: Flags, at: int) -> Flags:
    """The flags after the questions from `at` on. Escape leads to the question before."""
    step = 1
    while at < len(questions):
        question = questions[at]
        if question.is_open(flags):
            answer = _ask(question.ask(flags))
            step = -1 if answer is _BACK else 1
            if step > 0:
                step, flags = _take(question, flags._replace(**{question.flag: question.read(answer)}), flags)
        at = max(0, at + step)
        if at == 0 and not questions[0].is_open(flags):
            step = 1
    return flags


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

    def is_ours(flags: Flags) -> bool:
        return not flags.is_command

    def is_text(flags: Flags) -> bool:
        return is_ours(flags) and flags.task != AUDIO

    def is_rl(flags: Flags) -> bool:
        return is_ours(flags) and flags.task == "rl"

    def is_unknown(flags: Flags) -> bool:
        return is_rl(flags) and flags.env is not None and find_workload(flags.env) is None

    yield Asked("task", _ask_task, lambda _: True, _look_at_task)
    yield Asked("trainer", _ask_trainer, lambda flags: flags.command is None, _nothing)
    command = "Which command starts it?"
    yield Asked("command", lambda _: _text(command, []), lambda flags: flags.trainer == COMMAND, _nothing)
    names = list_models()
    yield Asked(
        "model", lambda _: _text("Which model: a folder, or a name on the hub?", names), is_text, _look_at_model
    )
    gpus = "Which GPUs: here, 1xrtx4090, 8xh100-80gb, 2x8xh100, or cheapest?"
    yield Asked("gpus", lambda _: _text(gpus, [HERE, CHEAPEST], HERE), is_text, _look_at_gpus)
    yield Asked("env", lambda _: _text("Which environment?", environment_names(), "reverse-text"), is_rl, _look_at_env)
    yield Asked("turns", lambda _: _select("How many answers has a rollout?", TURNS), is_unknown, _nothing)
    yield Asked("tools", lambda _: _select("Where do its tools run?", EXECUTORS), is_unknown, _look_at_env)
    data = "Which data: a file, a folder, a glob, or a dataset on the hub?"
    yield Asked("data", lambda _: _text(data, []), lambda flags: is_ours(flags) and not is_rl(flags), _look_at_records)
    yield Asked(
        "spot",
        lambda _: _select("Which machines?", _MACHINES),
        lambda flags: is_text(flags) and flags.gpus != HERE,
        _nothing,
        lambda answer: answer == _MACHINES[1],
    )
    usd, hours = "The most that it may cost, in USD", "The longest that it may take, in hours"
    yield Asked("budget_usd", lambda _: _amount(f"{usd} (empty: no limit)?"), is_text, _nothing, _read_amount)
    yield Asked("budget_hours", lambda _: _amount(f"{hours} (empty: no limit)?"), is_text, _nothing, _read_amount)


def _nothing(_: Flags) -> str:
    return ""


def _select(text: str, choices: Sequence[Any]) -> Any:
    return questionary.select(f"{text} {_KEYS}", list(choices))


def _text(text: str, names: list[str], default: str = "") -> Any:
    def check(answer: str) -> bool:
        return bool(answer.strip())

    if not names:  # nothing to complete, which `autocomplete` refuses
        return questionary.text(f"{text} {_KEYS}", validate=check)
    return questionary.autocomplete(f"{text} {_KEYS}", names, default=default, match_middle=True, validate=check)


def _amount(text: str) -> Any:
    def check(answer: str) -> bool | str:
        try:
            return not answer or 0 < float(answer) < 1e12 or "a number above zero, or nothing"
        except ValueError:
            return "a number above zero, or nothing"

    return questionary.text(f"{text} {_KEYS}", validate=check)


def _read_amount(answer: str) -> float | None:
    return float(answer) if answer else None


def _ask_task(_: Flags) -> Any:
    choices = [questionary.Choice(_TASKS[task], task) for task in TASKS]
    return _select("What is trained?", [*choices, questionary.Choice(_AUDIO, AUDIO)])


def _look_at_task(flags: Flags) -> str:
    return "" if flags.task == AUDIO else check_task(flags.task or "") and ""


def _ask_trainer(flags: Flags) -> Any:
    """The trainers that can do the task."""
    found = find_prime_rl().generation if flags.task in ("rl", "sft") else ""
    words = {
        "auto": "what fits: the bundled trainer, else prime-rl",
        BUNDLED: "the bundled trainer",
        "prime-rl": f"prime-rl {found}, found here" if found else "prime-rl, not found here",
        COMMAND: "a command: a trainer of yours",
    }
    able = {"rl": list(words), "sft": list(words)[1:]}.get(flags.task or "", [BUNDLED, COMMAND])
    return _select("Which trainer?", [questionary.Choice(words[name], name) for name in able])


def _look_at_model(flags: Flags) -> str:
    assert flags.model is not None
    find_named_shape(flags.model, f"--model {flags.model}", offline=flags.offline)
    return describe_model(flags.model, offline=flags.offline)


def _look_at_gpus(flags: Flags) -> str:
    if flags.gpus == CHEAPEST:
        return "every offer of the price table is tried, which takes a minute"
    found = find_here() if flags.gpus == HERE else parse_place(flags.gpus or "")[0]
    return f"{found.gpus} x {found.id}, {found.usable_bytes / GIB:.1f} GiB each"


def _look_at_env(flags: Flags) -> str:
    if flags.env is not None and flags.turns is None and find_workload(flags.env) is None:
        return f"how {flags.env} works is not known, so it is asked"
    work = read_environment(flags)
    return (
        f"{work.words}: {work.rollouts} rollouts of a step in groups of {work.group_size}, {work.concurrency} at once"
    )


def _look_at_records(flags: Flags) -> str:
    if flags.task == AUDIO:
        return "\n".join(look_at_clips(flags.data or "", flags.subset)[1])
    _, lines = look_at_data(flags.data or "", check_task(flags.task or ""), flags.subset)
    return "\n".join(lines)
