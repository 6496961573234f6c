"""Keeps what can be found out about an attempt's processes before they are ended: stacks, waits, GPUs, ends of logs.

Every question is asked in a child with a deadline of its own, and the whole has one: a process that the kernel holds,
a dead mount or a wedged driver costs its item and no more. Ends no process of the attempt.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prime_train.core.process_id import Identity
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import Answer, run_probe
from prime_train.supervise.evidence_items import Item, Keep, stands_at, tell
from prime_train.supervise.state import Child

_PROGRAM = Path(__file__).with_name("evidence_program.py")
_FLIGHT_RECORDER = "collectives_rank_"  # the start of the names of its dumps: see supervise/launch/environment.py
WHERE = "where.txt"
_LOG_LINES = 200
_LOG_BYTES = 512 * 1024
_LONGEST_LINE = 2000
_MOST_PROCESSES = 64
_TREE_SHARE, _LOGS_SHARE = 0.25, 0.2  # of the deadline
_DUMPED_S = 2.0  # for faulthandler's stacks to reach the log


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs that are asked, empty where there is none."""

    py_spy: tuple[str, ...] = ()
    nvidia_smi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """One process of the attempt. `dumps`: it handles SIGUSR1, by which the bundled trainer writes its stacks."""

    pid: int
    role: str
    rank: str = ""
    state: str = ""
    python: bool = True
    dumps: bool = False
    command: str = ""
    worker: bool = False  # of the rank it descends from

    @property
    def label(self) -> str:
        rank = f"-rank{self.rank}" if self.rank else ""
        return f"{self.role}{rank}{'-worker' if self.worker else ''}-{self.pid}"

    @property
    def who(self) -> str:
        stopped = ", which is stopped" if self.state == "stopped" else ""
        return f"{self.role} rank {self.rank} (pid {self.pid}{stopped})" if self.rank else f"{self.role} ({self.pid})"


def where_stood(folder: Path) -> str:
    """Where the rank stood for which the others waited, as far as it is known; empty where it is not."""
    try:
        return (folder / WHERE).read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return ""


def find_tools() -> Tools:
    """The py-spy beside this interpreter, else the one on PATH; nvidia-smi where there is a driver."""
    beside = Path(sys.executable).with_name("py-spy")
    py_spy = str(beside) if beside.exists() else shutil.which("py-spy")
    smi = shutil.which("nvidia-smi")
    return Tools((py_spy,) if py_spy else (), (smi,) if smi else ())


def collect(
    folder: Path,
    children: Sequence[Child],
    logs: Sequence[Path],
    hidden: Sequence[str],
    deadline_s: float = 15.0,
    *,
    metrics: Path | None = None,
    tools: Tools | None = None,
) -> tuple[str, ...]:
    """Write what is found into `folder` and return its items: a file's name, or "NAME: why there is none".

    Returns within about `deadline_s`, whatever hangs. `hidden` are the secrets to mask. May be called from any thread.
    """
    tools = find_tools() if tools is None else tools
    give_up_s = time.monotonic() + deadline_s
    keep = Keep(folder, tuple(hidden))
    alive = [child for child in children if Identity(child.pid, child.start_ticks).alive]
    found = _tree(alive, deadline_s * _TREE_SHARE)
    left_out = found[_MOST_PROCESSES:]
    found = found[:_MOST_PROCESSES]

    logs_s = deadline_s * _LOGS_SHARE
    table = "".join(f"{one.label}  {one.state}  {one.command}\n" for one in found)
    first = [Item("processes.txt", lambda _: table or NotKnown("none is left"))]
    dumps: dict[int, str] = {}
    first += [_stacks(tools.py_spy, one, dumps) for one in found if one.python]
    first += [Item(f"process-{one.label}.txt", _asks("process", str(one.pid))) for one in found]
    first += [Item("nvidia-smi.txt", _tells((*tools.nvidia_smi, "-q")))] if tools.nvidia_smi else []
    first += [Item("flight-recorder.txt", _asks("files", str(folder.parent), _FLIGHT_RECORDER))]
    told = keep.all(first, give_up_s - logs_s)
    told += [f"{len(left_out)} more processes were left out"] if left_out else []
    told = _with_dumps(told, found, logs, min(_DUMPED_S, deadline_s * _LOGS_SHARE / 2))

    last = [Item(WHERE, lambda _: _where(found, dumps) or NotKnown("no stack of a rank could be taken"))]
    last += [Item(f"last-lines-{log.name}", _last_lines(log, _LOG_LINES, keep.redact)) for log in logs]
    last += [Item("metrics.jsonl", _last_lines(metrics, 1, keep.redact))] if metrics else []
    return (*told, *keep.all(last, give_up_s))


# --- questions --------------------------------------------------------------------------------------


def _tree(children: Sequence[Child], deadline_s: float) -> list[Found]:
    """Every process of the attempt, ranks first; the children alone where the others cannot be asked for."""
    roles = {child.pid: child.role for child in children}
    answer = run_probe(_program("tree", *(str(pid) for pid in roles)), deadline_s)
    if isinstance(answer, NotKnown) or answer.code != 0:
        return [Found(child.pid, child.role) for child in children]
    rows = [json.loads(line) for line in answer.out.splitlines()]
    ranks = {row["pid"]: row["rank"] for row in rows}
    found = [
        Found(
            row["pid"],
            roles[row["root"]],
            row["rank"],
            row["state"],
            row["python"],
            row["dumps"],
            row["command"],
            worker=bool(ranks.get(row["parent"])),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.worker, not one.rank, one.pid))


def _program(*arguments: str) -> list[str]:
    return [sys.executable, str(_PROGRAM), *arguments]


def _asks(*arguments: str) -> Callable[[float], str | NotKnown]:
    return _tells(_program(*arguments))


def _tells(command: Sequence[str]) -> Callable[[float], str | NotKnown]:
    """What a program prints; NotKnown where it fails or prints nothing."""

    def take(deadline_s: float) -> str | NotKnown:
        answer = run_probe(command, deadline_s)
        if isinstance(answer, NotKnown):
            return answer
        if answer.code != 0:
            return NotKnown(answer.last_line or f"it ended with {answer.code}")
        return answer.out or NotKnown("there is none")

    return take


def _where(found: Sequence[Found], dumps: Mapping[int, str]) -> str:
    """Where the ranks stand; where none has a number, every process."""
    ranked = [one for one in found if one.rank and not one.worker] or [one for one in found if not one.worker]
    places = {one.who: stands_at(dumps[one.pid]) for one in ranked if one.pid in dumps}
    return tell({who: place for who, place in places.items() if place})


def _stacks(py_spy: tuple[str, ...], one: Found, dumps: dict[int, str]) -> Item:
    def take(deadline_s: float) -> str | NotKnown:
        if not py_spy:
            return NotKnown('py-spy is not installed: pip install "prime-train[train]"')
        # Attaching waits for a process to stop, which one that is stopped already does not do again.
        blocking = () if one.state not in ("stopped", "disk-sleep") else ("--nonblocking",)
        answer = run_probe((*py_spy, "dump", "--pid", str(one.pid), *blocking), deadline_s)
        told = answer if isinstance(answer, NotKnown) else _read_stacks(answer)
        if isinstance(told, str):
            dumps[one.pid] = told
        return told

    return Item(f"stacks-{one.label}.txt", take)


def _read_stacks(answer: Answer) -> str | NotKnown:
    if answer.code == 0 and answer.out:
        return answer.out
    told = next((line for line in answer.err.splitlines() if line.startswith("Error")), answer.last_line)
    if "ermission" in answer.err or "not permitted" in answer.err:
        return NotKnown("not permitted: ptrace is denied; in a container --cap-add SYS_PTRACE allows it")
    return NotKnown(told.removeprefix("Error: ") or f"py-spy ended with {answer.code}")


def _last_lines(path: Path, count: int, redact: Callable[[str], str]) -> Callable[[float], str | NotKnown]:
    """The last lines of a file, each shortened. Secrets go before lines are cut, lest half of one be left."""

    def take(deadline_s: float) -> str | NotKnown:
        raw = _asks("tail", str(_LOG_BYTES), str(path))(deadline_s)
        if isinstance(raw, NotKnown):
            return raw
        lines = redact(raw).splitlines()
        return "\n".join(line[:_LONGEST_LINE] for line in lines[-count:]) + "\n"

    return take


# --- stacks from within -----------------------------------------------------------------------------


def _with_dumps(told: list[str], found: Sequence[Found], logs: Sequence[Path], limit_s: float) -> list[str]:
    """The items with one for all stacks that failed alike; faulthandler is asked where py-spy could not."""
    reasons: dict[str, list[Found]] = {}
    rest = []
    for item in told:
        name, separator, reason = item.partition(": ")
        if separator and name.startswith("stacks-"):
            reasons.setdefault(reason, []).extend(one for one in found if name == f"stacks-{one.label}.txt")
        else:
            rest.append(item)
    for reason, processes in reasons.items():
        asked = [one.pid for one in processes if one.dumps]
        instead = f"; faulthandler was asked instead and writes to the log (pid {_pids(asked)})" if asked else ""
        rest.append(f"stacks of pid {_pids([one.pid for one in processes])}: {reason}{instead}")
        if asked:
            waiter = threading.Thread(target=_dump, args=(asked, logs, limit_s), name="evidence", daemon=True)
            waiter.start()
            waiter.join(limit_s)  # a log on a dead mount holds that thread alone
    return rest


def _pids(pids: Iterable[int]) -> str:
    return ", ".join(str(pid) for pid in pids)


def _dump(pids: Sequence[int], logs: Sequence[Path], limit_s: float) -> None:
    """Ask processes that handle SIGUSR1 for their stacks, and wait until a log has grown and grows no more.

    The bundled trainer registers faulthandler for that signal.
    """
    give_up_s = time.monotonic() + limit_s
    first = sizes = _sizes(logs)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGUSR1)
    while time.monotonic() < give_up_s:
        time.sleep(0.1)
        before, sizes = sizes, _sizes(logs)
        if sizes != first and sizes == before:
            return


def _sizes(logs: Sequence[Path]) -> tuple[int, ...]:
    return tuple(log.stat().st_size if log.exists() else 0 for log in logs)
