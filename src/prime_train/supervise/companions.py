"""What goes along with the loop of a supervisor: watches and whatever else looks, listens or tells. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from queue import SimpleQueue

from prime_train.backends.launch import Launch
from prime_train.events import Event, EvidenceKept, Record
from prime_train.rundir import RunDir
from prime_train.spec import RunSpec
from prime_train.supervise.process import Identity
from prime_train.supervise.state import State
from prime_train.supervise.watches.watch import Watch
from prime_train.supervise.watching import Watching


class Companions:
    """Each is told what happens and gives back events, which the loop writes. None of them may hold the loop up."""

    def __init__(self, run: RunSpec, run_dir: RunDir, watches: Sequence[Watch], inbox: SimpleQueue[object]) -> None:
        self._run = run
        self._run_dir = run_dir
        self._inbox = inbox
        self._watching = Watching(watches, run_dir)

    # --- a supervision ---

    def begin(self) -> None:
        self._watching.begin()

    def turn(self, state: State, now_s: float) -> Iterator[Event]:
        """What is new, at each turn of the loop."""
        yield from self._watching.look(state, now_s)

    def hear(self, state: State, records: Sequence[Record]) -> None:
        """What was written since the last call, by whomever."""

    def told(self, state: State, message: object) -> Iterator[Event]:
        """What follows from a message in the inbox that came from one of these."""
        match message:
            case EvidenceKept() if state.live is not None:
                yield message

    def processes(self) -> tuple[Identity, ...]:
        return self._watching.processes()

    def end(self) -> None:
        self._watching.end()

    # --- an attempt ---

    def attempt_begins(self, launches: Sequence[Launch], attempt: int) -> None:
        """Before any of its processes has started."""

    def started(self, launch: Launch, attempt: int) -> None:
        """One of its processes has been started."""

    def keep_evidence(self, state: State, attempt: int) -> None:
        """Write down what can be known of it, beside the loop. Asked again and again until that is done."""

    def attempt_ended(self) -> None:
        """All of its processes are gone."""
