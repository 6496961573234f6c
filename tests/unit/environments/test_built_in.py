"""The built-in environments: exact rewards, partial credit, disjoint splits and the same tasks for the same seed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prime_train.core.errors import UserError
from prime_train.environments.arguments import ARGUMENTS, find_faults
from prime_train.environments.built_in import compare_places
from prime_train.environments.calculator import ArithmeticFailed, compute
from prime_train.environments.environment import Environment, Message, Split, ToolCall
from prime_train.environments.load import open_environment, open_environments
from prime_train.spec.rl import TaskSource

KINDS = sorted(ARGUMENTS)


def open_kind(kind: str, seed: int = 7, **arguments: bool | float | str) -> Environment:
    return open_environment(TaskSource(kind=kind, arguments=arguments), seed)  # type: ignore[arg-type]


def chat(text: str) -> list[Message]:
    return [Message("user", ""), Message("assistant", text)]


@pytest.mark.parametrize("kind", KINDS)
@given(seed=st.integers(0, 2**40), number=st.integers(0, 2**40), split=st.sampled_from(["train", "held_out"]))
@settings(max_examples=30)
def test_a_demonstration_earns_the_full_reward(kind: str, seed: int, number: int, split: Split) -> None:
    environment = open_kind(kind, seed)
    task = environment.task(split, number)
    assert task == environment.task(split, number)
    solved = environment.demonstrate(task)
    assert solved is not None
    assert environment.score(task, [*task.messages, *solved]) == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_no_task_is_in_both_splits(kind: str) -> None:
    smallest = {name: argument.low for name, argument in ARGUMENTS[kind].items()}
    for arguments in ({}, smallest):
        first, second = open_kind(kind, 1, **arguments), open_kind(kind, 2, **arguments)
        train = {first.task("train", number).messages for number in range(400)}
        held_out = {second.task("held_out", number).messages for number in range(400)}
        assert not train & held_out


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_poses_other_tasks(kind: str) -> None:
    def posed(seed: int) -> list[tuple[Message, ...]]:
        return [open_kind(kind, seed).task("train", number).messages for number in range(8)]

    assert posed(1) != posed(2)


@pytest.mark.parametrize("kind", KINDS)
@given(text=st.text(max_size=20))
@settings(max_examples=30)
def test_a_reward_is_between_0_and_1(kind: str, text: str) -> None:
    environment = open_kind(kind)
    task = environment.task("train", 0)
    reward = environment.score(task, [*task.messages, Message("assistant", text)])
    assert 0 <= reward <= 1
    assert (reward == 1) == (text.strip() == task.payload["answer"])


def test_partial_credit_counts_characters_at_their_place() -> None:
    assert compare_places("abcd", "abcd") == 1.0
    assert compare_places("abxd", "abcd") == 0.75
    assert compare_places("abcdabcd", "abcd") == 0.5  # a longer answer earns less
    assert compare_places("", "abcd") == 0.0
    assert compare_places("", "") == 1.0


def test_thoughts_before_an_answer_are_no_part_of_it() -> None:
    environment = open_environment(TaskSource(kind="reverse-text"), 1)
    task = environment.task("train", 0)
    (solved,) = environment.demonstrate(task) or ()
    thinks = replace(solved, content=f"\n<think>hm</think>\n{solved.content}")
    assert environment.score(task, (*task.messages, thinks)) == 1.0


def test_the_answers_of_the_text_environments() -> None:
    reverse, sort = open_kind("reverse-text", min_letters=3, max_letters=3), open_kind("sort-digits")
    task = reverse.task("train", 3)
    assert task.messages[-1].content.removeprefix("Reverse: ") == task.payload["answer"][::-1]
    assert len(task.payload["answer"]) == 3
    task = sort.task("train", 3)
    assert sorted(task.messages[-1].content.removeprefix("Sort: ")) == list(task.payload["answer"])
    assert reverse.respond(task, chat("x")).done


def test_the_calculator_answers_calls_until_a_turn_without() -> None:
    calculator = open_kind("calculator")
    task = calculator.task("train", 0)
    call = ToolCall("calculate", json.dumps({"expression": task.payload["expression"]}), "a")
    turn = Message("assistant", "", tool_calls=(call, ToolCall("calculate", '{"expression": "1/0"}', "b")))
    reply = calculator.respond(task, [*task.messages, turn])
    assert not reply.done
    assert reply.messages == (
        Message("tool", task.payload["answer"], tool_call_id="a", name="calculate"),
        Message("tool", "error: division by zero", tool_call_id="b", name="calculate"),
    )
    wrong = Message("assistant", "unknown")
    assert calculator.respond(task, [*task.messages, turn, *reply.messages, wrong]).done
    assert calculator.score(task, [*task.messages, turn, *reply.messages, wrong]) == 0.5
    assert calculator.score(task, [*task.messages, wrong]) == 0.0


def test_a_tool_delay_is_part_of_the_tool_time() -> None:
    calculator = open_kind("calculator", tool_delay_s=0.01)
    turn = Message("assistant", "", tool_calls=(ToolCall("calculate", '{"expression": "1"}'),) * 2)
    assert calculator.respond(calculator.task("train", 0), [turn]).tool_s >= 0.02


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("compute", '{"expression": "1"}'),
        ("calculate", "{"),
        ("calculate", "[1]"),
        ("calculate", "false"),
        ("calculate", '{"expression": 3}'),
        ("calculate", '{"other": "3"}'),
        ("calculate", "[" * 100_000),
    ],
)
def test_a_bad_call_gets_an_error_that_the_model_can_read(name: str, arguments: str) -> None:
    calculator = open_kind("calculator")
    turn = Message("assistant", "", tool_calls=(ToolCall(name, arguments),))
    (answer,) = calculator.respond(calculator.task("train", 0), [turn]).messages
    assert answer.content.startswith("error: ")
    assert len(answer.content) < 200


@pytest.mark.parametrize(
    ("expression", "value"),
    [("1 + 2 * 3", "7"), ("-(4 - 6)", "2"), ("1 / 4", "0.25"), ("7 // 2 % 2", "1"), ("2.0 * 3", "6"), ("+5", "5")],
)
def test_arithmetic(expression: str, value: str) -> None:
    assert compute(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        *("", "1 +", "x", "inf", "'a'", "True", "1j", "[1]", "\0", "1 < 2", "1 if 1 else 2"),
        *("2 ** 9", "abs(1)", "__import__('os').system('true')"),
        *("1/0", "5%0", "1e400", "9" * 30, "9" * 300, "(" * 150, "1+" * 90, "1" + "+1" * 60),
    ],
)
def test_arithmetic_refuses_everything_else(expression: str) -> None:
    with pytest.raises(ArithmeticFailed):
        compute(expression)


@given(st.text(alphabet="0123456789+-*/%().e ", max_size=40))
@settings(max_examples=300)
def test_arithmetic_returns_a_bounded_number_or_refuses(expression: str) -> None:
    try:
        value = float(compute(expression))
    except ArithmeticFailed:
        return
    assert math.isfinite(value)
    assert abs(value) <= 1e15


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("reverse-text", {"max_leters": 5}, "max_letters"),
        ("reverse-text", {"colour": 5}, "remove colour"),
        ("reverse-text", {"max_letters": "5"}, "whole number"),
        ("reverse-text", {"max_letters": 5.0}, "whole number"),
        ("reverse-text", {"max_letters": True}, "whole number"),
        ("reverse-text", {"max_letters": 10**9}, "max_letters = 256"),
        ("reverse-text", {"min_letters": 9, "max_letters": 4}, "max_letters = 9"),
        ("sort-digits", {"min_letters": 5}, "no argument"),
        ("calculator", {"tool_delay_s": math.nan}, "tool_delay_s = 0.0"),
        ("calculator", {"tool_delay_s": -1}, "tool_delay_s = 0.0"),
    ],
)
def test_an_argument_that_does_not_fit_is_refused(kind: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        open_kind(kind, **arguments)
    assert words in str(error.value)
    assert kind in error.value.where


def test_a_lone_minimum_raises_the_default_maximum() -> None:
    assert not list(find_faults(TaskSource(kind="reverse-text", arguments={"min_letters": 20})))
    task = open_kind("reverse-text", min_letters=20).task("train", 0)
    assert len(task.payload["answer"]) == 20
    assert len(open_kind("calculator", max_numbers=2).task("train", 0).payload["expression"].split()) == 3


def test_an_end_of_a_range_beyond_its_own_bounds_has_one_fault() -> None:
    given = {"min_digits": 700, "max_digits": 500}
    faults = list(find_faults(TaskSource(kind="sort-digits", arguments=given)))
    assert [fault.fix for fault in faults] == ["min_digits = 256", "max_digits = 256"]


def test_environments_of_the_same_kind_have_different_names() -> None:
    source = TaskSource(kind="reverse-text")
    names = [environment.name for environment in open_environments((source, TaskSource(kind="sort-digits"), source), 1)]
    assert names == ["reverse-text", "sort-digits", "reverse-text-2"]


def test_reverse_text_draws_its_letters_from_the_start_of_the_alphabet() -> None:
    environment = open_kind("reverse-text", min_letters=4, max_letters=4, alphabet=5)
    texts = [environment.task("train", number).messages[0].content.removeprefix("Reverse: ") for number in range(100)]
    assert {letter for text in texts for letter in text} == set("abcde")
    assert {len(text) for text in texts} == {4}
