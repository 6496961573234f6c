"""GitHub's issues, a queue of managed jobs and a run, in memory: the services of polls, which may be killed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prime_train.away.monitor.decide import MonitoredJob
from prime_train.away.monitor.poll import PollResult, PollSetting, RunStatus, poll

AUTHOR = "github-actions[bot]"


class KilledError(Exception):
    """The runner of a poll is gone."""


class World:
    """The services of polls. `launched` has the time of each launch; the job of a launch is live at once.

    `dies_after` services of a poll, its runner is killed. `before_queue` gets the number of the reading, from 1.
    """

    def __init__(self, status: RunStatus, jobs: tuple[MonitoredJob, ...] | None = (), now_s: float = 1e9) -> None:
        self.status = status
        self.jobs = jobs
        self.now_s = now_s
        self.launched: list[float] = []
        self.cancelled: list[int] = []
        self.launch_fails = ""
        self.dies_after: int | None = None
        self.before_queue: Callable[[int], None] = lambda _: None
        self.issues: list[dict[str, Any]] = []
        self.comments: dict[int, list[str]] = {}
        self._queue_readings = 0

    def read_status(self) -> RunStatus:
        self._live_on()
        return self.status

    def read_queue(self) -> tuple[MonitoredJob, ...] | None:
        self._live_on()
        self._queue_readings += 1
        self.before_queue(self._queue_readings)
        return self.jobs

    def launch(self) -> str:
        self._live_on()
        self.launched.append(self.now_s)
        if not self.launch_fails:
            number = max((job.id for job in self.jobs or ()), default=0) + 1
            self.jobs = (*(self.jobs or ()), MonitoredJob(number, "STARTING", 0))
        return self.launch_fails

    def cancel(self, job: int) -> str:
        self._live_on()
        self.cancelled.append(job)
        self.jobs = tuple(one._replace(state="CANCELLED") if one.id == job else one for one in self.jobs or ())
        return ""

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None, author: str = AUTHOR) -> Any:
        """The answer of GitHub. Shapes: docs.github.com/en/rest/issues."""
        self._live_on()
        where, _, query = path.partition("?")
        parts = where.strip("/").split("/")
        match (method, *parts):
            case ("GET", "issues"):
                return [one for one in self.issues if one["state"] == "open" and "labels=prime-train-monitor" in query]
            case ("POST", "issues"):
                number = len(self.issues) + 1
                new = {"id": 100 + number, "number": number, "state": "open", "user": {"login": author}}
                self.issues.append(new | dict(body or {}))
                self.comments[number] = []
                return self.issues[-1]
            case ("PATCH", "issues", given):
                self.issues[int(given) - 1].update(body or {})
                return self.issues[int(given) - 1]
            case ("POST", "issues", given, "comments"):
                self.comments[int(given)].append(dict(body or {})["body"])
                return {"id": 200}
        raise AssertionError((method, path))

    def _live_on(self) -> None:
        if self.dies_after is not None:
            self.dies_after -= 1
            if self.dies_after < 0:
                raise KilledError

    def clock(self) -> float:
        return self.now_s

    def poll(self, **changes: Any) -> PollResult:
        """One whole poll of the run "demo"."""
        self._queue_readings = 0
        return poll(PollSetting("demo", AUTHOR)._replace(**changes), self, self.clock)
