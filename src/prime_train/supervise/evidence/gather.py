"""Writes the state of an attempt's processes to files before they are ended: stacks, waits, GPUs, last log lines.

Every item is read in a child process with a deadline, so a process that the kernel holds, a dead mount or a driver that
hangs costs only one item. Ends no process of the attempt.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from prime_train.core import outside
from prime_train.core.installation import install_command
from prime_train.core.outside import MARK_BYTES
from prime_train.core.process_id import Identity, signal_checked
from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import ProbeOutput, run_probe
from prime_train.supervise.core.state import ChildProcess
from prime_train.supervise.evidence.items import EvidenceItem, EvidenceWriter, find_program_line, format_places
from prime_train.supervise.launch import environment
from prime_train.supervise.launch.program import is_guard

_PROGRAM = Path(__file__).with_name("evidence_program.py")
_FLIGHT_RECORDER = "collectives_rank_"  # its dumps start with this: see supervise/launch/environment.py
WHERE = "where.txt"
_LOG_LINES = 200
_LOG_BYTES = 512 * 1024
_LONGEST_LINE = 2000
_MOST_PROCESSES = 64
_TREE_SHARE, _LOGS_SHARE = 0.25, 0.2  # of the deadline
_DUMPED_S = 2.0  # for the stacks of faulthandler to reach the log


@dataclass(frozen=True, slots=True)
class EvidenceTools:
    """The commands of the external programs; empty if not installed."""

    py_spy: tuple[str, ...] = ()
    nvidia_smi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ProcessFound:
    """One process of the attempt. `dumps`: it handles SIGUSR1, for which the bundled trainer writes its stacks."""

    pid: int
    role: str
    rank: str = ""
    state: str = ""
    python: bool = True
    dumps: bool = False
    command: str = ""
    worker: bool = False  # a child process of a rank

    @property
    def label(self) -> str:
        rank = f"-rank{self.rank}" if self.rank else ""
        return f"{self.role}{rank}{'-worker' if self.worker else ''}-{self.pid}"

    @property
    def title(self) -> str:
        stopped = ", which is stopped" if self.state == "stopped" else ""
        return f"{self.role} rank {self.rank} (pid {self.pid}{stopped})" if self.rank else f"{self.role} ({self.pid})"


def read_stuck_place(folder: Path) -> str:
    """The source line of the rank that the others waited for; empty if it is not known."""
    try:
        return outside.read_text(folder / WHERE, MARK_BYTES, folder, "replace").partition("\n")[0]
    except OSError:
        return ""


def find_tools() -> EvidenceTools:
    """py-spy beside this interpreter or on PATH, and nvidia-smi on PATH."""
    beside = Path(sys.executable).with_name("py-spy")
    py_spy = str(beside) if beside.exists() else shutil.which("py-spy")
    smi = shutil.which("nvidia-smi")
    return EvidenceTools((py_spy,) if py_spy else (), (smi,) if smi else ())


def collect(
    folder: Path,
    children: Sequence[ChildProcess],
    logs: Sequence[Path],
    hidden: Sequence[str],
    deadline_s: float = 15.0,
    *,
    metrics: Path | None = None,
    tools: EvidenceTools | None = None,
) -> tuple[str, ...]:
    """Write the evidence into `folder`.

    Returns one text per item: its file name, or "NAME: the problem". Returns within about `deadline_s` in any case.
    `hidden` are the secrets to mask. May be called from any thread.
    """
    tools = find_tools() if tools is None else tools
    give_up_s = time.monotonic() + deadline_s
    writer = EvidenceWriter(folder, tuple(hidden))
    alive = [child for child in children if Identity(child.pid, child.start_ticks).alive]
    found = _list_tree(alive, deadline_s * _TREE_SHARE)
    found, left_out = found[:_MOST_PROCESSES], found[_MOST_PROCESSES:]
    logs_s = deadline_s * _LOGS_SHARE
    table = "".join(f"{one.label}  {one.state}  {one.command}\n" for one in found)
    first = [EvidenceItem("processes.txt", lambda _: table or NotKnown("no process is left"))]
    dumps: dict[int, str] = {}
    first += [_stacks_item(tools.py_spy, one, dumps) for one in found if one.python]
    first += [EvidenceItem(f"process-{one.label}.txt", _ask_program("process", str(one.pid))) for one in found]
    first += [EvidenceItem("nvidia-smi.txt", _capture((*tools.nvidia_smi, "-q")))] if tools.nvidia_smi else []
    first += [EvidenceItem("flight-recorder.txt", _ask_program("files", str(folder.parent), _FLIGHT_RECORDER))]
    results = writer.write_all(first, give_up_s - logs_s)
    results += [f"{len(left_out)} more processes were left out"] if left_out else []
    dumped_s = min(_DUMPED_S, deadline_s * _LOGS_SHARE / 2)
    request = partial(_request_dumps, folder.parents[2], logs=logs, limit_s=dumped_s)
    results = _merge_stack_failures(results, found, request, dumped_s)

    last = [EvidenceItem(WHERE, lambda _: _find_places(found, dumps) or NotKnown("no stack of a rank could be taken"))]
    last += [EvidenceItem(f"last-lines-{log.name}", _read_last_lines(log, _LOG_LINES, writer.redact)) for log in logs]
    last += [EvidenceItem("metrics.jsonl", _read_last_lines(metrics, 1, writer.redact))] if metrics else []
    return (*results, *writer.write_all(last, give_up_s))


def _list_tree(children: Sequence[ChildProcess], deadline_s: float) -> list[ProcessFound]:
    """Every process of the attempt; only the children if the tree cannot be read.

    Ranks are first. Then a child that started later is before those that it waits for: a trainer before its server.
    """
    roles = {child.pid: child.role for child in children}
    order = {child.role: -number for number, child in enumerate(children)}
    answer = run_probe(_program_argv("tree", *(str(pid) for pid in roles)), deadline_s)
    if isinstance(answer, NotKnown) or answer.code != 0:
        return [ProcessFound(child.pid, child.role) for child in children]
    rows = [row for line in answer.out.splitlines() if not is_guard((row := json.loads(line))["command"])]
    ranks = {row["pid"]: row["rank"] for row in rows}
    found = [
        ProcessFound(
            *(row["pid"], roles[row["root"]], row["rank"], row["state"]),
            *(row["python"], row["dumps"], row["command"], bool(ranks.get(row["parent"]))),
        )
        for row in rows
    ]
    return sorted(found, key=lambda one: (one.worker, not one.rank, order[one.role], one.pid))


def _program_argv(*arguments: str) -> list[str]:
    return [sys.executable, str(_PROGRAM), *arguments]


def _ask_program(*arguments: str) -> Callable[[float], str | NotKnown]:
    return _capture(_program_argv(*arguments))


def _capture(command: Sequence[str]) -> Callable[[float], str | NotKnown]:
    """The output of a program; NotKnown if it fails or prints nothing."""

    def take(deadline_s: float) -> str | NotKnown:
        answer = run_probe(command, deadline_s)
        if isinstance(answer, NotKnown):
            return answer
        if answer.code != 0:
            return NotKnown(answer.last_line or f"it ended with {answer.code}")
        return answer.out or NotKnown("there is none")

    return take


def _find_places(found: Sequence[ProcessFound], dumps: Mapping[int, str]) -> str:
    """The source line of each rank; of each process, in their order, if none has a rank."""
    ranked = [one for one in found if one.rank and not one.worker]
    dumped = [one for one in ranked or found if one.pid in dumps and not one.worker]
    places = {one.title: place for one in dumped if (place := find_program_line(dumps[one.pid]))}
    return format_places(places) if ranked else "".join(f"{title}: {place}\n" for title, place in places.items())


def _stacks_item(py_spy: tuple[str, ...], one: ProcessFound, dumps: dict[int, str]) -> EvidenceItem:
    def take(deadline_s: float) -> str | NotKnown:
        if not py_spy:
            return NotKnown(f"py-spy is not installed: {install_command('train')}")
        # py-spy waits until the process stops, and a process that is stopped already does not stop again.
        blocking = () if one.state not in ("stopped", "disk-sleep") else ("--nonblocking",)
        answer = run_probe((*py_spy, "dump", "--pid", str(one.pid), *blocking), deadline_s)
        stacks = answer if isinstance(answer, NotKnown) else _read_stacks(answer)
        if isinstance(stacks, str):
            dumps[one.pid] = stacks
        return stacks

    return EvidenceItem(f"stacks-{one.label}.txt", take)


def _read_stacks(answer: ProbeOutput) -> str | NotKnown:
    if answer.code == 0 and answer.out:
        return answer.out
    problem = next((line for line in answer.err.splitlines() if line.startswith("Error")), answer.last_line)
    if "ermission" in answer.err or "not permitted" in answer.err:
        return NotKnown("not permitted: ptrace is denied; in a container --cap-add SYS_PTRACE allows it")
    return NotKnown(problem.removeprefix("Error: ") or f"py-spy ended with {answer.code}")


def _read_last_lines(path: Path, count: int, redact: Callable[[str], str]) -> Callable[[float], str | NotKnown]:
    """The last lines of a file, shortened. Secrets are masked first, so that no half of a secret remains."""

    def take(deadline_s: float) -> str | NotKnown:
        raw = _ask_program("tail", str(_LOG_BYTES), str(path))(deadline_s)
        if isinstance(raw, NotKnown):
            return raw
        lines = redact(raw).splitlines()
        return "\n".join(line[:_LONGEST_LINE] for line in lines[-count:]) + "\n"

    return take


def _merge_stack_failures(
    results: list[str], found: Sequence[ProcessFound], request: Callable[[Sequence[int]], None], limit_s: float
) -> list[str]:
    """One result for all stacks with the same problem; faulthandler writes the stacks that py-spy could not."""
    reasons: dict[str, list[ProcessFound]] = {}
    rest = []
    for item in results:
        name, separator, reason = item.partition(": ")
        if separator and name.startswith("stacks-"):
            reasons.setdefault(reason, []).extend(one for one in found if name == f"stacks-{one.label}.txt")
        else:
            rest.append(item)
    for reason, processes in reasons.items():
        pids = [one.pid for one in processes if one.dumps]
        instead = f"; faulthandler writes to the log instead (pid {_join(pids)})" if pids else ""
        rest.append(f"stacks of pid {_join(one.pid for one in processes)}: {reason}{instead}")
        if pids:
            waiter = threading.Thread(target=request, args=(pids,), name="evidence", daemon=True)
            waiter.start()
            waiter.join(limit_s)  # a log on a dead mount blocks only that thread
    return rest


def _join(pids: Iterable[int]) -> str:
    return ", ".join(str(pid) for pid in pids)


def _request_dumps(run_path: Path, pids: Sequence[int], logs: Sequence[Path], limit_s: float) -> None:
    """Send SIGUSR1, for which the bundled trainer's faulthandler writes stacks; wait until the logs stop growing.

    Only a process with the run's mark gets it: the pids come from an event, which proves nothing.
    """
    give_up_s = time.monotonic() + limit_s
    first = sizes = _sizes(logs)
    for pid in pids:
        with contextlib.suppress(PermissionError):
            signal_checked(pid, partial(_has_mark, pid, run_path), signal.SIGUSR1)
    while time.monotonic() < give_up_s:
        time.sleep(0.1)
        before, sizes = sizes, _sizes(logs)
        if sizes != first and sizes == before:
            return


def _has_mark(pid: int, run_path: Path) -> bool:
    try:
        return psutil.Process(pid).environ().get(environment.RUN) == str(run_path)
    except (psutil.Error, OSError):
        return False


def _sizes(logs: Sequence[Path]) -> tuple[int, ...]:
    return tuple(log.stat().st_size if log.exists() else 0 for log in logs)
