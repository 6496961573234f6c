"""Fills the disk of a server's store, and makes room again. Run in a user and mount namespace: full_disk.py FOLDER."""

import subprocess
import sys
from pathlib import Path

from prime_train.bus.base import KEPT, BusError
from tests.system.bus.stand import BEATS, EVENTS, standing_nats, take, until


def main(folder: Path) -> None:
    store = folder / "store"
    store.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(store)], check=True)
    with standing_nats(folder, store_bytes=2**28) as stand:
        agent, controller = stand.client("m1"), stand.client()
        queue, beats = controller.subscribe(KEPT, "reader"), controller.subscribe(BEATS)
        stored = 0
        for number in range(200):
            try:
                agent.publish(EVENTS, {"text": "x" * 2**17}, f"e{number}")
            except BusError:
                break
            stored += 1
        assert 0 < stored < 100
        agent.publish(BEATS, {}, "alive")
        assert [message.id for message in take(beats, 1)] == ["alive"]
        subprocess.run(["mount", "-o", "remount,size=64m", str(store)], check=True)

        def is_stored() -> bool:
            try:
                agent.publish(EVENTS, {"text": "y"}, f"e{stored}")
            except BusError:
                stand.server.keep()
                return False
            return True

        until(is_stored)
        agent.publish(EVENTS, {"text": "y"}, "last")
        found = take(queue, stored + 2)
        assert [message.id for message in found] == [*(f"e{number}" for number in range(stored + 1)), "last"]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
