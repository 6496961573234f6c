"""Cuts the network between a sender, a server and a reader. Run in a user and network namespace.

python -m tests.system.bus.partition FOLDER SECONDS
"""

import subprocess
import sys
import time
from pathlib import Path

from prime_train.bus.base import KEPT, UnknownOutcome
from prime_train.bus.spool import Spool
from tests.system.bus.stand import EVENTS, standing_nats, until
from tests.system.bus.test_kills import Reader, check_whole, succeeds, write_events


def set_loopback(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def main(folder: Path, seconds: float) -> None:
    set_loopback("up")
    written = write_events(folder / "events", 500)
    with standing_nats(folder / "bus") as stand:
        agent, spool = stand.client("m1"), Spool(folder / "events", folder / "place.json")
        reader = Reader(stand.client().subscribe(KEPT, "reader"))

        def send() -> None:
            batch = spool.next_batch()
            assert batch is not None
            agent.publish(EVENTS, batch.body, batch.id)
            spool.acknowledge()

        send()
        until(lambda: reader.read() >= 200)
        set_loopback("down")
        until_s, longest_s = time.monotonic() + seconds, 0.0
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            try:
                send()
            except UnknownOutcome:
                longest_s = max(longest_s, time.monotonic() - began_s)
                time.sleep(0.2)
        assert longest_s > 0
        set_loopback("up")
        until(lambda: succeeds(send))
        while spool.next_batch() is not None:
            send()
        until(lambda: reader.read() >= len(written))
    check_whole(reader.found, written)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
