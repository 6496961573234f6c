"""The environment `calculator`: the model calls a tool with an expression and answers with its value."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from prime_train.environments.arguments import read_arguments
from prime_train.environments.arithmetic import ArithmeticFailed, compute
from prime_train.environments.built_in import compare_places, draw, last_answer
from prime_train.environments.environment import Message, Reply, Split, Task, Tool, ToolCall
from prime_train.spec.rl import TaskSource

MAX_CALLS = 8  # of one turn; further ones are not answered
_ERROR = "error:"

CALCULATE = Tool(
    name="calculate",
    description="Computes an arithmetic expression.",
    parameters={
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
    },
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
        """1 for the exact answer. Else up to 0.9: 0.1 for a call without an error, 0.4 if one returned the expected
        number, and 0.4 times the fraction of right characters at the right place of the answer.
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
    return Calculator(
        name=name,
        seed=seed,
        min_numbers=int(arguments["min_numbers"]),
        max_numbers=int(arguments["max_numbers"]),
        max_number=int(arguments["max_number"]),
        tool_delay_s=float(arguments["tool_delay_s"]),
    )


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
