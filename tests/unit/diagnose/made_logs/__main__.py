"""Makes the logs again: `python -m tests.diagnose.made_logs --write [NAME...]`. Without --write: checks them."""

from __future__ import annotations

import argparse
import subprocess
import sys

from tests.unit.diagnose.made_logs.made_log import LOGS, MadeLog, made_logs, right_lines
from tests.unit.diagnose.made_logs.produce import is_runnable, produce


def complaint(log: MadeLog, text: str) -> str:
    """What contradicts the truth in the text of the log; "" if nothing does."""
    if log.is_healthy:
        return "" if text.strip() else "the log is empty"
    places = right_lines(log, text)
    return "" if 0 < len(places) <= 12 else f"{len(places)} lines hold {log.cause!r}"


def _write(logs: list[MadeLog]) -> int:
    LOGS.mkdir(exist_ok=True)
    wrong = 0
    for log in logs:
        if not is_runnable(log):
            sys.stderr.write(f"skipped {log.name}: needs {', '.join(log.needs)}\n")
            continue
        try:
            log.path.write_bytes(produce(log))
        except subprocess.TimeoutExpired as error:
            wrong += 1
            sys.stderr.write(f"{log.name}: {error}\n")
            continue
        if problem := complaint(log, log.text()):
            wrong += 1
            sys.stderr.write(f"{log.name}: {problem}\n{log.text()[-1500:]}\n")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="run the programs and replace the stored logs")
    parser.add_argument("--missing", action="store_true", help="only logs that are not stored yet")
    parser.add_argument("--group", default="", help="only the logs of one file of truth/")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    logs = [log for log in made_logs() if not options.names or log.name in options.names]
    logs = [log for log in logs if not options.group or log.group == options.group]
    if options.missing:
        logs = [log for log in logs if not log.path.exists()]
    if options.write:
        return 1 if _write(logs) else 0
    problems = [f"{log.name}: {found}\n" for log in logs if (found := complaint(log, log.text()))]
    sys.stdout.write("".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
