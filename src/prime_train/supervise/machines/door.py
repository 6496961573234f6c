"""Lets only the machines of a run join: asks for the shared secret, and bounds what a stranger can open.

A stranger on a machine of the run has that machine's address, so an address proves nothing. With a secret, a join that
does not prove it changes nothing. Without one, a join counts as far as it harms no machine that has joined.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from prime_train import __version__
from prime_train.core.machines import Machines
from prime_train.supervise.machines.protocol import Channel, Lost, Message, is_proven, prove

_JOIN_LIMIT_S = 10.0  # from the connection to the join
_MOST_GUESTS = 8  # connections of one address that have not joined
_MOST_NOTES = 20  # different refusals in the log; a flood must not fill the disk


@dataclass(slots=True)
class _Guest:
    """A connection that has not joined yet."""

    channel: Channel
    address: str
    nonce: str
    until_s: float


@dataclass(frozen=True, slots=True)
class Join:
    """A machine that wants to train. `problem`: why it may not; "" if it may. `proven`: it has the secret."""

    rank: int
    channel: Channel
    problem: str
    proven: bool


@dataclass(slots=True)
class Door:
    """The port of machine 0. `secret` is "" where the run has none; `note` writes a line into the log."""

    machines: Machines
    config: str
    secret: str
    note: Callable[[str], None]
    allowed: frozenset[str] = frozenset()  # the addresses from which a machine may connect
    guests: list[_Guest] = field(default_factory=list)
    _noted: set[str] = field(default_factory=set)

    def accept(self, server: socket.socket) -> bool:
        """Take one connection. False if none could be taken, as at the limit of open files."""
        try:
            connection, peer = server.accept()
        except BlockingIOError:  # it was reset before it could be taken
            return True
        except OSError as error:
            self._note(f"no connection can be taken: {error.strerror or error}")
            return False
        address = str(peer[0])
        if address not in self.allowed:
            self._note(f"refused a connection from {address}, which is no machine of this run")
        elif sum(guest.address == address for guest in self.guests) >= _MOST_GUESTS:
            self._note(f"refused a connection from {address}: {_MOST_GUESTS} others from there have not joined")
        else:
            guest = _Guest(Channel(connection), address, secrets.token_hex(16), time.monotonic() + _JOIN_LIMIT_S)
            try:
                guest.channel.send({"kind": "challenge", "nonce": guest.nonce})
            except Lost:
                guest.channel.close()
            else:
                self.guests.append(guest)
            return True
        connection.close()
        return True

    def take_joins(self) -> list[Join]:
        """The joins that have arrived. A guest that sends anything else, or nothing for long, is dropped."""
        found = []
        for guest in list(self.guests):
            joined = None
            try:
                messages = guest.channel.receive()
                if not messages and time.monotonic() < guest.until_s:
                    continue
                joined = self._judge(guest, messages[0]) if messages else None
            except Lost:
                pass  # it has left, or sent what is no message
            self.guests.remove(guest)
            if joined is None:
                guest.channel.close()
            else:
                found.append(joined)
        return found

    def _judge(self, guest: _Guest, message: Message) -> Join | None:
        """The join in a message; None if it is none that counts. Raises Lost."""
        rank = message.get("rank", -1)
        if message["kind"] != "join" or not 0 < rank < self.machines.count:
            return None
        proven = bool(self.secret) and is_proven(self.secret, guest.nonce, message, message["proof"])
        if self.secret and not proven:
            self._note(f"refused {guest.address}, which claims to be {self.machines.name(rank)}: it has another secret")
            guest.channel.send({"kind": "refused", "why": "it has not the secret of this run"})
            return None
        guest.channel.send({"kind": "welcome", "proof": prove(self.secret, message["nonce"], message)})
        return Join(rank, guest.channel, find_difference(message, self.config), proven)

    def _note(self, text: str) -> None:
        if text not in self._noted and len(self._noted) < _MOST_NOTES:
            self._noted.add(text)
            self.note(text)


def find_difference(message: Message, config: str) -> str:
    """What keeps a machine from joining; "" if it may."""
    if message["version"] != __version__:
        return f"it has prime-train {message['version'][:40]}, and machine 0 has {__version__}"
    return "" if message["config"] == config else "its config is not that of machine 0"
