"""Records the pictures of the README: a lint and a run that is killed on the way, as they print on a terminal.

`python docs/record_terminal.py` takes about two minutes and writes docs/pictures/terminal.svg and loss.png.
"""

from __future__ import annotations

import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
PROGRAM = Path(sys.executable).with_name("prime-train")
WIDTH_CHARS = 118
NAME = "demo"
CONFIG = """\
[run]
name = "stories"
max_steps = 5000

[[data.sources]]
kind = "files"
path = "data/*.jsonl"

[batch]
micro_batch = 16
global_batch = 100

[optim]
learning_rate = 3e-4
"""


def record(*arguments: str, folder: Path) -> str:
    """What a command prints on a terminal of WIDTH_CHARS columns."""
    main, side = pty.openpty()
    environment = os.environ | {"COLUMNS": str(WIDTH_CHARS), "TERM": "xterm-256color"}
    with subprocess.Popen([PROGRAM, *arguments], cwd=folder, env=environment, stdin=side, stdout=side, stderr=side):
        os.close(side)
        chunks = list(_read(main))
    os.close(main)
    return b"".join(chunks).decode().replace("\r\n", "\n").rstrip()


def _read(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # Linux reports the end of a terminal's other side as an error
            return
        if not chunk:
            return
        yield chunk


def record_run(folder: Path) -> str:
    """The lines of a training whose trainer is killed once; of the lines about single steps only the first ones."""
    command = [PROGRAM, "run", "quickstart", "--run-name", NAME]
    with subprocess.Popen(
        [sys.executable, HERE / "kill_once.py", NAME], cwd=folder, stderr=subprocess.DEVNULL
    ) as killer:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        killer.terminate()
    if done.returncode:
        sys.exit(f"error: the demo ended with exit code {done.returncode}\n{done.stderr}")
    lines: list[str] = []
    for line in done.stderr.splitlines():
        is_step = re.search(r"  step \d+ of ", line) is not None
        if is_step and lines and (lines[-1] == "..." or re.search(r"  step \d+ of ", lines[-1])):
            if lines[-1] != "...":
                lines.append("...")
            continue
        lines.append(line)
    return "\n".join([*lines, done.stdout.rstrip()])


def main() -> None:
    console = Console(record=True, width=WIDTH_CHARS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    pictures = HERE / "pictures"
    pictures.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "run.toml").write_text(CONFIG, encoding="utf-8")
        for command, output in (
            ("lint run.toml", record("lint", "run.toml", folder=folder)),
            (f"run quickstart --run-name {NAME}        # and in another terminal: kill -9", record_run(folder)),
        ):
            console.print(Text.assemble(("$ ", "bold green"), ("prime-train " + command, "bold")))
            console.print(Text.from_ansi(output))
            console.print()
        shutil.copy(folder / "runs" / NAME / "plots" / "loss.png", pictures / "loss.png")
    console.save_svg(str(pictures / "terminal.svg"), title="prime-train")


if __name__ == "__main__":
    main()
