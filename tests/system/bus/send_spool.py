"""Sends the events of a run until all of them are stored: python -m tests.system.bus.send_spool LINE EVENTS PLACE."""

import sys
import time
from pathlib import Path

from prime_train.bus.base import BusError
from prime_train.bus.spool import Spool
from tests.system.bus.stand import EVENTS, open_line


def main(line: str, events: Path, place: Path) -> None:
    bus, spool = open_line(line), Spool(events, place)
    while (batch := spool.next_batch()) is not None:
        try:
            bus.publish(EVENTS, batch.body, batch.id)
        except BusError:
            time.sleep(0.05)
            continue
        spool.acknowledge()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
