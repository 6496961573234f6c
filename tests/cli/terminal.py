"""A command on a terminal of its own, as a user sees it: 80 columns, colours, and keys that reach it."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

COLUMNS = 80
DEADLINE_S = 180.0
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PROGRAM = f"#!{sys.executable}\nfrom prime_train.cli.entry import main\nmain()\n"


def write_program(folder: Path) -> Path:
    """The command line as a script, which runs the code of these tests."""
    path = folder / "prime-train"
    path.write_text(_PROGRAM, encoding="utf-8")
    path.chmod(0o755)
    return path


class Terminal:
    """A program that leads a terminal. `shown` is what it has printed, without escape sequences."""

    def __init__(self, program: Path, *arguments: str, cwd: Path, python: str = sys.executable) -> None:
        self._ours, its = pty.openpty()
        termios.tcsetwinsize(its, (24, COLUMNS))
        hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.process = subprocess.Popen(
            [python, str(program), *arguments],
            cwd=cwd,
            env=environment | {"TERM": "xterm-256color"},
            preexec_fn=lambda: os.login_tty(its),
            pass_fds=(its,),
        )
        os.close(its)
        self.raw = ""

    @property
    def shown(self) -> str:
        return _ESCAPE.sub("", self.raw)

    @property
    def rows(self) -> list[str]:
        """The lines that were on the screen, those that were drawn over included."""
        return [row.rstrip() for row in re.split(r"[\r\n]+", self.shown)]

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read until the pattern is shown, and return its match. Fails at the end of the program or the deadline."""
        give_up_s = time.monotonic() + DEADLINE_S
        while not (found := re.search(pattern, self.shown)):
            assert self._read(give_up_s), f"{pattern!r} was not shown:\n{self.shown[-3000:]}"
        return found

    def press(self, key: bytes) -> None:
        """Type on the terminal; b"\\x03" is Ctrl-C."""
        os.write(self._ours, key)

    def end(self) -> int:
        """Read to the end of the program; returns its exit code."""
        give_up_s = time.monotonic() + DEADLINE_S
        while self._read(give_up_s):
            pass
        os.close(self._ours)
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """End a program that a failed test has left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(DEADLINE_S)

    def _read(self, give_up_s: float) -> bool:
        """Whether more was read; False at the end of the program."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, give_up_s - time.monotonic()))
        assert ready, f"nothing more was shown:\n{self.shown[-3000:]}"
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # Linux reports the end of a terminal's other side as an error
            return False
        self.raw += data.decode("utf-8", "replace")
        return bool(data)
