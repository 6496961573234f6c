"""Runs commands of prime-train in forked processes, on a folder with a run and a neighbour. Judges nothing."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from prime_train.core.rundir import RunDir
from tests.unit.cli import small

HOOKS = Path(__file__).with_name("hooks")
REPOSITORY = Path(__file__).resolve().parents[2]
_POLL_S = 0.005
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_IMPORTED_FIRST = (
    *("run.command", "status", "ckpt", "report", "stop", "diagnose", "logs", "terminal.crash"),
    *("run.backup", "run.preflight", "jobs"),
)


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended. `code` is None where it was killed at its limit."""

    code: int | None
    text: str  # stdout and stderr
    wall_s: float


@dataclass(frozen=True, slots=True)
class Stage:
    """A folder: `case` has the run, `canary` what no command may change, `templates` run directories to copy."""

    root: Path
    torch: bool
    ranks: int = 1  # of the trainer; more than one needs the real loop

    @property
    def case(self) -> Path:
        return self.root / "case"

    @property
    def run_dir(self) -> RunDir:
        return RunDir(self.case / "runs" / "small")

    @property
    def canary(self) -> Path:
        return self.root / "canary"

    @property
    def templates(self) -> Path:
        return self.root / "templates"

    def prepare(self) -> None:
        """Make the folders, import what the commands need, and adopt the orphans of killed commands."""
        for folder in (self.templates, self.root / "home", self.root / "cache"):
            folder.mkdir(parents=True, exist_ok=True)
        (self.canary / "folder").mkdir(parents=True, exist_ok=True)
        (self.canary / "file.txt").write_text("of another user\n" * 100, encoding="utf-8")
        (self.canary / "folder" / "data.bin").write_bytes(bytes(range(256)) * 8)
        if ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
            raise OSError("prctl(PR_SET_CHILD_SUBREAPER) failed")
        for name in ("app", *_IMPORTED_FIRST):
            importlib.import_module(f"prime_train.cli.{name}")
        for name in ("prime_train.supervise.core.loop", "prime_train.views.run.plots", "matplotlib.figure"):
            importlib.import_module(name)

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        own = {
            "PYTHONPATH": os.pathsep.join([str(HOOKS), str(REPOSITORY / "src"), str(REPOSITORY)]),
            "PRIME_TRAIN_CACHE": str(self.root / "cache"),
            "PRIME_TRAIN_METADATA": "off",
            "XDG_CONFIG_HOME": str(self.root / "home"),
            "XDG_STATE_HOME": str(self.root / "home"),
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "FUZZ_LOOP": "torch" if self.torch else "arithmetic",
        }
        return {**os.environ, **own, **more}

    def start(self, *arguments: str, output: str = "said.txt", **environment: str) -> int:
        """Fork a process that becomes `prime-train ARGUMENTS` in `case`. Returns its pid."""
        pid = os.fork()
        if pid:
            return pid
        code = 3
        try:
            os.setsid()
            os.chdir(self.case)
            target = os.open(self.root / output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            for descriptor in (1, 2):
                os.dup2(target, descriptor)
            os.environ.clear()
            os.environ.update(self.environment(environment))
            sys.argv = ["prime-train", *arguments]
            from prime_train.cli.app import main

            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:  # the child of a fork must never return into the caller
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def run(self, *arguments: str, limit_s: float = 60.0, **environment: str) -> Ended:
        """Run a command to its end, or to its limit."""
        began_s = time.monotonic()
        pid = self.start(*arguments, **environment)
        code = wait(pid, limit_s)
        text = (self.root / "said.txt").read_text(encoding="utf-8", errors="replace")
        return Ended(code, text, time.monotonic() - began_s)

    def copy(self, template: str) -> None:
        """Replace `case` by a copy of the template."""
        remove(self.case)
        shutil.copytree(self.templates / template, self.case, symlinks=True)

    def write_config(self, steps: int) -> None:
        """An empty `case` with the smallest config."""
        remove(self.case)
        self.case.mkdir()
        small.write(self.case)
        text = small.CONFIG.replace("max_steps = 12", f"max_steps = {steps}").replace(
            "interval_steps = 6", "interval_steps = 50"
        )
        text += f"\n[parallel]\nprocesses = {self.ranks}\n" if self.ranks > 1 else ""
        (self.case / "run.toml").write_text(text, encoding="utf-8")


def wait(pid: int, limit_s: float) -> int | None:
    """The exit code of a child, negative for a signal; None where it was killed at its limit."""
    give_up_s = time.monotonic() + limit_s
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > give_up_s:
            kill_tree(pid)
            return None
        time.sleep(_POLL_S)


def kill_tree(pid: int) -> None:
    """Kill a child of this process and its descendants, and reap the child."""
    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        descendants = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.kill()


def reap(spared: set[int], limit_s: float = 5.0) -> list[str]:
    """Reap the orphans that this process adopted. Returns the command lines of those that live, and kills these."""
    give_up_s = time.monotonic() + limit_s
    while True:
        living = []
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error, ChildProcessError):
                if process.pid in spared:
                    continue
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)
                else:
                    living.append(process)
        if not living or time.monotonic() > give_up_s:
            break
        time.sleep(0.02)
    lines = []
    for process in living:
        with contextlib.suppress(psutil.Error):
            lines.append(f"{process.pid}: {' '.join(process.cmdline())[:120]}")
            process.kill()
    return lines


@contextlib.contextmanager
def stranger() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to no run."""
    with subprocess.Popen(["sleep", "100000"], start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def digest(folder: Path) -> dict[str, str]:
    """What is at each path of a folder: its type, its mode, and its content or target."""
    found = {}
    for directory, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(directory, name)
            if path.is_symlink():
                content = f"link {path.readlink()}"
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            else:
                content = "folder" if path.is_dir() else "special"
            found[str(path.relative_to(folder))] = f"{path.lstat().st_mode:o} {content}"
    return found


def remove(folder: Path) -> None:
    """Delete a folder with what a damage may have left in it."""
    if folder.exists():
        for directory, _, _ in os.walk(folder):
            Path(directory).chmod(0o755)
        shutil.rmtree(folder)
