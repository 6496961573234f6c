"""A cloud on this machine: runs the script of a job in a fresh folder with a bucket, and takes the machine away.

A bucket is a folder. `Mount.DIRECT`: the machine sees the bucket itself. `Mount.CACHED`: as with SkyPilot's
MOUNT_CACHED, the machine writes to a folder of its own, and closed files are uploaded one after the other in the order
of their writes; what was not uploaded, and every file that was open, is lost with the machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from secrets import token_hex
from typing import Any

import psutil

from prime_train.away.sky.task import BUCKET_VARIABLE

_MARK = "STAND_IN_MACHINE"  # in the environment of every process of a machine, so that only these are ended
SOURCE = Path(__file__).parents[3] / "src"


def _lives(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


class Mount(Enum):
    DIRECT = "direct"
    CACHED = "cached"


@dataclass
class Machine:
    """A machine that runs the script of a job."""

    name: str
    folder: Path
    bucket: Path  # as the machine sees it
    process: subprocess.Popen[bytes]
    output: Path
    mirror: Upload | None = None

    def processes(self) -> list[psutil.Process]:
        """Every process of the machine: the tree of its script, and those that left the tree."""
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            found = {child.pid: child for child in (root, *root.children(recursive=True))}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(_MARK) == self.name:
                    found[process.pid] = process
        return [process for process in found.values() if _lives(process)]

    def take_away(self) -> None:
        """End every process at once and without notice. What was not uploaded is lost."""
        stopped: list[psutil.Process] = []
        for action in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another one die
            for process in self.processes():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(action)
                    stopped.append(process)
            if action is signal.SIGSTOP and self.mirror is not None:
                self.mirror.cut()
        self.process.wait()
        psutil.wait_procs(stopped, timeout=30)

    def wait(self, limit_s: float) -> int:
        """The exit code of the script; then the rest of the files is uploaded, as SkyPilot does at the end of a job."""
        code = self.process.wait(limit_s)
        deadline_s = time.monotonic() + limit_s
        while self.processes():  # the mirror to W&B outlives the script
            assert time.monotonic() < deadline_s, "processes of the machine outlive the script"
            time.sleep(0.1)
        if self.mirror is not None:
            self.mirror.finish()
        return code


@dataclass
class Cloud:
    """Starts machines one after the other, all with the same bucket. `prepare` gets the home folder of each first."""

    root: Path
    task: Mapping[str, Any]
    mount: Mount
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Callable[[Path], None] | None = None
    started: int = 0
    token: str = field(default_factory=lambda: f"machine-{token_hex(4)}")  # several clouds may run at the same time

    @property
    def bucket(self) -> Path:
        return self.root / "bucket"

    def start(self) -> Machine:
        """A machine with nothing on it but the bucket and an installed prime-train, which runs the script."""
        self.started += 1
        name = f"{self.token}-{self.started}"
        folder = self.root / f"machine-{self.started}"
        home = folder / "home"
        _install(home / "prime-train-env" / "bin")
        if self.prepare is not None:
            self.prepare(home)
        self.bucket.mkdir(exist_ok=True)
        seen = self.bucket
        mirror = None
        if self.mount is Mount.CACHED:
            seen = folder / "mount"
            shutil.copytree(self.bucket, seen)
            mirror = Upload(seen, self.bucket)
        environment = {
            "HOME": str(home),
            "PATH": os.defpath,
            "LANG": "C.UTF-8",
            _MARK: name,
            **self.variables,
            **self.task["envs"],
            BUCKET_VARIABLE: str(seen),
        }
        output = folder / "output.log"
        with open(output, "wb") as file:
            process = subprocess.Popen(
                [*_host(name), "bash", "-c", self.task["run"]],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return Machine(name, folder, seen, process, output, mirror)


def _host(name: str) -> list[str]:
    """The beginning of a command that runs under a host name of its own; empty where that is not permitted."""
    words = ["unshare", "--uts"]
    with contextlib.suppress(FileNotFoundError):
        if subprocess.run([*words, "true"], capture_output=True, check=False).returncode == 0:
            return [*words, "sh", "-c", 'hostname "$0" && exec "$@"', name]
    return []


def _install(folder: Path) -> None:
    """What the setup of a job leaves: `python` and `prime-train`, here those of the code under test."""
    folder.mkdir(parents=True)
    run = f"PYTHONPATH={SOURCE} exec {sys.executable}"
    main = "from prime_train.cli.entry import main; main()"
    for name, words in (("python", '"$@"'), ("prime-train", f"-c '{main}' \"$@\"")):
        (folder / name).write_text(f"#!/bin/sh\n{run} {words}\n", encoding="utf-8")
        (folder / name).chmod(0o755)


class Upload:
    """Uploads closed files of a mount, the oldest write first, until it is cut off."""

    def __init__(self, mount: Path, bucket: Path) -> None:
        self._mount, self._bucket = mount, bucket
        self._sent: dict[str, tuple[int, int]] = dict(_stamps(mount))
        self._cut = threading.Event()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """End at once, in the middle of a file if one is being uploaded."""
        self._cut.set()
        self._thread.join()

    def finish(self) -> None:
        """Upload the rest, and end."""
        self._done.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._cut.is_set():
            last = self._done.is_set()
            self._pass(set() if last else _open_files(self._mount))
            if last:
                return
            self._cut.wait(0.05)

    def _pass(self, opened: set[str]) -> None:
        stamps = sorted(_stamps(self._mount), key=lambda item: item[1])
        for name in self._sent.keys() - {name for name, _ in stamps}:
            (self._bucket / name).unlink(missing_ok=True)
            del self._sent[name]
        for name, stamp in stamps:
            if self._cut.is_set():
                return
            if self._sent.get(name) == stamp or str(self._mount / name) in opened:
                continue
            target = self._bucket / name
            target.parent.mkdir(parents=True, exist_ok=True)
            beside = target.with_name(f"{target.name}.uploading")
            with contextlib.suppress(FileNotFoundError):  # deleted or renamed meanwhile
                shutil.copy2(self._mount / name, beside)
                if self._cut.is_set():
                    beside.unlink()
                    return
                beside.replace(target)
                self._sent[name] = stamp


def _stamps(folder: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place) / name
            with contextlib.suppress(FileNotFoundError):
                status = path.lstat()
                yield str(path.relative_to(folder)), (status.st_mtime_ns, status.st_size)


def _open_files(folder: Path) -> set[str]:
    """Files below a folder that a process has open for writing."""
    found: set[str] = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, FileNotFoundError):
            for item in process.open_files():
                if getattr(item, "mode", "r") != "r" and item.path.startswith(str(folder)):
                    found.add(item.path)
    return found
