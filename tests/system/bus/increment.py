"""Adds one to a key, again and again, by comparing and setting: python -m tests.system.bus.increment LINE TIMES."""

import sys

from prime_train.bus.base import RevisionConflict
from tests.system.bus.stand import open_line


def main(line: str, times: int) -> None:
    values = open_line(line).kv("counts")
    for _ in range(times):
        while True:
            found = values.get("count")
            count, revision = (int(found.value["n"]), found.revision) if found and found.value else (0, 0)
            try:
                values.update("count", {"n": count + 1}, revision)
            except RevisionConflict:
                continue
            break


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
