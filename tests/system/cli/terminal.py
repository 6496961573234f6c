"""A command on a terminal of its own, as a user sees it: 80 columns, colours, and keys that reach it."""

from __future__ import annotations

import codecs
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import threading
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
    """A program that leads a terminal. A thread reads what it prints, because a full terminal would stop it."""

    def __init__(
        self,
        program: Path,
        *arguments: str,
        cwd: Path,
        python: str = sys.executable,
        columns: str = str(COLUMNS),
        no_color: str = "",
    ) -> None:
        self._ours, its = pty.openpty()
        termios.tcsetwinsize(its, (24, int(columns)))
        hidden = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.process = subprocess.Popen(
            [python, str(program), *arguments],
            cwd=cwd,
            env=environment | {"TERM": "xterm-256color"} | ({"NO_COLOR": no_color} if no_color else {}),
            preexec_fn=lambda: os.login_tty(its),
            pass_fds=(its,),
        )
        os.close(its)
        self._raw, self._is_over, self._more = "", False, threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def raw(self) -> str:
        """What it has printed, with escape sequences."""
        return self._raw

    @property
    def shown(self) -> str:
        """What it has printed, without escape sequences."""
        return _ESCAPE.sub("", self._raw)

    @property
    def rows(self) -> list[str]:
        """The lines that were on the screen, those that were drawn over included."""
        return [row.rstrip() for row in re.split(r"[\r\n]+", self.shown)]

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the pattern is shown, and return its match. Fails at the end of the program or the deadline."""
        wanted = re.compile(pattern)
        with self._more:
            self._more.wait_for(lambda: wanted.search(self.shown) or self._is_over, DEADLINE_S)
        found = wanted.search(self.shown)
        assert found is not None, f"{pattern!r} was not shown:\n{self.shown[-3000:]}"
        return found

    def press(self, key: bytes) -> None:
        """Type on the terminal; b"\\x03" is Ctrl-C."""
        os.write(self._ours, key)

    def end(self) -> int:
        """Wait for the end of the program; returns its exit code."""
        self._reader.join(DEADLINE_S)
        assert self._is_over, f"it has not ended:\n{self.shown[-3000:]}"
        return self.process.wait(DEADLINE_S)

    def close(self) -> None:
        """End a program that a failed test has left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(DEADLINE_S)
        os.close(self._ours)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                data = os.read(self._ours, 65536)
            except OSError:  # Linux reports the end of a terminal's other side as an error
                data = b""
            with self._more:
                self._raw += decoder.decode(data)
                self._is_over = not data
                self._more.notify_all()
            if not data:
                return
