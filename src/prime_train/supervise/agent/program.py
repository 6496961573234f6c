"""The agent of one run: `prime_train.supervise.agent.program RUN`. It ends shortly after the supervisor.

After a lost connection, a restart or a full store it goes on with the events that the bus has not stored.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

from prime_train.bus.base import Bus, BusError, BusRefused, to_word
from prime_train.bus.open import open_bus, read_link
from prime_train.bus.spool import Spool
from prime_train.core.errors import UserError
from prime_train.core.outside import RECORD_BYTES, read_json
from prime_train.core.redaction import own_secrets, redact
from prime_train.core.rundir import RunDir
from prime_train.events import Follower, RequestAnswered
from prime_train.spec.supervision import BusLink
from prime_train.supervise.agent.commands import Commands
from prime_train.supervise.agent.evidence import EvidenceQueue
from prime_train.supervise.agent.present import PresentState, read_latest_step
from prime_train.supervise.agent.pulse import Pulse
from prime_train.supervise.agent.traces import TraceQueue
from prime_train.supervise.processes.beside import enter_background, hold_alone, start_beside
from prime_train.supervise.processes.lock import find_holder

BEAT_S = 1.0
_PRESENT_EVERY = 10  # heartbeats: GPUs are sampled every ten seconds
_TURN_S = 0.25  # a command ends the wait
_REFUSED_S = 5.0  # before a batch is sent again that the bus has refused
_MOST_REASONS = 32  # in the log: a run may last for months without a reader of its bus
_LAST_BYTES = 256 << 10  # of each file of events, from which the first heartbeat is made
_WAIT_FOR_SUPERVISOR_S = 30.0  # another one may take over until then
_FLUSH_S = 60.0  # for the last events; a later run sends what is left
_NICENESS = 10  # the trainer has the processor first
_MOST_RESTARTS = 3  # after unexpected errors, with longer and longer pauses
_FIRST_PAUSE_S = 2.0


def start(run_dir: RunDir, link: BusLink) -> None:
    """Starts the agent, which outlives the run for its last events.

    Call it before the supervisor becomes the subreaper of its descendants. Raises OSError if it cannot be started, and
    UserError for an address or credentials that cannot be used.
    """
    assert link.url is not None, "a run without a bus has no agent"
    read_link(link.url, link.credentials_file, link.credentials_env, os.environ)
    start_beside(__name__, run_dir, run_dir.bus / "agent.log")


def main() -> int:
    run_dir = enter_background(__doc__)
    if run_dir is None:
        return 0
    os.nice(_NICENESS)
    # An earlier agent goes on with the run of a later supervisor, so it is waited for without a limit.
    with hold_alone(run_dir.bus / "agent.lock", math.inf):
        return _serve_again(lambda: _serve(run_dir))


def _serve_again(serve: Callable[[], int], first_pause_s: float = _FIRST_PAUSE_S) -> int:
    """The exit code of `serve`, which is started again after an unexpected error, because the supervisor does not."""
    for restarts in range(_MOST_RESTARTS + 1):
        if restarts:
            time.sleep(first_pause_s * 2**restarts)
        try:
            return serve()
        except Exception:
            _log(f"an unexpected error: {redact(traceback.format_exc(), own_secrets())}")
    _log(f"the agent ends after {_MOST_RESTARTS} restarts; the next one of the run sends the events that are left")
    return 1


def _serve(run_dir: RunDir) -> int:
    link = read_bus_link(run_dir)
    assert link.url is not None, "the run was started with a bus"
    try:
        credentials = read_link(link.url, link.credentials_file, link.credentials_env, os.environ)
    except UserError as error:
        _log(str(error))
        return 1
    machine = name_machine(link, credentials.user if credentials else "")
    with contextlib.closing(open_bus(credentials, f"{machine} {run_dir.path.name}"[:200])) as bus:
        Agent(run_dir, bus, to_word(run_dir.path.name), machine).follow()
    return 0


def read_bus_link(run_dir: RunDir) -> BusLink:
    """[prime_train.bus] of the run. Raises OSError and ValueError for a directory without a config that can be read."""
    found = read_json(run_dir.resolved, RECORD_BYTES, within=run_dir.path)
    return BusLink(**found["prime_train"]["bus"])


def name_machine(link: BusLink, user: str) -> str:
    """The name of this machine on the bus: that of its credentials, because a server lets it speak for no other."""
    return user or to_word(link.machine or os.uname().nodename)


class Agent:
    """Publishes events and heartbeats of a run, and receives its commands."""

    def __init__(self, run_dir: RunDir, bus: Bus, job: str, machine: str) -> None:
        self._run_dir = run_dir
        self._bus = bus
        self._subject = f"pt.{job}.r.{machine}"
        self._spool = Spool(run_dir.events, run_dir.bus / "place.json")
        self._events = Follower.near_end(run_dir.events, _LAST_BYTES)
        self._pulse = Pulse()
        self._present = PresentState(run_dir)
        self._life = os.urandom(4).hex()
        self._beats = 0
        self._changed = False  # what only some heartbeats have
        self._next_batch_s = 0.0
        self._heard = [bus.subscribe(f"pt.{job}.cmd.{who}") for who in (machine, "all")]
        self._hidden = own_secrets()
        self._evidence, self._traces = EvidenceQueue(run_dir, self._hidden), TraceQueue(run_dir)
        self._commands = Commands(run_dir, bus, lambda text: _log(redact(text, self._hidden)), self._hidden)
        self._reasons: set[str] = set()  # what went wrong, each in the log once

    def follow(self) -> None:
        """Returns when the run is over and its events are sent, or cannot be sent for a while."""
        unheld_s: float | None = None
        next_s = 0.0
        while True:
            # Once in a second, because each look costs a tenth of a millisecond and more.
            if is_due := time.monotonic() >= next_s:
                next_s = time.monotonic() + BEAT_S
                is_held = find_holder(self._run_dir) is not None  # first, so that the last events are read below
                self._look()
            is_idle = self._turn()
            if is_held or not is_due:
                unheld_s = None if is_held else unheld_s
                continue
            unheld_s = unheld_s or time.monotonic()
            silent_s = time.monotonic() - unheld_s
            is_closed = self._pulse.exit_code is not None
            if (is_closed and is_idle) or (silent_s > _WAIT_FOR_SUPERVISOR_S and (is_idle or silent_s > _FLUSH_S)):
                self._beat(self._pulse if is_closed else replace(self._pulse, state="died"))
                return

    def _look(self) -> None:
        """Read what changed, and send a heartbeat."""
        with self._reported():
            for record in self._events.poll():
                self._pulse = self._pulse.after(record)
                self._evidence.add(record)
                self._changed |= isinstance(record.event, RequestAnswered)
        self._beat(self._pulse)

    def _turn(self) -> bool:
        """Send and receive what there is. Returns whether every event is sent."""
        is_idle = time.monotonic() >= self._next_batch_s and self._send()
        for number, subscription in enumerate(self._heard):
            for message in subscription.take(_TURN_S if number == 0 else 0):
                self._commands.receive(message)
        for problem in self._bus.take_problems():
            self._log_once(problem)
        return is_idle

    def _beat(self, pulse: Pulse) -> None:
        more = read_latest_step(self._run_dir)
        if self._changed or self._beats % _PRESENT_EVERY == 0:
            self._changed = False
            more |= self._present.read(time.time())
        self._beats += 1
        # One that is late is worth nothing, so it is not repeated: the next follows in a second.
        with contextlib.suppress(BusError, ValueError):
            self._bus.publish(f"{self._subject}.hb", {**asdict(pulse), **more}, f"{self._life}:{self._beats}")

    def _send(self) -> bool:
        """Send a batch. Returns whether there is none."""
        with self._reported():
            batch = self._spool.next_batch()
            if batch is None:
                return self._send_evidence()
            self._bus.publish(f"{self._subject}.ev", batch.body, batch.id)
            self._spool.acknowledge()
        return False

    def _send_evidence(self) -> bool:
        """Send that of one failed attempt, after its events; then a part of a trace. Returns whether there is none."""
        found = self._evidence.next_message()
        if found is not None:
            self._bus.publish(f"{self._subject}.ev", found.body, found.id)
            self._evidence.acknowledge(found.attempt)
            return False
        trace = self._traces.next_message()
        if trace is not None:
            self._bus.publish(f"{self._subject}.ev", trace.body, trace.id)
            self._traces.acknowledge()
        return trace is None

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        """What fails is tried again: the events stay in their files."""
        try:
            yield
        except BusError as error:
            self._next_batch_s = time.monotonic() + (_REFUSED_S if isinstance(error, BusRefused) else BEAT_S)
            self._log_once(f"events are not stored by the bus, and are sent again: {error}")
        except UserError as error:  # the folder of the events may not be read
            self._next_batch_s = time.monotonic() + _REFUSED_S
            self._log_once(str(error))

    def _log_once(self, text: str) -> None:
        reason = redact(text, self._hidden)
        if reason not in self._reasons and len(self._reasons) < _MOST_REASONS:
            self._reasons.add(reason)
            _log(reason)


def _log(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")


if __name__ == "__main__":
    sys.exit(main())
