"""Measures how soon a run continues after a fault: five faults in real training under `prime-train run`.

    python bench/recovery.py [--rounds 3]

The time counts from the failure to the start of the next attempt, and to its first step. A hang counts as a failure at
the end of the allowed silence. After the death of the supervisor the command is started again at once. The default
back-off (1 s at first) is included.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import record

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the faults are those of the tests

from tests.drills import faults
from tests.drills.faults import drill_in
from tests.drills.scene import Scene


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often to cause each fault")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in faults.FAULTS for row in _recovery(name, Path(folder), given.rounds)]
    record.write("recovery", rows)


def _recovery(name: str, folder: Path, rounds: int) -> list[dict[str, object]]:
    fault, cache = faults.FAULTS[name], folder / "cache"
    is_silent = fault is faults.hang_trainer
    measured = [_once(fault, drill_in(folder / f"{name} {n}", cache, is_silent=is_silent)) for n in range(rounds)]
    starts, steps = zip(*measured, strict=True)
    return [
        record.emit(f"{name}: to the next attempt's start", starts),
        record.emit(f"{name}: to the next step", steps),
    ]


def _once(fault: faults.Fault, drill: Scene) -> tuple[float, float]:
    """Seconds from the failure to the start of the second attempt, and to its first step."""
    drill.prepare()
    with drill.started() as process:
        died_s = fault(drill, process.pid)
        if fault is faults.kill_supervisor:
            process.wait()
        else:
            _await_second(drill)
    if fault is faults.kill_supervisor:
        with drill.started():
            _await_second(drill)
    return faults.started_s(drill, 2) - died_s, faults.stepped_s(drill, 2) - died_s


def _await_second(drill: Scene) -> None:
    drill.until(lambda state: state.attempt_number == 2 and state.live is not None and bool(state.live.first_progress))


if __name__ == "__main__":
    main()
