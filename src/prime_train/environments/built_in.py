"""The built-in environments with one short answer, and what all built-in ones share: how tasks are drawn and split.

Pure.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import ascii_lowercase, digits

from prime_train.environments.arguments import read_arguments
from prime_train.environments.environment import EnvironmentFailed, Message, Reply, Split, Task
from prime_train.spec.rl import TaskSource

_MAX_DRAWS = 10_000  # one draw in eight is held out, so a thousand in a row of the same split means a bug
_HELD_OUT_BYTES = 32  # of the 256 first bytes of a hash: an eighth of all texts


@dataclass(frozen=True, slots=True)
class TextEnvironment:
    """The model answers a short text with the text that `solve` makes of it, in one turn."""

    name: str
    seed: int
    instruction: str  # before the text, with a space between them
    alphabet: str
    min_length: int
    max_length: int
    solve: Callable[[str], str]

    @property
    def size(self) -> None:
        """There are as many tasks as wanted, and some of them are equal."""
        return

    def task(self, split: Split, number: int) -> Task:
        text = draw(self.name, self.seed, split, number, self._draw_text)
        messages = (Message("user", f"{self.instruction} {text}"),)
        return Task(self.name, split, number, messages, payload={"answer": self.solve(text)})

    def demonstrate(self, task: Task) -> tuple[Message, ...]:
        return (Message("assistant", task.payload["answer"]),)

    def respond(self, task: Task, messages: Sequence[Message]) -> Reply:  # noqa: ARG002 - the protocol's parameters
        return Reply()

    def score(self, task: Task, messages: Sequence[Message]) -> float:
        """1 for the exact answer, else the fraction of right characters at the right place."""
        return compare_places(last_answer(messages), task.payload["answer"])

    def close(self) -> None:
        pass

    def _draw_text(self, chance: random.Random) -> str:
        return "".join(chance.choices(self.alphabet, k=chance.randint(self.min_length, self.max_length)))


def draw(name: str, seed: int, split: Split, number: int, make: Callable[[random.Random], str]) -> str:
    """A text of this split, the same for the same arguments. Its hash decides the split, so no text is in both."""
    chance = random.Random(f"{name} {seed} {split} {number}")
    for _ in range(_MAX_DRAWS):
        text = make(chance)
        held_out = hashlib.sha256(text.encode()).digest()[0] < _HELD_OUT_BYTES
        if held_out == (split == "held_out"):
            return text
    raise EnvironmentFailed(f"{name}: none of {_MAX_DRAWS:,} drawn tasks is of the split {split}")


def last_answer(messages: Sequence[Message]) -> str:
    """The text of the model's last turn behind its thoughts, without the space around it."""
    answers = (message.content for message in reversed(messages) if message.role == "assistant")
    return next(answers, "").rpartition("</think>")[2].strip()


def compare_places(answer: str, expected: str) -> float:
    """The fraction of places where both have the same character, of the places of the longer one. 1.0 if equal."""
    if answer == expected:
        return 1.0
    same = sum(a == b for a, b in zip(answer, expected, strict=False))
    return same / max(len(answer), len(expected))


def open_reverse_text(source: TaskSource, seed: int, name: str) -> TextEnvironment:
    """Raises UserError for arguments that it does not have."""
    arguments = read_arguments(source)
    lengths = int(arguments["min_letters"]), int(arguments["max_letters"])
    alphabet = ascii_lowercase[: int(arguments["alphabet"])]
    return TextEnvironment(name, seed, "Reverse:", alphabet, *lengths, solve=lambda text: text[::-1])


def open_sort_digits(source: TaskSource, seed: int, name: str) -> TextEnvironment:
    """Raises UserError for arguments that it does not have."""
    arguments = read_arguments(source)
    lengths = int(arguments["min_digits"]), int(arguments["max_digits"])
    return TextEnvironment(name, seed, "Sort:", digits, *lengths, solve=lambda text: "".join(sorted(text)))
