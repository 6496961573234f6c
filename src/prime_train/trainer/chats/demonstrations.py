"""Solved tasks as chats, and what the chats of any source are. Reads no file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass

from prime_train.core.errors import UserError
from prime_train.environments.environment import Environment
from prime_train.environments.load import open_environments
from prime_train.spec import RunSpec
from prime_train.spec.answers import policy_of
from prime_train.trainer.cache import Origin, digest
from prime_train.trainer.chats.chat import Chat, Completion


@dataclass(frozen=True, slots=True)
class Chats:
    """The chats of an opened source. `read` raises UserError, which names the row, if a row is no chat."""

    count: int
    read: Callable[[int], Chat | Completion]
    where: Callable[[int], str]  # file and line, for messages


LEAST_CHATS = 2  # of a source: one for training, one held out


def open_chats(origin: Origin[Chats]) -> Chats:
    """The chats of a source. Raises UserError if there are fewer than two."""
    chats = origin.open()
    if chats.count < LEAST_CHATS:
        what = "it has no chats" if chats.count == 0 else "it has only one chat"
        why = "at least one is for training, and one is held out to measure the loss"
        raise UserError(what, origin.name, why, "give a source with more chats")
    return chats


def locate_demonstrations(run: RunSpec, count: int) -> Origin[Chats]:
    """`count` solved tasks of [[tasks]]. Raises UserError if there are no tasks."""
    if not run.tasks:
        what = "there are no tasks to demonstrate"
        why = "demonstrations are solved tasks of [[tasks]]"
        raise UserError(what, 'data.sources kind = "demonstrations"', why, '[[tasks]] kind = "reverse-text"')
    key = digest([[asdict(source) for source in run.tasks], run.run.seed, count])

    def open_chats() -> Chats:
        with ExitStack() as opened:
            environments = open_environments(run.tasks, run.run.seed)
            for environment in environments:
                opened.callback(environment.close)
            return demonstrate(environments, count, prompts_suffice=policy_of(run) is not None)

    return Origin("solved tasks", key, key, 0, open_chats)


def demonstrate(environments: Sequence[Environment], count: int, *, prompts_suffice: bool) -> Chats:
    """`count` solved training tasks of the environments in turn.

    `prompts_suffice`: a task that is not shown solved is only its prompt; else it raises UserError.
    """
    chats: list[Chat] = []
    places: list[str] = []
    for number in range(count):
        environment = environments[number % len(environments)]
        turn = number // len(environments)
        if environment.size is not None and turn >= environment.size:
            continue
        task = environment.task("train", turn)
        solved = environment.demonstrate(task)
        if solved is None and not prompts_suffice:
            what = f"{environment.name} does not show how its tasks are solved"
            why = "a run of kind sft learns from solved tasks"
            fix = "give chats as kind files or hf-dataset, or leave this environment out of [[tasks]]"
            raise UserError(what, 'data.sources kind = "demonstrations"', why, fix)
        chats.append(Chat((*task.messages, *(solved or ())), task.tools, len(task.messages)))
        places.append(f"{environment.name}, task {turn}")
    return Chats(len(chats), chats.__getitem__, places.__getitem__)
