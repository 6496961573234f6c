"""Machines with networks of their own on this one, on one switch whose cables can be cut. Needs root and iproute2.

A cut is silent, as a broken switch is: both sides keep their addresses, and what is sent gets no answer.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Networks:
    """The networks of some machines, by their numbers. `prefix` begins their names."""

    prefix: str

    def name(self, rank: int) -> str:
        return f"{self.prefix}-{rank}"

    @property
    def switch(self) -> str:
        return f"{self.prefix}-switch"

    def address(self, rank: int) -> str:
        return f"10.203.8.{rank + 1}"

    def enter(self, rank: int) -> tuple[str, ...]:
        """The command that runs another one in the network of a machine, with mounts of its own."""
        return ("ip", "netns", "exec", self.name(rank))

    def cut(self, rank: int) -> None:
        _ip("-n", self.switch, "link", "set", f"port{rank}", "nomaster")

    def mend(self, rank: int) -> None:
        _ip("-n", self.switch, "link", "set", f"port{rank}", "master", "switch")

    def list_processes(self, rank: int) -> dict[int, str]:
        """The command lines of the processes in the network of a machine, by their numbers."""
        network = (Path("/run/netns") / self.name(rank)).stat().st_ino
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if (process / "ns" / "net").stat().st_ino == network:
                    command = (process / "cmdline").read_text(errors="replace")
                    found[int(process.name)] = command.replace("\0", " ").strip()
        return found


def can_make_networks() -> bool:
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"pt-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        subprocess.run(["ip", "netns", "del", name], check=True)
    return made


@contextmanager
def joined_networks(count: int) -> Iterator[Networks]:
    found = Networks(f"pt{os.getpid()}")
    with ExitStack() as stack:
        for name in (found.switch, *map(found.name, range(count))):
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
        _ip("-n", found.switch, "link", "add", "name", "switch", "type", "bridge")
        _ip("-n", found.switch, "link", "set", "dev", "switch", "up")
        for rank in range(count):
            name = found.name(rank)
            ends = (
                "name",
                f"port{rank}",
                "netns",
                found.switch,
                "type",
                "veth",
                "peer",
                "name",
                "cable",
                "netns",
                name,
            )
            _ip("link", "add", *ends)
            _ip("-n", name, "addr", "add", f"{found.address(rank)}/24", "dev", "cable")
            for device in ("lo", "cable"):
                _ip("-n", name, "link", "set", device, "up")
            _ip("-n", found.switch, "link", "set", f"port{rank}", "up")
            found.mend(rank)
        yield found


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
