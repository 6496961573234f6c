"""Checks what a silent attempt does, and keeps evidence before it is ended. Decides nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

from prime_train.core.process_id import Identity
from prime_train.core.rundir import RunDir
from prime_train.events import EvidenceKept
from prime_train.supervise.core.state import Live
from prime_train.supervise.evidence.gather import collect
from prime_train.supervise.watches.hang.activity import Activity, ActivityCheck

EVIDENCE_DEADLINE_S = 15.0


class Suspicion:
    """The checks of one silent attempt: one check of its activity at a time, and its evidence once."""

    def __init__(self, run_dir: RunDir, inbox: SimpleQueue[object], hidden: Sequence[str]) -> None:
        self._run_dir = run_dir
        self._inbox = inbox
        self._hidden = tuple(hidden)
        self._check: ActivityCheck | None = None
        self._unseen = Activity("not known", False)  # the reason if there is no check
        self._silent_since_s = 0.0
        self._evidence_of = 0

    def suspect(self, live: Live) -> None:
        """Start a check of its processes. Repeated calls during the same silence start one check."""
        if self._check is not None and self._silent_since_s == live.last_sign_s:
            return
        self.drop()
        roots = [Identity(child.pid, child.start_ticks) for child in live.children]
        check = ActivityCheck(roots, self._run_dir.watches / "activity.log")
        self._silent_since_s = live.last_sign_s
        try:
            check.begin()
        except OSError as error:  # out of processes or memory: silence that cannot be checked counts
            self._unseen = Activity(f"not known: no process can start to check it: {error.strerror}", False)
        else:
            self._check = check

    def verdict(self, live: Live) -> Activity | None:
        """The activity of its processes; None while the check runs."""
        self.suspect(live)
        if self._check is None:
            return self._unseen
        found = self._check.look(live.phase)
        if found is not None:
            self.drop()
        return found

    def keep_evidence(self, attempt: int, live: Live, logs: Sequence[Path]) -> None:
        """Write the evidence in a thread, once for each attempt; the thread puts EvidenceKept into the inbox."""
        if self._evidence_of == attempt:
            return
        self._evidence_of = attempt
        folder, metrics = self._run_dir.evidence(attempt), self._run_dir.metrics

        def work() -> None:
            items = collect(folder, live.children, logs, self._hidden, EVIDENCE_DEADLINE_S, metrics=metrics)
            self._inbox.put(EvidenceKept(attempt, str(folder), tuple(items)))

        threading.Thread(target=work, name=f"evidence-{attempt}", daemon=True).start()

    def processes(self) -> tuple[Identity, ...]:
        return self._check.processes() if self._check is not None else ()

    def drop(self) -> None:
        """End the check."""
        if self._check is not None:
            self._check.end()
            self._check = None
