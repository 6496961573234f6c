"""Follows all runs of a folder and publishes one document of them. Writes only the index.

Runs with a supervisor are read at each look. A run that has ended is read once; later looks compare only its files, a
few runs at a time, so that a thousand ended runs cost little.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from prime_train.control.fleet_rows import find_twins, join_machines
from prime_train.control.followed import FollowedRun, fingerprint
from prime_train.control.index import Index, IndexedRun
from prime_train.control.remote import RemoteRuns
from prime_train.control.state import make_detail, make_row, map_devices
from prime_train.control.stream import Stream
from prime_train.control.timeline import find_failures, shorten
from prime_train.core.rundir import RunDir
from prime_train.supervise.processes.lock import find_holder
from prime_train.views.run.runs import RUNS, is_run

LOOK_EVERY_S = 0.2
MOST_RUNS = 10_000  # of a folder
_LIST_EVERY_S = 1.0
_READING_S = 0.1  # CPU time in one look, for runs that were not read yet
_PAUSE_S = 0.02  # between looks while such runs are left, for the requests of the page
_COMPARED = 50  # ended runs in one look
_FAILURES_SENT = 20  # of a run; its details have more
_NAMED = 5  # names in a remark
_OPEN_KEPT = 8  # ended runs whose details were asked for


class Watcher:
    """The runs of one folder. `look` and `detail` may be called from several threads."""

    def __init__(
        self,
        folder: Path,
        index: Index | None = None,
        clock: Callable[[], float] = time.time,
        remote: RemoteRuns | None = None,
    ) -> None:
        """`folder`: that in which `prime-train run` is called. `remote`: runs on other machines."""
        self.remote = remote
        self._twins: dict[str, str] = {}  # runs in the folder that the bus has too, with their names there
        self.stream = Stream()
        self._root = folder / RUNS
        self._index = index
        self._clock = clock
        self._lock = threading.Lock()
        self._live: dict[str, FollowedRun] = {}
        self._ended: dict[str, IndexedRun] = index.load() if index else {}
        self._indexed = set(self._ended)  # shown as they were, until their files are compared
        self._unread: dict[str, None] = {}  # an ordered set
        self._open: OrderedDict[str, FollowedRun] = OrderedDict()
        self._rows: dict[str, dict[str, Any]] = {name: run.row for name, run in self._ended.items()}
        self._failures = {name: run.failures[-_FAILURES_SENT:] for name, run in self._ended.items() if run.failures}
        self._machines: dict[str, dict[str, dict[str, Any]]] = {}  # of each live run
        self._to_keep: dict[str, IndexedRun] = {}
        self._listed_s = -math.inf
        self._left_out: list[str] = []  # names that are not UTF-8, as a reader may write them
        self._problem = ""  # why the latest look has failed
        self._compared = ""  # the name of the ended run that was compared last
        self._publish()

    @property
    def root(self) -> Path:
        return self._root

    def pause_s(self, looked_s: float) -> float:
        """How long to wait before the next look, after one that took `looked_s`."""
        return max(_PAUSE_S, _PAUSE_S if self._unread else LOOK_EVERY_S - looked_s)

    def look(self) -> bool:
        """Read what is new and publish it. Returns whether anything changed."""
        with self._lock:
            now_s = self._clock()
            if now_s - self._listed_s >= _LIST_EVERY_S or now_s < self._listed_s:
                self._listed_s = now_s
                self._list_runs()
            self._compare_ended()
            self._read_unread(now_s)
            for run in list(self._live.values()):
                self._follow(run, now_s)
            if self._index is not None and self._to_keep:
                self._index.keep(self._to_keep)
            self._to_keep = {}
            self._problem = ""
            return self._publish()

    def report(self, problem: str) -> None:
        """Publish why a look has failed. What is shown stays as it was, until a look succeeds."""
        with self._lock:
            self._problem = shorten(problem)
            self._publish()

    def _publish(self) -> bool:
        runs, machines, failures = dict(self._rows), self._join_machines(), dict(self._failures)
        remark = self._describe_trouble()
        if self.remote is not None:
            found = self.remote.view()
            self._twins = find_twins(self._rows, self.remote.documents())
            others = [name for name in found.rows if name not in self._twins.values()]
            runs |= {name: found.rows[name] for name in others}
            machines = join_machines([machines, *(found.machines[name] for name in others)])
            failures |= {name: found.failures[name] for name in others if name in found.failures}
            remark = "; ".join(filter(None, (remark, found.remark)))
        return self.stream.publish(
            {
                "runs": runs,
                "machines": machines,
                "failures": failures,
                "controller": {
                    "folder": shorten(str(self._root)),
                    # Before the first look it is not known which runs there are.
                    "is_complete": not self._unread and self._listed_s > -math.inf,
                    "unread": len(self._unread),
                    "remark": remark,
                },
            }
        )

    def _describe_trouble(self) -> str:
        """What the page lacks, and why; "" if it shows everything."""
        texts = [f"the runs cannot be read: {self._problem}"] if self._problem else []
        if self._left_out:
            named = ", ".join(self._left_out[:_NAMED])
            texts.append(f"{len(self._left_out)} left out, because the name is not UTF-8: {named}")
        return "; ".join(texts)

    def _join_machines(self) -> dict[str, dict[str, Any]]:
        """The machines of all live runs. One that a single run uses is the same object until that run changes."""
        users: dict[str, list[str]] = {}
        for name in self._live:
            for host in self._machines.get(name, {}):
                users.setdefault(host, []).append(name)
        return {
            host: self._machines[names[0]][host]
            if len(names) == 1
            else map_devices(self._live[name] for name in names)[host]
            for host, names in users.items()
        }

    def detail(self, name: str) -> dict[str, Any] | None:
        """Everything of one run; None if there is none with this name."""
        if self.remote is not None and (found := self.remote.detail(name)) is not None:
            return found
        with self._lock:
            run = self._open_run(name)
            return None if run is None else make_detail(run, self._clock())

    def run_dir(self, name: str) -> RunDir | None:
        """The directory of a run in the folder, by its name; None if there is none. A name never leads elsewhere."""
        with self._lock:
            is_known = name in self._rows
        return RunDir(self._root / name) if is_known else None

    def name_on_bus(self, name: str) -> str | None:
        """The name on the bus where only its agent reaches a run; None for one with a supervisor on this machine."""
        with self._lock:
            twin, row = self._twins.get(name), self._rows.get(name)
        if row is None:
            return name if self.remote is not None and "/" in name else None
        return twin if row["host"] not in (None, os.uname().nodename) else None

    def row(self, name: str) -> dict[str, Any] | None:
        with self._lock:
            return self._rows.get(name)

    def _open_run(self, name: str) -> FollowedRun | None:
        """The run, read up to now."""
        if name not in self._rows:
            return None
        now_s = self._clock()
        run = self._live.get(name) or self._open.get(name)
        if run is None:
            run = self._open[name] = FollowedRun(RunDir(self._root / name))
            if len(self._open) > _OPEN_KEPT:
                self._open.popitem(last=False)
        if name not in self._live:
            self._open.move_to_end(name)
            run.poll(now_s)
        while run.curves.poll():
            if self._clock() - now_s > _READING_S:  # the next request shows more of a long file
                break
        return run

    # --- one look ------------------------------------------------------------------------------------

    def _list_runs(self) -> None:
        """Notice runs that are new, and those that are gone."""
        names = set()
        with contextlib.suppress(OSError), os.scandir(self._root) as entries:
            names = {entry.name for entry in islice(entries, MOST_RUNS) if not entry.name.startswith(".")}
        # Neither JSON nor the index can hold such a name, so one of them would keep all runs from the page.
        unfit = {name for name in names if not _is_utf8(name)}
        names -= unfit
        self._left_out = sorted(ascii(name)[1:-1] for name in unfit if _is_run(self._root / name))
        known = {*self._live, *self._ended, *self._unread}
        new = sorted(name for name in names - known if _is_run(self._root / name))
        # A reader of the page wants the runs that train; the others follow.
        new.sort(key=lambda name: not _has_holder(self._root / name))
        self._unread |= dict.fromkeys(new)
        if gone := sorted(known - names):
            for name in gone:
                self._forget(name)
            if self._index is not None:
                self._index.drop(gone)

    def _forget(self, name: str) -> None:
        for found in (self._live, self._ended, self._unread, self._open, self._rows, self._failures, self._machines):
            found.pop(name, None)

    def _compare_ended(self) -> None:
        """Read an ended run again if its files have changed. Those of the index are all compared at the first look."""
        names = sorted(self._indexed) if self._indexed else list(self._next_ended())
        self._indexed = set()
        for name in names:
            run = self._ended.get(name)
            if run is not None and fingerprint(RunDir(self._root / name)) != run.fingerprint:
                del self._ended[name]
                self._unread[name] = None

    def _next_ended(self) -> Iterator[str]:
        names = sorted(self._ended)
        behind = [name for name in names if name > self._compared][:_COMPARED]
        self._compared = behind[-1] if len(behind) == _COMPARED else ""
        return iter(behind)

    def _read_unread(self, now_s: float) -> None:
        """Read runs until the time for that is spent."""
        until_s = time.thread_time() + _READING_S
        while self._unread and time.thread_time() < until_s:
            name = next(iter(self._unread))
            del self._unread[name]
            # Before the events: what is written meanwhile makes the next comparison differ.
            before = fingerprint(RunDir(self._root / name))
            run = FollowedRun(RunDir(self._root / name))
            run.poll(now_s)
            self._show(run, now_s)
            if run.is_supervised:
                self._live[name] = run
                self._open.pop(name, None)
            else:
                self._end(run, before)

    def _follow(self, run: FollowedRun, now_s: float) -> None:
        before = fingerprint(run.run_dir) if not run.is_supervised else ""
        if run.poll(now_s):
            self._show(run, now_s)
        if not run.is_supervised and before:
            self._end(run, before)

    def _show(self, run: FollowedRun, now_s: float) -> None:
        self._rows[run.name] = make_row(run, now_s)
        self._machines[run.name] = map_devices([run])
        failures = find_failures(run.entries)[-_FAILURES_SENT:]
        if failures != self._failures.get(run.name, []):
            self._failures[run.name] = failures

    def _end(self, run: FollowedRun, seen: str) -> None:
        """Keep what was read of a run without a supervisor. `seen`: the fingerprint before it was read."""
        self._live.pop(run.name, None)
        self._machines.pop(run.name, None)
        ended = IndexedRun(seen, self._rows[run.name], self._failures.get(run.name, []))
        self._ended[run.name] = self._to_keep[run.name] = ended


def _is_utf8(name: str) -> bool:
    """Whether the bytes of a name are UTF-8. Python reads others as lone surrogates, which no UTF-8 text has."""
    return not any("\ud800" <= letter <= "\udfff" for letter in name)


def _is_run(path: Path) -> bool:
    try:
        return is_run(path)
    except OSError:  # it has a row with the reason
        return True


def _has_holder(path: Path) -> bool:
    try:
        return find_holder(RunDir(path)) is not None
    except OSError:
        return False
