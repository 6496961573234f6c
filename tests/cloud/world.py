"""GitHub's issues, a queue of managed jobs and a run, in memory: polls take their steps in it in any order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from prime_train.cloud.monitor import Job
from prime_train.cloud.monitor_inputs import RunStatus
from prime_train.cloud.monitor_poll import (
    Ask,
    Cancel,
    Launch,
    Poll,
    ReadQueue,
    ReadStatus,
    Result,
    Setting,
    Settle,
    Step,
    poll,
)

AUTHOR = "github-actions[bot]"


class World:
    """Answers the steps of polls. `launched` has the time of each launch; a launch makes a job live once it is done."""

    def __init__(self, status: RunStatus, jobs: tuple[Job, ...] = (), now_s: float = 1e9) -> None:
        self.status = status
        self.jobs: tuple[Job, ...] | None = jobs
        self.now_s = now_s
        self.launched: list[float] = []
        self.cancelled: list[int] = []
        self.launch_fails = ""
        self.issues: list[dict[str, Any]] = []
        self.comments: dict[int, list[dict[str, Any]]] = {}
        self._next_id = 1

    def answer(self, step: Step) -> Any:
        match step:
            case ReadStatus():
                return self.status
            case ReadQueue():
                return self.jobs
            case Settle():
                return None
            case Launch():
                self.launched.append(self.now_s)
                if not self.launch_fails:
                    number = max((job.id for job in self.jobs or ()), default=0) + 1
                    self.jobs = (*(self.jobs or ()), Job(number, "STARTING", 0))
                return self.launch_fails
            case Cancel(job=job):
                self.cancelled.append(job)
                self.jobs = tuple(one._replace(state="CANCELLED") if one.id == job else one for one in self.jobs or ())
                return ""
            case Ask(method=method, path=path, body=body):
                return self.ask(method, path, body or {})

    def ask(self, method: str, path: str, body: dict[str, Any], author: str = AUTHOR) -> Any:
        """The answer of GitHub. Shapes: docs.github.com/en/rest/issues."""
        where, _, query = path.partition("?")
        parts = where.strip("/").split("/")
        match (method, *parts):
            case ("GET", "issues"):
                return [one for one in self.issues if one["state"] == "open" and "labels=prime-train-monitor" in query]
            case ("POST", "issues"):
                new = {"number": len(self.issues) + 1, "state": "open", **body}
                self.issues.append(new | {"id": self._take_id(), "user": {"login": author}})
                self.comments[new["number"]] = []
                return self.issues[-1]
            case ("PATCH", "issues", number):
                self.issues[int(number) - 1].update(body)
                return self.issues[int(number) - 1]
            case ("GET", "issues", number, "comments"):
                page = int(query.rpartition("page=")[2])
                return [dict(one) for one in self.comments[int(number)][(page - 1) * 100 : page * 100]]
            case ("POST", "issues", number, "comments"):
                comment = {"id": self._take_id(), "user": {"login": author}, **body}
                self.comments[int(number)].append(comment)
                return comment
            case ("PATCH", "issues", "comments", comment_id):
                found = next(one for _, one in self._every_comment() if one["id"] == int(comment_id))
                found.update(body)
                return found
            case ("DELETE", "issues", "comments", comment_id):
                listed, found = next(pair for pair in self._every_comment() if pair[1]["id"] == int(comment_id))
                listed.remove(found)
                return None
        raise AssertionError((method, path))

    def _every_comment(self) -> Iterator[tuple[list[dict[str, Any]], dict[str, Any]]]:
        for listed in self.comments.values():
            for one in listed:
                yield listed, one

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id

    def clock(self) -> float:
        return self.now_s

    def start(self, holder: str, **changes: Any) -> Poll:
        return poll(Setting("demo", holder, AUTHOR)._replace(**changes), self.clock)


def run_to_end(world: World, one: Poll, step: Step) -> Result:
    """A poll from a step that it has yielded to its last one."""
    while True:
        try:
            step = one.send(world.answer(step))
        except StopIteration as end:
            result: Result = end.value
            return result


def run_poll(world: World, holder: str = "1-1", **changes: Any) -> Result:
    """A poll from its first step to its last, alone."""
    return interleave(world, [world.start(holder, **changes)], random.Random(0))[0][1]


def interleave(
    world: World, polls: list[Poll], draw: random.Random, dies: float = 0.0, longest_s: float = 0.0
) -> list[tuple[int, Result]]:
    """All polls, one random step of one of them at a time. With probability `dies` a step ends its poll instead.

    A launch takes two turns: it begins in one, and the job is in the queue after the next one of that poll. Each turn
    takes up to `longest_s`.
    """
    results: list[tuple[int, Result]] = []
    waiting: dict[int, Step] = {number: next(one) for number, one in enumerate(polls)}
    begun: set[int] = set()
    while waiting:
        number = draw.choice(sorted(waiting))
        world.now_s += draw.uniform(0, longest_s)
        if draw.random() < dies:
            polls[number].close()
            del waiting[number]
            continue
        step = waiting[number]
        if isinstance(step, Launch) and number not in begun:
            begun.add(number)
            continue
        try:
            waiting[number] = polls[number].send(world.answer(step))
        except StopIteration as end:
            results.append((number, end.value))
            del waiting[number]
    return results
