"""The launcher of replicas, which forks them: a replica that starts again imports nothing, so a drill has many.

Each replica also writes down what it does: the weights with which it begins a step, its rows and their tokens, its
commits.
python -m tests.drills.replica_launcher RUN_DIR --attempt N
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import Any

import torch

from prime_train.trainer import __main__ as trainer
from prime_train.trainer.batch import MicroBatch
from prime_train.trainer.data.stream import TakenRows
from prime_train.trainer.loops import rank_clock, replicated
from prime_train.trainer.parallel import read_local
from prime_train.trainer.replicas import launcher
from prime_train.trainer.replicas.division import divide
from prime_train.trainer.replicas.quorum import Quorum
from tests.drills.slow_rank import FORWARD_ENV, slow_down

DIARY_ENV = "REPLICA_DIARY"
HANG_ENV = "REPLICA_HANG"  # "REPLICA STEP KIND RANK": it hangs there, once, in one of the ways of `_hang`
HOLD_ENV = "REPLICA_HOLD"  # a file: a replica that starts again waits until it is there
GPUS_ENV = "REPLICA_GPUS"  # where it is set, replica 1 is on GPU-1, and so on
_LOOK_S = 0.005


class Forked:
    """The part of Popen that the launcher uses, of a fork."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(variables)
            _live(list(arguments))

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until_s = time.monotonic() + (3600.0 if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > until_s:
                raise TimeoutExpired("replica", timeout or 0.0)
            time.sleep(_LOOK_S)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _live(arguments: list[str]) -> None:
    """The life of one replica; it does not return."""
    code = 1
    with suppress(BaseException):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _hold()
        number = os.environ["PRIME_TRAIN_REPLICA"]
        diary = os.open(f"{os.environ[DIARY_ENV]}-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _write_diary(diary, int(number))
        if FORWARD_ENV in os.environ:
            slow_down()
        if GPUS_ENV in os.environ:
            rank_clock._read_uuid = lambda _device: f"GPU-{number}"  # type: ignore[assignment]
        code = trainer.main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _hold() -> None:
    """Stay away for as long as the drill wants it, as a machine that boots does."""
    held = os.environ.get(HOLD_ENV)
    while held and os.environ["PRIME_TRAIN_REPLICA_RESTART"] != "0" and not Path(held).exists():
        time.sleep(_LOOK_S)


def _write_diary(diary: int, number: int) -> None:
    """Have the quorum and the division write down what they do."""
    begin, commit, read = Quorum.begin, Quorum.commit, TakenRows.read
    quorum: list[Any] = []

    def note(*words: object) -> None:
        os.write(diary, (" ".join(map(str, words)) + "\n").encode())

    def hang(kinds: tuple[str, ...], step: int) -> None:
        place = os.environ.get(HANG_ENV, "0 0 none").split()
        is_here = place[:2] == [str(number), str(step)] and place[3:] in ([], [os.environ["RANK"]])
        if is_here and place[2] in kinds and os.environ["PRIME_TRAIN_REPLICA_RESTART"] == "0":
            _hang(place[2], quorum[0])

    def begin_noted(self: Quorum, step: int) -> bool:
        hang(("early",), step + 1)
        has_changed = begin(self, step)
        quorum[:] = [self]
        model = self.read_state.__self__.seat.training.model  # type: ignore[attr-defined]
        total = 0
        for weight in model.parameters():
            total = zlib.crc32(read_local(weight).numpy().tobytes(), total)
        note("begin", self._manager.current_step() + 1, _name(self), total, self.size, os.getpid())
        return has_changed

    def divide_noted(rows: int, replicas: int, rank: int) -> range:
        part = divide(rows, replicas, rank)
        step = quorum[0]._manager.current_step() + 1
        note("part", step, _name(quorum[0]), part.start, part.stop, rows)
        hang(("sleep", "stop", "deadlock"), step)
        return part

    def read_noted(self: TakenRows, rows: range) -> MicroBatch:
        batch = read(self, rows)
        note("rows", quorum[0]._manager.current_step() + 1, _name(quorum[0]), rows.start, *describe_rows(batch))
        return batch

    def commit_noted(self: Quorum, steps: int = 1) -> None:
        name = _name(self)  # before the commit, because the quorum of the next step may be there soon after it
        commit(self, steps)
        note("commit", self._step, name, time.monotonic())

    Quorum.begin = begin_noted  # type: ignore[method-assign]
    Quorum.commit = commit_noted  # type: ignore[method-assign]
    TakenRows.read = read_noted  # type: ignore[method-assign]
    replicated.divide = divide_noted  # type: ignore[attr-defined]


def describe_rows(batch: MicroBatch) -> list[str]:
    """The tokens and the labels of each row, as "CHECKSUM/LABELLED"."""
    texts = torch.stack([batch.tokens, batch.labels], dim=1)  # (B, 2, T)
    return [f"{zlib.crc32(row.numpy().tobytes())}/{int((row[1] >= 0).sum())}" for row in texts]


def _hang(kind: str, quorum: Quorum) -> None:
    """Hang as Python that waits, as a process that is stopped, or in a sum that the others never enter.

    As Python that waits it hangs among the rows of a step, or `early`: between two steps.
    """
    match kind:
        case "sleep" | "early":
            time.sleep(3600.0)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "deadlock":
            quorum.sign.write("sums", quorum._step)
            with socket.create_server(("127.0.0.1", 0)) as server:
                server.accept()


def _name(quorum: Quorum) -> str:
    """Which quorum it is, with its lighthouse and the rank in the replica: the sums of each rank are its own."""
    return f"{quorum._address}/{quorum._manager._quorum_id}/{os.environ['RANK']}"


def main() -> None:
    launcher.start_replica = Forked  # type: ignore[assignment]
    sys.exit(launcher.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
