"""Opens the tasksets of a run as its trainer will, and scores one answer to the first task of each.

Runs the code of the tasksets, in their interpreters. Their output is read and not shown.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from pathlib import Path

from prime_train.core.errors import UserError
from prime_train.environments.child import OpeningFailed
from prime_train.environments.environment import EnvironmentFailed, Message
from prime_train.environments.verifiers import Taskset, advise, failed_place, start_taskset
from prime_train.facts.facts import NotKnown, TasksetTrial
from prime_train.spec import RunSpec

_ANSWER = "0"  # an ordinary answer: a reward may refuse an empty one
_NOT_INSTALLED = ("verifiers", "python", "id")  # the packages of the interpreter have these faults, too


class _Unshown(io.StringIO):
    """Drops what is written, which may be endless."""

    def write(self, text: str) -> int:
        return len(text)


def try_tasksets(run: RunSpec, limit_s: float) -> tuple[TasksetTrial, ...] | NotKnown:
    """A trial of each taskset, which opens within `limit_s`. A taskset that is not installed is left out."""
    try:
        return tuple(_try_all(run, limit_s))
    except TimeoutError as error:
        return NotKnown(str(error))


def _try_all(run: RunSpec, limit_s: float) -> Iterator[TasksetTrial]:
    for number, source in enumerate(run.tasks):
        if source.kind != "verifiers" or not source.id:
            continue
        field = f"tasks.{number}.id"
        try:
            taskset = start_taskset(source, source.id, limit_s, _Unshown())
        except UserError as error:
            if Path(source.id).expanduser().exists():  # else it is not installed
                yield TasksetTrial(field, error.what, error.fix)
        except OpeningFailed as error:
            if error.kind == "slow":
                raise TimeoutError(f"{source.id} was not open after {limit_s:g} s") from error
            if error.kind not in _NOT_INSTALLED:
                yield TasksetTrial(field, " ".join(str(error).split())[:500], advise(source, error))
        else:
            yield _score(field, taskset)


def _score(field: str, taskset: Taskset) -> TasksetTrial:
    try:
        task = taskset.task("train", 0)
        reward = taskset.score(task, [*task.messages, Message("assistant", _ANSWER)])
    except EnvironmentFailed as error:
        place = failed_place(error.trace)
        return TasksetTrial(field, reward_fault=" ".join(str(error).split())[:300], fix=place and f"correct {place}")
    finally:
        taskset.close()
    fault = "" if math.isfinite(reward) else f"it is {reward}"
    return TasksetTrial(field, reward_fault=fault)
