"""The launcher of replicas that make rounds. It forks them, and each writes down its rounds: training, rows, commits.

python -m tests.drills.round_launcher RUN_DIR --attempt N
"""

from __future__ import annotations

import os
import signal
import zlib
from typing import Any

from prime_train.spec import RunSpec
from prime_train.trainer.data.stream import TakenRows
from prime_train.trainer.loops import local_steps
from prime_train.trainer.replicas.division import divide
from prime_train.trainer.replicas.quorum import Quorum
from prime_train.trainer.replicas.rounds import list_moments
from tests.drills import replica_launcher

KILL_ENV = "REPLICA_KILL"  # "REPLICA STEP": it kills itself in this step, once


def _write_diary(diary: int, number: int) -> None:
    begin, commit, take = Quorum.begin, Quorum.commit, local_steps._RoundRows.take
    quorum: list[Quorum] = []
    parts: list[range] = []

    def note(*words: object) -> None:
        os.write(diary, (" ".join(map(str, words)) + "\n").encode())

    def key() -> tuple[int, str]:
        return quorum[0]._manager.current_step(), f"{quorum[0]._address}/{quorum[0]._manager._quorum_id}"

    def begin_noted(self: Quorum, step: int) -> bool:
        has_changed = begin(self, step)
        quorum[:] = [self]
        training = self.read_state.__self__.seat.training  # type: ignore[attr-defined]
        total = 0
        for tensor in (*training.model.parameters(), *list_moments(training.optimizer)):
            total = zlib.crc32(tensor.detach().numpy().tobytes(), total)
        note("begin", *key(), total, self.size)
        return has_changed

    def divide_noted(rows: int, replicas: int, rank: int) -> range:
        parts[:] = [divide(rows, replicas, rank)]
        return parts[0]

    def take_noted(self: Any, run: RunSpec, step: int) -> TakenRows:
        note("part", *key(), step, parts[0].start, parts[0].stop)
        is_first = os.environ["PRIME_TRAIN_REPLICA_RESTART"] == "0"
        if os.environ.get(KILL_ENV) == f"{number} {step}" and is_first:
            os.kill(os.getpid(), signal.SIGKILL)
        return take(self, run, step)

    def commit_noted(self: Quorum, steps: int = 1) -> None:
        before = key()
        commit(self, steps)
        note("commit", *before, self._manager.current_step())

    Quorum.begin = begin_noted  # type: ignore[method-assign]
    Quorum.commit = commit_noted  # type: ignore[method-assign]
    local_steps._RoundRows.take = take_noted  # type: ignore[method-assign]
    local_steps.divide = divide_noted  # type: ignore[attr-defined]


if __name__ == "__main__":
    replica_launcher._write_diary = _write_diary
    replica_launcher.main()
