"""A trainer that trains nothing, tells the real events, and harms itself once, at a step of its first attempt.

python victim.py RUN_DIR ATTEMPT RESUME_STEP FAULT [key=value...]
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prime_train.events import CheckpointStarted, Phase, TrainerFailed
from tests.drills import harms_files  # noqa: F401 - its harms are registered by the import
from tests.drills.harms import HARMS, die, harm, marks_of
from tests.fakes import trainer
from tests.fakes.trainer import FOREVER_S, Fake

_kept: list[int] = []
_done: list[str] = []


def misbehave(fake: Fake, name: str) -> None:
    """Once in a life."""
    if name not in _done and name != "nothing":
        _done.append(name)
        marks_of(fake).strike()
        HARMS[name](fake)


# --- ends -------------------------------------------------------------------------------------------


@harm
def killed(_fake: Fake) -> None:
    die()


@harm
def asked_to_end(_fake: Fake) -> None:
    """By somebody else: a scheduler, a person."""
    os.kill(os.getpid(), signal.SIGTERM)


@harm
def raises(fake: Fake) -> None:
    raise RuntimeError(f"boom at step {fake.step}")


@harm
def accounts(fake: Fake) -> None:
    """Tells why it ends, and keeps nothing else."""
    fake.log.append(TrainerFailed(fake.attempt, 0, "unknown", "ValueError: an odd sample", "", "", "data.py:3"))
    os._exit(1)


@harm
def segfault(_fake: Fake) -> None:
    ctypes.string_at(0)


@harm
def aborts(_fake: Fake) -> None:
    os.abort()


@harm
def bus_error(fake: Fake) -> None:
    """Reads a page of a mapping whose file has become shorter, as when /dev/shm is full."""
    path = fake.run_dir.path / "mapped"
    path.write_bytes(bytes(2 * mmap.PAGESIZE))
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        os.truncate(path, 0)
        sys.stderr.write(str(mapped[mmap.PAGESIZE]))


@harm
def exits_0(_fake: Fake) -> None:
    os._exit(0)


@harm
def exits_1(_fake: Fake) -> None:
    os._exit(1)


@harm
def refuses(_fake: Fake) -> None:
    os._exit(2)


@harm
def writes_line(fake: Fake) -> None:
    """Writes the text of a file to its log, and ends."""
    sys.stderr.write(Path(fake.options["text"]).read_text(encoding="utf-8"))
    sys.stderr.flush()
    os._exit(int(fake.options.get("code", 1)))


@harm
def memory_limit(_fake: Fake) -> None:
    """Asks for more memory than its limit leaves."""
    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    bytearray(2**31)


@harm
def too_many_files(fake: Fake) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [open(fake.run_dir.path / "lock", "rb") for _ in range(100)]  # noqa: SIM115 - to have them open is the point
    sys.stderr.write(str(len(kept)))


@harm
def misses_a_package(_fake: Fake) -> None:
    importlib.import_module("a_package_that_nobody_has")


@harm
def finds_no_host(_fake: Fake) -> None:
    """Connects to a port that nobody listens on."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = unused.getsockname()
    socket.create_connection(address, timeout=5)


@harm
def finds_its_port_taken(_fake: Fake) -> None:
    with socket.socket() as thief, socket.socket() as own:
        thief.bind(("127.0.0.1", 0))
        thief.listen()
        own.bind(thief.getsockname())


# --- silence ----------------------------------------------------------------------------------------


@harm
def sleeps(_fake: Fake) -> None:
    time.sleep(FOREVER_S)


@harm
def spins(_fake: Fake) -> None:
    """As a rank does that waits for a collective."""
    while True:
        pass


@harm
def stopped(_fake: Fake) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@harm
def sleeps_in_evaluation(fake: Fake) -> None:
    fake.log.append(Phase(fake.attempt, "evaluate"))
    time.sleep(FOREVER_S)


@harm
def evaluates(fake: Fake) -> None:
    """For longer than a step may take. Nothing is wrong with it."""
    fake.log.append(Phase(fake.attempt, "evaluate"))
    time.sleep(5.0)
    fake.log.append(Phase(fake.attempt, "train"))


@harm
def lingers(fake: Fake) -> None:
    """Says that it failed, and does not end."""
    fake.log.append(TrainerFailed(fake.attempt, 0, "unknown", "RuntimeError: a thread is left", "", "", "a.py:1"))
    time.sleep(FOREVER_S)


@harm
def hangs_in_stop(fake: Fake) -> None:
    """Hears the request to stop, begins to save and never ends."""
    while not fake.asked_to_stop():
        fake.take_step()
    fake.log.append(CheckpointStarted(fake.attempt, fake.step))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(FOREVER_S)


@harm
def saves_slowly(fake: Fake) -> None:
    """A save of two seconds, in which it hears nothing."""
    fake.step += 1
    fake.log.append(CheckpointStarted(fake.attempt, fake.step))
    fake.log.append(Phase(fake.attempt, "checkpoint"))
    time.sleep(2.0)
    fake.save()


@harm
def opens_many(_fake: Fake) -> None:
    """It has nearly all files open that it may, and goes on."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    _kept.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(256 - len(os.listdir("/proc/self/fd")) - 4))


# --- secrets ----------------------------------------------------------------------------------------


def _secrets(fake: Fake) -> str:
    """As a program tells them that does not know better: in an address, in quotes, in a line of JSON."""
    values = [os.environ[name] for name in fake.options["secrets"].split(",")]
    return " ".join(f"{value} {value!r} {json.dumps(value)}" for value in values)


@harm
def prints_secrets(fake: Fake) -> None:
    said = _secrets(fake)
    sys.stderr.write(f"401 Client Error: Unauthorized for url: https://huggingface.co/{said}\n")
    fake.log.append(TrainerFailed(fake.attempt, 0, "unknown", f"ValueError: {said}", said, said, said))
    raise ValueError(said)


@harm
def sleeps_on_secrets(fake: Fake) -> None:
    sys.stderr.write(f"connecting with {_secrets(fake)}\n")
    sys.stderr.flush()
    fake.log.append(Phase(fake.attempt, "train", f"connecting with {_secrets(fake)}"))
    time.sleep(FOREVER_S)


# --- processes that stay behind ---------------------------------------------------------------------

_SLEEP = ["sleep", f"{FOREVER_S:.0f}"]


@harm
def leaves_a_session(fake: Fake) -> None:
    """A child in a session of its own."""
    marks_of(fake).started(subprocess.Popen(_SLEEP, start_new_session=True).pid)
    die()


@harm
def leaves_an_orphan(fake: Fake) -> None:
    """A grandchild whose parent has ended, in a session of its own, deaf to SIGTERM and SIGHUP."""
    _leave_an_orphan(fake, dict(os.environ))


@harm
def leaves_a_stranger(fake: Fake) -> None:
    """The same, and it carries no mark of the run."""
    _leave_an_orphan(fake, {"PATH": os.environ["PATH"]})


def _leave_an_orphan(fake: Fake, environment: dict[str, str]) -> None:
    program = f"trap '' TERM HUP; setsid sleep {FOREVER_S:.0f} > /dev/null & echo $!"
    asked = subprocess.run(["sh", "-c", program], env=environment, stdout=subprocess.PIPE, check=True, text=True)
    marks_of(fake).started(int(asked.stdout))
    die()


if __name__ == "__main__":
    trainer.main(misbehave)
