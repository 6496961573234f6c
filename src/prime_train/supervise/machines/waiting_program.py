"""Holds the bus of a paused run on machine 0, so that the other machines wait as long as the pause lasts.

waiting_program.py [N ...] [test=N ...]

The supervisor's child between two attempts. It prints a line of JSON whenever the machines that are there change, and
for each machine whose GPUs were tested. N: the number of a machine that may leave, because a person took it out.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from prime_train.core.errors import ExitCode, UserError
from prime_train.core.machines import SECRET, Machines, name_machine, read_machines
from prime_train.supervise.machines.channel import Channel
from prime_train.supervise.machines.post import Join, Post, open_post
from prime_train.supervise.machines.protocol import CONFIG_HASH, SILENT_S, Lost, Message
from prime_train.supervise.machines.relay import ask_to_stop
from prime_train.supervise.watches.sample_lines import write

TEST = "test="
_TICK_S = 0.2
_SETTLE_S = 10.0  # for the machines of the attempt before to connect again, on a busy machine
_MOST_TEXT = 2000  # characters of a result


class WaitingRoom:
    """The machines that wait. `tests`: those whose GPUs are to be tested, and that have no result yet."""

    def __init__(self, machines: Machines, post: Post, drained: Sequence[int], tests: Sequence[int]) -> None:
        self.machines = machines
        self.post = post
        self.drained = frozenset(drained)
        self.tests = set(tests)
        self.has_secret = bool(os.environ.get(SECRET))
        self.joined: dict[int, Channel] = {}
        self.reasons: dict[int, str] = {}  # why a machine is not there

    def turn(self) -> None:
        for joining in self.post.take_joins():
            with suppress(Lost):  # it has left already, and may come again
                self._join(joining)
        for rank, channel in list(self.joined.items()):
            try:
                for message in channel.receive():
                    self._handle(rank, channel, message)
            except Lost as error:
                self._lose(rank, str(error))

    def list_missing(self) -> dict[str, str]:
        """The machines that the run needs and that are not there, by name, with the reason."""
        needed = (rank for rank in range(1, self.machines.count) if rank not in self.drained)
        return {self.machines.name(rank): self._reason(rank) for rank in needed if rank not in self.joined}

    def fail_tests(self) -> None:
        """Report the tests of machines that are not there."""
        for rank in self.tests - self.joined.keys():
            self._report(rank, passed=False, what=f"{self.machines.name(rank)} is not there: {self._reason(rank)}")

    def _reason(self, rank: int) -> str:
        return self.reasons.get(rank, "it has not come")

    def _join(self, joining: Join) -> None:
        rank, there = joining.rank, self.joined.get(joining.rank)
        if joining.problem:
            self.reasons[rank] = joining.problem
            joining.channel.send({"kind": "refused", "why": joining.problem})
            joining.channel.close()
        elif there is None or self.has_secret or there.silent_s > SILENT_S:
            if there is not None:  # its supervisor was started again
                there.close()
            joining.channel.send({"kind": "paused", "why": self._explain(rank)})
            if rank in self.tests:
                joining.channel.send({"kind": "test"})
            self.joined[rank] = joining.channel
        else:
            joining.channel.close()

    def _explain(self, rank: int) -> str:
        if rank not in self.drained:
            return "the run is paused, and this machine waits until it goes on"
        return f"this machine is drained; on machine 0 `prime-train gpu return RUN {name_machine(rank)}` returns it"

    def _handle(self, rank: int, channel: Channel, message: Message) -> None:
        match message["kind"]:
            case "tested" if rank in self.tests:
                what, seconds = message["what"][:_MOST_TEXT], message["seconds"]
                self._report(rank, passed=message["passed"], what=what, seconds=seconds)
            case "stop" if rank in self.drained:  # the run goes on waiting for it
                channel.send({"kind": "closed", "code": int(ExitCode.RESUMABLE)})
            case "stop":
                _note(f"{self.machines.name(rank)} got {message['by']}: the run is asked to stop")
                ask_to_stop()
            case other:
                raise Lost(f"it sent {other}")

    def _report(self, rank: int, *, passed: bool, what: str, seconds: float = 0.0) -> None:
        self.tests.discard(rank)
        write({"machine": rank, "passed": passed, "what": what, "seconds": seconds})

    def _lose(self, rank: int, why: str) -> None:
        self.joined.pop(rank).close()
        self.reasons[rank] = why


def main(arguments: Sequence[str]) -> int:
    machines = read_machines(os.environ)
    assert machines is not None, "the supervisor of machine 0 sets the variables"
    drained = [int(one) for one in arguments if not one.startswith(TEST)]
    tests = [int(one.removeprefix(TEST)) for one in arguments if one.startswith(TEST)]
    try:
        with open_post(machines, os.environ.get(SECRET, ""), os.environ[CONFIG_HASH], _note) as (post, server):
            room = WaitingRoom(machines, post, drained, tests)
            settled_s, written = time.monotonic() + _SETTLE_S, None
            while True:
                post.pull(_TICK_S)
                room.turn()
                server.keep()
                missing, is_settled = room.list_missing(), time.monotonic() > settled_s
                if missing != written and (not missing or written is not None or is_settled):
                    write({"missing": missing})
                    written = missing
                if is_settled:
                    room.fail_tests()
    except UserError as error:  # the supervisor starts another child
        write({"missing": {machines.name(0): f"its bus cannot be opened: {error.what}"}})
        return error.exit_code


def _note(text: str) -> None:
    """Write to the log of this child. JSON can hold half a character, which no file stores."""
    sys.stderr.write(text.encode(errors="replace").decode() + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
