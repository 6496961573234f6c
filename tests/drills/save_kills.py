"""Kills a real trainer with SIGKILL at seeded moments of its saves, and goes on as a supervisor does.

After each kill the broken checkpoints are taken out of the way, and the trainer starts again. Run as a program it
prints one JSON line: python -m tests.drills.save_kills PYTHON KIND KILLS SEED FOLDER
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, Any

from prime_train.checkpoints import folder_layout, step_folders
from prime_train.checkpoints.aside import make_way
from prime_train.checkpoints.layout_table import read_layout
from prime_train.checkpoints.leftovers import find_leftovers
from prime_train.checkpoints.step_folders import StepPlaces
from prime_train.registry.trainers import trainer_profile

_LIVES = Path(__file__).with_name("trainer_lives.py")
_SAVES_IN_A_LIFE = 3
_KILLS_OF_A_RUN = 10
_BEYOND = 4  # steps of the last life


@dataclass
class KillCounts:
    """What was seen. All but `kills` to `leftovers` must stay 0."""

    kills: int = 0
    broken: int = 0  # checkpoints that a kill left unfinished
    aside: int = 0  # of these: renamed, because the trainer would have loaded them
    runs: int = 0  # that reached their last step in the end
    leftovers: int = 0
    wrongly_complete: int = 0  # complete for the judge, and the packages cannot load it
    wrongly_broken: int = 0  # whole, and not complete for the judge
    resumed_from_broken: int = 0
    stuck: int = 0
    save_s: list[float] = field(default_factory=list)


class Trainers:
    """The process with the packages, and the lives in it."""

    def __init__(self, python: str, kind: str) -> None:
        self.kind = kind
        environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self._process = subprocess.Popen(
            [python, str(_LIVES), kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self._read() == ["ready"], "the packages cannot be imported"

    def lines(self, life: dict[str, Any]) -> Iterator[list[str]]:
        """The lines of a life until it ended."""
        stdin = self._pipe(self._process.stdin)
        stdin.write(json.dumps(life) + "\n")
        stdin.flush()
        while (words := self._read())[0] != "ended":
            yield words
        yield words

    def loads(self, path: Path, log: Path) -> bool:
        return ["loads"] in list(self.lines({"kind": "load", "path": str(path), "log": str(log)}))

    def close(self) -> None:
        self._process.kill()  # no life is left, and to take all the packages down takes long
        self._process.wait()

    def _read(self) -> list[str]:
        line = self._pipe(self._process.stdout).readline()
        assert line, "the process with the packages ended"
        return line.split()

    @staticmethod
    def _pipe(pipe: IO[str] | None) -> IO[str]:
        assert pipe is not None
        return pipe


@contextmanager
def start(python: str, kind: str) -> Iterator[Trainers]:
    trainers = Trainers(python, kind)
    try:
        yield trainers
    finally:
        trainers.close()


@dataclass
class KilledRun:
    """One run with its folder, from the beginning over many kills to its last step."""

    trainers: Trainers
    folder: Path
    tmp: Path
    chance: random.Random
    counts: KillCounts

    _loaded: set[tuple[Path, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        tables = {table["name"]: table for table in trainer_profile(self.trainers.kind).layouts}
        self.out = self.folder / "out"
        self.out.mkdir(parents=True)
        self.places = StepPlaces(self.folder, (self.out,), read_layout(tables[self.trainers.kind], 1))

    def go(self, kills: int) -> None:
        for _ in range(kills):
            self._live(10**6)
            self._recover()
        # Where the last life ends: it has to save at least once more.
        newest = step_folders.find_newest_complete(self.places.checkpoints, self.places.layout)
        last = (newest.step if newest is not None else 0) + _BEYOND
        lives = self._live(last, kills=False)
        found = step_folders.find_newest_complete(self.places.checkpoints, self.places.layout)
        is_done = lives == ["ended", "0"] and found is not None and found.step == last
        self.counts.runs += is_done
        self.counts.stuck += not is_done
        self.counts.leftovers += len(find_leftovers(self.tmp, self.places.layout.temporary))

    def _live(self, max_steps: int, *, kills: bool = True) -> list[str]:
        """One life. It is killed a seeded time after it began a seeded one of its saves."""
        newest = step_folders.find_newest_complete(self.places.checkpoints, self.places.layout)
        life = {"kind": self.trainers.kind, "out": str(self.out), "max_steps": max_steps, "tmp": str(self.tmp)}
        life |= {"resume": str(newest.path) if newest is not None else "", "log": str(self.folder / "log")}
        at, began_s, pid, saves, words = self.chance.randint(1, _SAVES_IN_A_LIFE), 0.0, 0, 0, [""]
        for words in self.trainers.lines(life):
            if words[0] == "pid":
                pid = int(words[1])
            elif words[0] == "saving":
                saves, began_s = saves + 1, time.monotonic()
                if kills and saves == at:
                    self._kill_soon(pid)
            elif words[0] == "saved":
                self.counts.save_s.append(time.monotonic() - began_s)
        if kills and not saves:
            self.counts.stuck += 1  # it ended before it could save anything
        self.counts.kills += kills and words == ["ended", str(-signal.SIGKILL)]
        return words

    def _kill_soon(self, pid: int) -> None:
        typical_s = median(self.counts.save_s[-20:]) if self.counts.save_s else 0.2
        delay_s = self.chance.uniform(0, 1.2 * typical_s)

        def kill() -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

        threading.Timer(delay_s, kill).start()

    def _recover(self) -> None:
        """What a supervisor does before a restart, and what the packages say about it."""
        for found in step_folders.checkpoints(self.places.checkpoints, self.places.layout):
            version = (found.path, found.path.stat().st_mtime_ns)
            if found.complete and version in self._loaded:
                continue
            loads = self.trainers.loads(found.path, self.folder / "check.log")
            self._loaded |= {version} if loads else set()
            self.counts.wrongly_complete += found.complete and not loads
            self.counts.wrongly_broken += loads and not found.complete
            self.counts.broken += not found.complete
        self.counts.aside += len(make_way(self.places, "rename"))
        left = folder_layout.steps(self.places.checkpoints, self.places.layout)
        newest = step_folders.find_newest_complete(self.places.checkpoints, self.places.layout)
        # Both trainers look at names alone, so the highest must be whole.
        self.counts.resumed_from_broken += bool(left) and (newest is None or newest.step != max(left))


def kill_saves(trainers: Trainers, kills: int, seed: int, folder: Path, tmp: Path) -> KillCounts:
    """Run after run, each with up to ten kills."""
    counts, chance, number = KillCounts(), random.Random(seed), 0
    while counts.kills < kills:
        number += 1
        own_tmp = tmp / f"tmp-{number}"
        own_tmp.mkdir(parents=True)
        run = KilledRun(trainers, folder / f"run-{number}", own_tmp, chance, counts)
        run.go(min(_KILLS_OF_A_RUN, kills - counts.kills))
    return counts


def main() -> None:
    python, kind, kills, seed, folder, tmp = sys.argv[1:]
    with start(python, kind) as trainers:
        counts = kill_saves(trainers, int(kills), int(seed), Path(folder), Path(tmp))
    document = vars(counts) | {"save_s": round(median(counts.save_s), 3), "kind": kind, "seed": int(seed)}
    sys.stdout.write(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()
