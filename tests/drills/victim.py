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
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from prime_train.checkpoints import layout
from prime_train.events import CheckpointStarted, Phase, TrainerFailed
from tests.drills.marks import Marks
from tests.fakes import trainer
from tests.fakes.trainer import FOREVER_S, Fake

Harm = Callable[[Fake], None]
HARMS: dict[str, Harm] = {}
_done: list[str] = []
_kept: list[int] = []


def harm(harm: Harm) -> Harm:
    HARMS[harm.__name__] = harm
    return harm


def _marks(fake: Fake) -> Marks:
    return Marks(fake.run_dir.path.parents[1])


def misbehave(fake: Fake, name: str) -> None:
    """Once in a life."""
    if name not in _done and name != "nothing":
        _done.append(name)
        _marks(fake).strike()
        HARMS[name](fake)


def _log(fake: Fake) -> Path:
    return fake.run_dir.log(fake.attempt, "trainer")


def _newest(fake: Fake) -> layout.Checkpoint:
    found = layout.newest_complete(fake.run_dir.checkpoints)
    assert found is not None, "save before this fault"
    return found


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# --- ends -------------------------------------------------------------------------------------------


@harm
def killed(_fake: Fake) -> None:
    _die()


@harm
def told_to_end(_fake: Fake) -> None:
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
def says(fake: Fake) -> None:
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
def finds_nobody(_fake: Fake) -> None:
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
def tells_secrets(fake: Fake) -> None:
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


# --- disks and checkpoints --------------------------------------------------------------------------


@harm
def file_limit(fake: Fake) -> None:
    """Its next save finds no room: the limit of a file's size answers as a full disk does."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    _save_large(fake, fake.run_dir.checkpoint(fake.step + 1))


@harm
def full_disk(fake: Fake) -> None:
    """Saves onto a disk of 1 MB. The program that set the drill up has mounted it."""
    _save_large(fake, Path(fake.options["disk"]) / "step_1")


def _save_large(fake: Fake, folder: Path) -> None:
    fake.log.append(CheckpointStarted(fake.attempt, fake.step))
    folder.mkdir(parents=True)
    (folder / "state.bin").write_bytes(bytes(4 * 2**20))


@harm
def dies_in_save(fake: Fake) -> None:
    """Leaves half a checkpoint behind: files, and no manifest."""
    folder = fake.run_dir.checkpoint(fake.step + 1)
    fake.log.append(CheckpointStarted(fake.attempt, fake.step + 1))
    folder.mkdir()
    (folder / "state.bin").write_bytes(bytes(500))
    _die()


@harm
def truncates(fake: Fake) -> None:
    newest = _newest(fake)
    _marks(fake).damage(newest.step)
    os.truncate(newest.path / "state.bin", 10)
    _die()


@harm
def loses_a_file(fake: Fake) -> None:
    newest = _newest(fake)
    _marks(fake).damage(newest.step)
    (newest.path / "state.bin").unlink()
    _die()


@harm
def loses_the_manifest(fake: Fake) -> None:
    newest = _newest(fake)
    _marks(fake).damage(newest.step)
    (newest.path / layout.MANIFEST).unlink()
    _die()


@harm
def garbles_the_manifest(fake: Fake) -> None:
    newest = _newest(fake)
    _marks(fake).damage(newest.step)
    (newest.path / layout.MANIFEST).write_bytes(b"\xff\x00{")
    _die()


@harm
def deletes_the_newest(fake: Fake) -> None:
    newest = _newest(fake)
    _marks(fake).damage(newest.step)
    shutil.rmtree(newest.path)
    _die()


@harm
def spoils_all(fake: Fake) -> None:
    """More than one interval would be lost by a start from the beginning."""
    for checkpoint in layout.scan(fake.run_dir.checkpoints):
        _marks(fake).damage(checkpoint.step)
        (checkpoint.path / "state.bin").unlink()
    _die()


@harm
def deletes_the_run(fake: Fake) -> None:
    for checkpoint in layout.scan(fake.run_dir.checkpoints):
        _marks(fake).damage(checkpoint.step)
    shutil.rmtree(fake.run_dir.path)
    time.sleep(FOREVER_S)


# --- logs and events --------------------------------------------------------------------------------

_DISK_LINE = "OSError: [Errno 122] Disk quota exceeded: '/data/cache/shard-7'\n"


@harm
def one_long_line(_fake: Fake) -> None:
    """10 MB without an end of line, and then the cause."""
    sys.stderr.write("x" * 10_000_000 + "\n" + _DISK_LINE)
    sys.stderr.flush()
    os._exit(1)


@harm
def floods(_fake: Fake) -> None:
    """The cause, and behind it two seconds of 100,000 lines each."""
    sys.stderr.write(_DISK_LINE)
    for second in range(2):
        begun_s = time.monotonic()
        for block in range(100):
            sys.stderr.write("".join(f"INFO step {second} sample {block * 1000 + line}\n" for line in range(1000)))
        sys.stderr.flush()
        time.sleep(max(0.0, 1.0 - (time.monotonic() - begun_s)))
    os._exit(1)


@harm
def writes_bytes(_fake: Fake) -> None:
    """No text at all, and then the cause."""
    sys.stderr.buffer.write(bytes(range(256)) * 2000 + b"\n" + _DISK_LINE.encode())
    sys.stderr.flush()
    os._exit(1)


@harm
def unlinks_its_log(fake: Fake) -> None:
    _log(fake).unlink()
    _die()


@harm
def makes_its_log_a_folder(fake: Fake) -> None:
    """A log that cannot be read, by root neither."""
    _log(fake).unlink()
    _log(fake).mkdir()
    _die()


@harm
def tears_its_events(fake: Fake) -> None:
    """The last line is cut off in the middle, as by a machine that lost its power."""
    with open(fake.log.path, "ab") as file:
        file.write(b'{"v":1,"t":17')
    _die()


@harm
def garbles_its_events(fake: Fake) -> None:
    """Lines that are no events between those that are. It goes on."""
    with open(fake.log.path, "ab") as file:
        file.write(b'\xff\xfe\x00\n{"v":1}\n[]\nnull\n{"v":1,"t":"x","w":1,"n":{},"kind":"progress"}\n')


# --- processes that stay behind ---------------------------------------------------------------------

_SLEEP = ["sleep", f"{FOREVER_S:.0f}"]


@harm
def leaves_a_session(fake: Fake) -> None:
    """A child in a session of its own."""
    _marks(fake).started(subprocess.Popen(_SLEEP, start_new_session=True).pid)
    _die()


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
    _marks(fake).started(int(asked.stdout))
    _die()


if __name__ == "__main__":
    trainer.main(misbehave)
