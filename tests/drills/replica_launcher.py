"""The launcher of replicas, which forks them: a replica that starts again imports nothing, so a drill has many.

Each replica also writes down what it does: the weights with which it begins a step, its rows, its commits.
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
from subprocess import TimeoutExpired
from typing import Any

from prime_train.trainer import __main__ as trainer
from prime_train.trainer.loops import rank_clock, replicated
from prime_train.trainer.replicas import launcher
from prime_train.trainer.replicas.division import divide
from prime_train.trainer.replicas.quorum import Quorum

DIARY_ENV = "REPLICA_DIARY"
GPUS_ENV = "REPLICA_GPUS"  # where it is set, replica 1 is on GPU-1, and so on
HANG_ENV = "REPLICA_HANG"  # "REPLICA STEP KIND": it hangs there, once, in one of the ways of `_hang`
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
        number = os.environ["PRIME_TRAIN_REPLICA"]
        diary = os.open(f"{os.environ[DIARY_ENV]}-{number}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        _write_diary(diary, int(number))
        if GPUS_ENV in os.environ:
            rank_clock._read_uuid = lambda _device: f"GPU-{number}"  # type: ignore[assignment]
        code = trainer.main(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _write_diary(diary: int, number: int) -> None:
    """Have the quorum and the division write down what they do."""
    begin, commit = Quorum.begin, Quorum.commit
    quorum: list[Any] = []

    def note(*words: object) -> None:
        os.write(diary, (" ".join(map(str, words)) + "\n").encode())

    def begin_noted(self: Quorum, step: int) -> bool:
        has_changed = begin(self, step)
        quorum[:] = [self]
        model = self.read_state.__self__._seat.training.model  # type: ignore[attr-defined]
        total = 0
        for weight in model.parameters():
            total = zlib.crc32(weight.detach().numpy().tobytes(), total)
        note("begin", self._manager.current_step() + 1, _name(self), total, self.size, os.getpid())
        return has_changed

    def divide_noted(rows: int, replicas: int, rank: int) -> range:
        part = divide(rows, replicas, rank)
        step = quorum[0]._manager.current_step() + 1
        note("part", step, _name(quorum[0]), part.start, part.stop, rows)
        hang = os.environ.get(HANG_ENV, "0 0 none").split()
        if hang[:2] == [str(number), str(step)] and os.environ["PRIME_TRAIN_REPLICA_RESTART"] == "0":
            note("hangs", step, _name(quorum[0]), time.monotonic())
            _hang(hang[2], quorum[0])
        return part

    def commit_noted(self: Quorum) -> None:
        commit(self)
        note("commit", self._manager.current_step(), _name(self), time.monotonic())

    Quorum.begin = begin_noted  # type: ignore[method-assign]
    Quorum.commit = commit_noted  # type: ignore[method-assign]
    replicated.divide = divide_noted  # type: ignore[attr-defined]


def _hang(kind: str, quorum: Quorum) -> None:
    """Hang as Python that waits, as a process that is stopped, or in a sum that the others never enter."""
    match kind:
        case "sleep":
            time.sleep(3600.0)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "deadlock":
            quorum.sign.write("sums", quorum._step)
            with socket.create_server(("127.0.0.1", 0)) as server:
                server.accept()


def _name(quorum: Quorum) -> str:
    """Which quorum it is, with the lighthouse that counted it."""
    return f"{quorum._address}/{quorum._manager._quorum_id}"


def main() -> None:
    launcher.start_replica = Forked  # type: ignore[assignment]
    sys.exit(launcher.main(sys.argv[1:]))


if __name__ == "__main__":
    main()
