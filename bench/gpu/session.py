"""Runs the steps of a part, each in a child of its own: a step that fails, hangs or is killed costs only itself.

A step writes each row when it has measured it. What it wrote is kept however it ends, and the results of the part are
written, with the file replaced at once, when any step has ended. Measures nothing itself, and imports no torch.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import record

from gpu.steps import OUT_OF_REACH, TINY_LIMIT_S, Step, find_limit
from gpu.wheels import list_modules

ROOT = record.HERE.parent
sys.path.append(str(ROOT / "src"))  # this part of prime_train needs the standard library alone

from prime_train.supervise.launch.guard import call_prctl, list_below  # noqa: E402 - found by the line above

_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, linux/prctl.h: orphans below this process become its children
_SHIM = ROOT / "src" / "prime_train" / "supervise" / "launch" / "shim.py"  # ends a step with this process
_END_S = 5.0  # for a killed process to go; one that waits in a driver may stay
_TAIL_BYTES = 4000

Line = dict[str, Any]  # what a child wrote: a row, {"about": ...} or {"skipped": reason}
Entry = dict[str, Any]  # a step as it ended, with its rows


class Session(NamedTuple):
    """Where the steps run. `results` gets gpu_PART.json; `work` gets the rows and the output of the steps."""

    device: str  # "cuda" or "cpu"
    tiny: bool
    results: Path
    work: Path
    variables: Mapping[str, str]
    commit: str = ""
    install_fault: str = ""  # why the wheels could not be installed
    earlier: tuple[Entry, ...] = ()  # other steps of the results, which are kept


def run_part(steps: Sequence[Step], session: Session, left_s: float | None = None) -> int:
    """Run steps of one part and write their results. Returns the exit code: 0 if each is ok or skipped, 1, or 4.

    `left_s`: the seconds that the part has; None for a tiny one, whose steps may each take TINY_LIMIT_S.
    """
    call_prctl(_SUBREAPER, 1)
    until_s = time.monotonic() + (left_s or 0.0)
    about: Line = {}
    done: list[Entry] = []
    for number, step in enumerate(steps, 1):
        left = until_s - time.monotonic()
        limit_s = TINY_LIMIT_S if left_s is None else find_limit(step, tuple(steps[number:]), left)
        ended = _run_step(step, session, limit_s)
        if ended.rc == OUT_OF_REACH:
            print(ended.tail, file=sys.stderr)
            return OUT_OF_REACH
        about |= ended.about
        done.append(_describe(step, ended, session) | about)
        write_results(find_results(session.results, step.part), [*session.earlier, *done])
        _print(done[-1])
    return int(any(entry["ended"] not in ("ok", "skipped") for entry in done))


class _Ended(NamedTuple):
    """How the child of a step ended. `rc` is None if it was killed at its limit, or had no time."""

    how: str
    rc: int | None
    seconds: float
    lines: list[Line]
    tail: str

    @property
    def about(self) -> Line:
        """The card, and the version of torch; empty if the child did not come so far."""
        return next((line["about"] for line in self.lines if "about" in line), {})


def _run_step(step: Step, session: Session, limit_s: float) -> _Ended:
    if limit_s <= 0:
        return _Ended("skipped", None, 0.0, [], "its part has no time left")
    rows, log = (session.work / f"gpu_{step.part.lower()}.{kind}" for kind in ("rows.jsonl", "log"))
    rows_from, log_from = _size_of(rows), _size_of(log)
    began_s = time.monotonic()
    process = _start(step, session, rows, log)
    rc, how = None, f"killed at its limit of {limit_s:.0f} s"
    try:
        rc = process.wait(limit_s)
        how = "ok" if rc == 0 else f"exit code {rc}" if rc > 0 else f"signal {-rc}"
    except subprocess.TimeoutExpired:
        pass
    finally:  # also where this process is told to end
        _end_tree(process)
    seconds = time.monotonic() - began_s
    lines = _parse_lines(_read_from(rows, rows_from))
    tail = _read_from(log, log_from)[-_TAIL_BYTES:].decode("utf-8", "replace")
    skipped = next((line["skipped"] for line in lines if "skipped" in line and "what" not in line), None)
    return _Ended(how, rc, seconds, lines, tail) if skipped is None else _Ended("skipped", rc, seconds, lines, skipped)


def _start(step: Step, session: Session, rows: Path, log: Path) -> subprocess.Popen[bytes]:
    """The child of a step, in a session of its own, which the kernel ends with this process."""
    options = ["--rows", str(rows), "--device", session.device, "--modules", ",".join(list_modules(step.wheels))]
    child = [sys.executable, "-m", "gpu.child", step.name, step.module, *options, *(["--tiny"] if session.tiny else [])]
    with open(log, "ab") as output:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SHIM), str(os.getpid()), "", *child],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=os.environ | session.variables,
            start_new_session=True,
        )


def _end_tree(process: subprocess.Popen[bytes]) -> None:
    """End the process group of a step, then every process that it left below this one, in sessions of their own.

    A process that waits in a driver cannot be ended; the session goes on without it.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
    until_s = time.monotonic() + _END_S
    while (left := list_below(os.getpid())) and time.monotonic() < until_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _describe(step: Step, ended: _Ended, session: Session) -> Entry:
    rows = [line for line in ended.lines if "what" in line]
    entry: Entry = {"step": step.name, "ended": ended.how, "rc": ended.rc, "seconds": round(ended.seconds, 1)}
    if ended.how != "ok":
        entry["tail"] = ended.tail
    if session.install_fault:
        entry["install_fault"] = session.install_fault
    date = time.strftime("%Y-%m-%d", time.gmtime())
    return entry | {"rows": rows, "machine": record.machine(), "commit": session.commit, "date": date}


def _print(entry: Entry) -> None:
    short = {key: entry[key] for key in ("step", "ended", "rc", "seconds")} | {"rows": len(entry["rows"])}
    print(json.dumps(short), flush=True)
    if "tail" in entry:
        print(entry["tail"][-1000:], flush=True)


# --- files ----------------------------------------------------------------------------------------


def find_results(folder: Path, part: str) -> Path:
    return folder / f"gpu_{part.lower()}.json"


def write_results(path: Path, entries: list[Entry]) -> None:
    """Replace the file with one that has these steps."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".json.tmp")
    beside.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


def _size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_from(path: Path, start: int) -> bytes:
    if not path.exists():
        return b""
    with open(path, "rb") as file:
        file.seek(start)
        return file.read()


def _parse_lines(text: bytes) -> list[Line]:
    """The whole lines; the last one is torn if its step was killed as it wrote."""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith(b"\n")]
