"""The environment `calculator`: the model calls a tool with an expression and answers with its value."""

from __future__ import annotations

import ast
import json
import math
import operator
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prime_train.environments.arguments import read_arguments
from prime_train.environments.built_in import compare_places, draw, last_answer
from prime_train.environments.environment import Message, Reply, Split, Task, Tool, ToolCall
from prime_train.spec.rl import TaskSource

Number = int | float

_MAX_CHARACTERS = 200
_MAX_PARTS = 64  # numbers and operators
_MAX_VALUE = 10**15  # whole numbers up to here are exact in a float

_BINARY: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class ArithmeticFailed(ValueError):
    """The expression is not one, or is out of bounds. The message is for the model."""


def compute(expression: str) -> str:
    """The value as text: "12", "-0.25". Raises ArithmeticFailed."""
    if len(expression) > _MAX_CHARACTERS:
        raise ArithmeticFailed(f"the expression is longer than {_MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # ast raises each of them for some text
        raise ArithmeticFailed("this is not an expression") from None
    if sum(isinstance(part, ast.expr) for part in ast.walk(tree)) > _MAX_PARTS:
        raise ArithmeticFailed(f"the expression has more than {_MAX_PARTS} parts")
    value = _compute(tree.body)
    return str(int(value)) if value == int(value) else repr(value)


def _compute(part: ast.expr) -> Number:
    match part:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _check(value)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_compute(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _compute(operand)
        case ast.BinOp(op=sign) if type(sign) in _BINARY:
            left, right = _compute(part.left), _compute(part.right)
            try:
                return _check(_BINARY[type(sign)](left, right))
            except ZeroDivisionError:
                raise ArithmeticFailed("division by zero") from None
    raise ArithmeticFailed("only numbers, + - * / // % and parentheses are allowed")


def _check(value: Number) -> Number:
    if not math.isfinite(value) or abs(value) > _MAX_VALUE:
        raise ArithmeticFailed("a number is too large")
    return value


MAX_CALLS = 8  # of one turn; further ones are not answered
_ERROR = "error:"

CALCULATE = Tool(
    name="calculate",
    description="Computes an arithmetic expression.",
    parameters={"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
)


@dataclass(frozen=True, slots=True)
class Calculator:
    """Poses expressions of whole numbers. Turns with tool calls are answered; the first turn without ends the task."""

    name: str
    seed: int
    min_numbers: int
    max_numbers: int
    max_number: int
    tool_delay_s: float

    @property
    def size(self) -> None:
        """There are as many tasks as wanted, and some of them are equal."""
        return

    def task(self, split: Split, number: int) -> Task:
        expression = draw(self.name, self.seed, split, number, self._draw_expression)
        payload = {"expression": expression, "answer": compute(expression)}
        return Task(self.name, split, number, (Message("user", f"Compute {expression}"),), (CALCULATE,), payload)

    def demonstrate(self, task: Task) -> tuple[Message, ...]:
        """One call with the expression of the task, its answer, and the same as the model's answer."""
        call = ToolCall(CALCULATE.name, json.dumps({"expression": task.payload["expression"]}), id="call-1")
        answer = task.payload["answer"]
        return (
            Message("assistant", "", tool_calls=(call,)),
            Message("tool", answer, tool_call_id=call.id, name=call.name),
            Message("assistant", answer),
        )

    def respond(self, task: Task, messages: Sequence[Message]) -> Reply:  # noqa: ARG002 - the protocol's parameters
        """The value for each call, or its error, which the model may correct."""
        calls = messages[-1].tool_calls[:MAX_CALLS]
        start_s = time.monotonic()
        answers = tuple(self._answer(call) for call in calls)
        return Reply(answers, done=not calls, tool_s=time.monotonic() - start_s)

    def score(self, task: Task, messages: Sequence[Message]) -> float:
        """1 for the exact answer.

        Else up to 0.9: 0.1 for a call without an error, 0.4 if one returned the expected number, and 0.4 times the
        fraction of right characters at the right place of the answer.
        """
        expected = task.payload["answer"]
        answer = last_answer(messages)
        if answer == expected:
            return 1.0
        values = [message.content for message in messages if message.role == "tool"]
        called = any(not value.startswith(_ERROR) for value in values)
        return 0.1 * called + 0.4 * (expected in values) + 0.4 * compare_places(answer, expected)

    def close(self) -> None:
        pass

    def _draw_expression(self, chance: random.Random) -> str:
        count = chance.randint(self.min_numbers, self.max_numbers)
        parts = [str(chance.randint(0, self.max_number))]
        for _ in range(count - 1):
            parts += [chance.choice("+-*"), str(chance.randint(0, self.max_number))]
        return " ".join(parts)

    def _answer(self, call: ToolCall) -> Message:
        if self.tool_delay_s:
            time.sleep(self.tool_delay_s)
        return Message("tool", _call(call), tool_call_id=call.id, name=call.name)


def open_calculator(source: TaskSource, seed: int, name: str) -> Calculator:
    """Raises UserError for arguments that it does not have."""
    arguments = read_arguments(source)
    low, high, largest = (int(arguments[key]) for key in ("min_numbers", "max_numbers", "max_number"))
    return Calculator(name, seed, low, high, largest, float(arguments["tool_delay_s"]))


def _call(call: ToolCall) -> str:
    if call.name != CALCULATE.name:
        return f"{_ERROR} there is no tool {call.name[:40]!r}; use {CALCULATE.name}"
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return f"{_ERROR} the arguments are not valid JSON"
    expression = arguments.get("expression") if isinstance(arguments, dict) else None
    if not isinstance(expression, str):
        return f"{_ERROR} the arguments need an expression, which is a text"
    try:
        return compute(expression)
    except ArithmeticFailed as error:
        return f"{_ERROR} {error}"
