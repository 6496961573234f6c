"""Prints facts about processes and files. It runs as a child process, because reading them may block for ever.

python evidence_program.py tree PID...          every process of the trees, one JSON object per line
python evidence_program.py process PID          status, wait channel, kernel stack, limits and threads
python evidence_program.py tail BYTES PATH      the end of a file
python evidence_program.py files FOLDER START   name and size of the files whose name starts with START
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import psutil

_MOST_THREADS = 64
_LONGEST_SECRET = 4096


def main() -> None:
    task, *arguments = sys.argv[1:]
    match task:
        case "tree":
            tree([int(pid) for pid in arguments])
        case "process":
            process(int(arguments[0]))
        case "tail":
            try:
                tail(int(arguments[0]), Path(arguments[1]))
            except FileNotFoundError:  # for example the metrics of a server
                sys.exit("there is none")
        case "files":
            folder, start = arguments
            for path in sorted(Path(folder).glob(f"{start}*")):
                write_line(f"{path.name}  {path.stat().st_size} bytes")
        case _:
            sys.exit(f"no such task: {task}")


def write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def tree(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            for found in (root, *root.children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    write_line(json.dumps(_row(found, root.pid)))


def _row(found: psutil.Process, root: int) -> dict[str, object]:
    row: dict[str, object] = {"pid": found.pid, "parent": found.ppid(), "root": root, "state": found.status()}
    row |= {"rank": "", "python": False, "command": found.name(), "dumps": catches(found.pid, signal.SIGUSR1)}
    with contextlib.suppress(psutil.AccessDenied):
        row["python"] = "python" in Path(found.exe()).name
        rank = found.environ().get("RANK", "")
        row["rank"] = rank if rank.isdigit() else ""  # it becomes part of a file name
        row["command"] = " ".join(found.cmdline())
    return row


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal, which would end it otherwise."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def process(pid: int) -> None:
    for name in ("status", "wchan", "stack", "limits"):
        write_line(f"== {name}\n{_read(f'/proc/{pid}/{name}').rstrip()}\n")
    tasks = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    write_line(f"== {len(tasks)} threads")
    for task in tasks[:_MOST_THREADS]:
        folder = f"/proc/{pid}/task/{task}"
        state = next((line for line in _read(f"{folder}/status").splitlines() if line.startswith("State:")), "")
        write_line(f"{task}  {_read(f'{folder}/comm').strip()}  {state}  waits in {_read(f'{folder}/wchan').strip()}")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        return f"({error.strerror})"


def tail(size_bytes: int, path: Path) -> None:
    """The last complete lines. A partial first line is left out, because it may hold a part of a secret."""
    with open(path, "rb") as file:
        before = max(0, os.fstat(file.fileno()).st_size - size_bytes)
        file.seek(before)
        block = file.read(size_bytes)
    if before:
        whole = block.partition(b"\n")[2]
        block = whole or block[_LONGEST_SECRET:]
    sys.stdout.buffer.write(block)


if __name__ == "__main__":
    main()
