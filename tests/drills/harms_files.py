"""What a victim does to its checkpoints, its disk, its log and its events."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from pathlib import Path

from prime_train.checkpoints import layout
from prime_train.events import CheckpointStarted
from tests.drills.harms import die, harm, marks_of
from tests.fakes.trainer import FOREVER_S, Fake


def _log(fake: Fake) -> Path:
    return fake.run_dir.log(fake.attempt, "trainer")


def _newest(fake: Fake) -> layout.SavedCheckpoint:
    found = layout.newest_complete(fake.run_dir.checkpoints)
    assert found is not None, "save before this fault"
    return found


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
    die()


@harm
def truncates(fake: Fake) -> None:
    newest = _newest(fake)
    marks_of(fake).damage(newest.step)
    os.truncate(newest.path / "state.bin", 10)
    die()


@harm
def loses_a_file(fake: Fake) -> None:
    newest = _newest(fake)
    marks_of(fake).damage(newest.step)
    (newest.path / "state.bin").unlink()
    die()


@harm
def loses_the_manifest(fake: Fake) -> None:
    newest = _newest(fake)
    marks_of(fake).damage(newest.step)
    (newest.path / layout.MANIFEST).unlink()
    die()


@harm
def garbles_the_manifest(fake: Fake) -> None:
    newest = _newest(fake)
    marks_of(fake).damage(newest.step)
    (newest.path / layout.MANIFEST).write_bytes(b"\xff\x00{")
    die()


@harm
def deletes_the_newest(fake: Fake) -> None:
    newest = _newest(fake)
    marks_of(fake).damage(newest.step)
    shutil.rmtree(newest.path)
    die()


@harm
def spoils_all(fake: Fake) -> None:
    """More than one interval would be lost by a start from the beginning."""
    for checkpoint in layout.scan(fake.run_dir.checkpoints):
        marks_of(fake).damage(checkpoint.step)
        (checkpoint.path / "state.bin").unlink()
    die()


@harm
def deletes_the_run(fake: Fake) -> None:
    for checkpoint in layout.scan(fake.run_dir.checkpoints):
        marks_of(fake).damage(checkpoint.step)
    shutil.rmtree(fake.run_dir.path)
    time.sleep(FOREVER_S)


# --- logs and events --------------------------------------------------------------------------------

_DISK_TRACEBACK = """\
Traceback (most recent call last):
  File "/opt/train.py", line 7, in <module>
    shard.write(block)
OSError: [Errno 122] Disk quota exceeded: '/data/cache/shard-7'
"""


@harm
def one_long_line(_fake: Fake) -> None:
    """10 MB without an end of line, and then the cause."""
    sys.stderr.write("x" * 10_000_000 + "\n" + _DISK_TRACEBACK)
    sys.stderr.flush()
    os._exit(1)


@harm
def floods(_fake: Fake) -> None:
    """The cause, and behind it two seconds of 100,000 lines each."""
    sys.stderr.write(_DISK_TRACEBACK)
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
    sys.stderr.buffer.write(bytes(range(256)) * 2000 + b"\n" + _DISK_TRACEBACK.encode())
    sys.stderr.flush()
    os._exit(1)


@harm
def unlinks_its_log(fake: Fake) -> None:
    _log(fake).unlink()
    die()


@harm
def makes_its_log_a_folder(fake: Fake) -> None:
    """A log that cannot be read, by root neither."""
    _log(fake).unlink()
    _log(fake).mkdir()
    die()


@harm
def tears_its_events(fake: Fake) -> None:
    """The last line is cut off in the middle, as by a machine that lost its power."""
    with open(fake.log.path, "ab") as file:
        file.write(b'{"v":2,"t":17')
    die()


@harm
def garbles_its_events(fake: Fake) -> None:
    """Lines that are no events between those that are. It goes on."""
    with open(fake.log.path, "ab") as file:
        file.write(b'\xff\xfe\x00\n{"v":2}\n[]\nnull\n{"v":2,"t":"x","w":1,"n":{},"kind":"progress"}\n')
