from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from prime_train.core.process_id import identify
from prime_train.core.redaction import MASK
from prime_train.core.rundir import RunDir
from prime_train.supervise.core.state import ChildProcess
from prime_train.supervise.evidence.gather import EvidenceTools, collect, find_tools, read_stuck_place
from prime_train.supervise.evidence.items import find_program_line, format_places
from prime_train.supervise.launch.environment import RUN
from prime_train.supervise.launch.guard import SUPERVISOR
from prime_train.supervise.launch.program import add_guard
from tests import fakes

_HUNG_RANKS = Path(fakes.__file__).with_name("hung_ranks.py")
_SECRET = "hf_thisIsNoRealToken42"


@contextlib.contextmanager
def started(
    argv: Sequence[str], log: Path, first_word: str, environment: dict[str, str] | None = None
) -> Iterator[ChildProcess]:
    """A process that has printed its first line, as a child of an attempt; its tree is ended by pid."""
    with open(log, "wb") as file:
        process = subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=file, text=True, env=os.environ | (environment or {})
        )
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(first_word)
        identity = identify(process.pid)
        assert identity is not None
        yield ChildProcess("trainer", process.pid, identity.start_ticks, str(log))
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        process.kill()
        process.communicate()


def sleeper(log: Path, *, dumps: bool = False, rank: str = "0") -> contextlib.AbstractContextManager[ChildProcess]:
    """A Python process that waits in a function of a known name; with `dumps` it answers SIGUSR1 in its log."""
    code = (
        "import faulthandler, signal, sys, time\n"
        + ("faulthandler.register(signal.SIGUSR1, file=sys.stderr)\n" if dumps else "")
        + "def waits_for_ever():\n    print('waits', flush=True)\n    time.sleep(3600)\nwaits_for_ever()\n"
    )
    variables = {"RANK": rank, RUN: str(log.parent)}
    return started([sys.executable, "-c", code, f"--token={_SECRET}"], log, "waits", variables)


def text_of(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.iterdir()))


def test_of_an_attempt_without_processes_the_logs_are_kept(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("".join(f"line {number}\n" for number in range(1000)))
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1}\n{"step": 2}\n')
    gone = ChildProcess("trainer", os.getpid(), 1, str(log))  # of another process that had this pid
    folder = tmp_path / "evidence"
    items = collect(folder, [gone], [log, tmp_path / "none.log"], (), metrics=metrics, tools=EvidenceTools())
    assert (folder / "last-lines-trainer.log").read_text().splitlines() == [f"line {n}" for n in range(800, 1000)]
    assert (folder / "metrics.jsonl").read_text() == '{"step": 2}\n'
    assert "processes.txt: no process is left" in items
    assert "last-lines-none.log: there is none" in items
    assert not list(folder.glob("stacks-*"))


def test_secrets_stay_out_also_where_the_end_of_a_log_begins_within_one(tmp_path: Path) -> None:
    folder, log = tmp_path / "evidence", tmp_path / "trainer.log"
    for size in range(524_280, 524_300):
        log.write_text(_SECRET + "x" * (size - len(_SECRET)) + f"\n{_SECRET} again\n")
        collect(folder, [], [log], (_SECRET,), tools=EvidenceTools())
        kept = (folder / "last-lines-trainer.log").read_text()
        assert kept.endswith(f"{MASK} again\n")
        assert not any(_SECRET[start:] in kept for start in range(len(_SECRET) - 4))


def test_a_line_of_ten_megabytes_is_cut(tmp_path: Path) -> None:
    folder, log = tmp_path / "evidence", tmp_path / "trainer.log"
    log.write_bytes(b"y" * 10_000_000)
    collect(folder, [], [log], (), tools=EvidenceTools())
    assert 0 < (folder / "last-lines-trainer.log").stat().st_size < 10_000


def test_what_the_flight_recorder_left_is_named(tmp_path: Path) -> None:
    (tmp_path / "collectives_rank_0").write_bytes(bytes(70))
    items = collect(tmp_path / "evidence", [], [], (), tools=EvidenceTools())
    assert "flight-recorder.txt" in items
    assert (tmp_path / "evidence" / "flight-recorder.txt").read_text() == "collectives_rank_0  70 bytes\n"


def test_where_nothing_can_be_written_each_item_reports_it(tmp_path: Path) -> None:
    (tmp_path / "evidence").write_text("a file in its place")
    log = tmp_path / "trainer.log"
    log.write_text("a line\n")
    assert "last-lines-trainer.log: File exists" in collect(tmp_path / "evidence", [], [log], (), tools=EvidenceTools())


DUMP = """Process 7: python -m prime_train.trainer
Python v3.11.7 (/usr/bin/python3.11)

Thread 8 (active): "watch"
    _watch (prime_train/trainer/attempt.py:100)
Thread 7 (idle): "MainThread"
    _engine_run_backward (torch/autograd/graph.py:979)
    Tensor.backward (torch/_tensor.py:623)
    accumulate (prime_train/trainer/loops/step.py:96)
    <module> (prime_train/trainer/__main__.py:82)
    _run_code (<frozen runpy>:88)
Thread 9 (idle): "writer"
    _worker (concurrent/futures/thread.py:81)
"""


def test_a_rank_stands_at_the_innermost_line_that_is_the_programs_own() -> None:
    assert find_program_line(DUMP) == "accumulate (prime_train/trainer/loops/step.py:96), in _engine_run_backward"
    assert find_program_line('Thread 7 (idle): "MainThread"\n    f (train.py:3)\n') == "f (train.py:3)"
    assert find_program_line('Thread 7 (idle): "MainThread"\n    g (torch/x.py:1)\n') == "g (torch/x.py:1)"
    assert find_program_line(DUMP.replace(': "MainThread"', "")) == find_program_line(DUMP)  # of a stopped process
    assert find_program_line("Process 7: ruby") == ""


def test_the_rank_that_stands_apart_is_reported_first() -> None:
    places = {"rank 0": "reduce (a.py:1)", "rank 1": "load (b.py:2)", "rank 2": "reduce (a.py:1)"}
    assert format_places(places) == "rank 1: load (b.py:2)\nrank 0, rank 2: reduce (a.py:1)\n"


def test_the_stack_and_the_waits_of_a_process_are_kept_without_its_secrets(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    with sleeper(log) as child:
        items = collect(tmp_path / "evidence", [child], [log], (_SECRET,), tools=find_tools())
        assert f"stacks-trainer-rank0-{child.pid}.txt" in items
        assert psutil.Process(child.pid).status() == "sleeping"
    folder = tmp_path / "evidence"
    assert "waits_for_ever" in (folder / f"stacks-trainer-rank0-{child.pid}.txt").read_text()
    told = (folder / f"process-trainer-rank0-{child.pid}.txt").read_text()
    assert "Max open files" in told
    assert "State:\tS (sleeping)" in told
    assert _SECRET not in text_of(folder)
    assert MASK in (folder / "processes.txt").read_text()


def test_a_stopped_process_shows_its_stack_and_stays_stopped(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    with sleeper(log) as child:
        os.kill(child.pid, signal.SIGSTOP)
        deadline_s = time.monotonic() + 30
        while psutil.Process(child.pid).status() != "stopped":
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
        items = collect(tmp_path / "evidence", [child], [log], (), tools=find_tools())
        assert psutil.Process(child.pid).status() == "stopped"
    name = f"stacks-trainer-rank0-{child.pid}.txt"
    assert name in items
    assert "waits_for_ever" in (tmp_path / "evidence" / name).read_text()
    assert f"(pid {child.pid}, which is stopped): waits_for_ever (" in read_stuck_place(tmp_path / "evidence")
    assert "  stopped  " in (tmp_path / "evidence" / "processes.txt").read_text()


def without_ptrace() -> tuple[str, ...]:
    """py-spy without the capability: a target that has more of them than it may not be traced by it."""
    drop = ("setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace")
    return (*drop, *find_tools().py_spy)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can give capabilities away")
def test_where_ptrace_is_denied_one_item_states_so_and_faulthandler_is_asked(tmp_path: Path) -> None:
    log, other = tmp_path / "trainer.log", tmp_path / "other.log"
    folder = RunDir(tmp_path).evidence(1)
    with sleeper(log, dumps=True) as child, sleeper(other, rank="1") as deaf:
        items = collect(folder, [child, deaf], [log], (), tools=EvidenceTools(without_ptrace()))
        assert psutil.Process(deaf.pid).status() == "sleeping"  # it has no handler: the signal would have ended it
    told = [item for item in items if item.startswith("stacks")]
    assert len(told) == 1
    assert "not permitted" in told[0]
    assert f"faulthandler writes to the log instead (pid {child.pid})" in told[0]
    assert "waits_for_ever" in (folder / "last-lines-trainer.log").read_text()


def test_what_hangs_costs_its_item_alone(tmp_path: Path) -> None:
    """A py-spy that never answers, an nvidia-smi that never answers, and a log that cannot be opened."""
    log, pipe = tmp_path / "trainer.log", tmp_path / "inference.log"
    os.mkfifo(pipe)
    hangs = (sys.executable, "-c", "import time; time.sleep(3600)")
    with sleeper(log) as child:
        items = collect(tmp_path / "evidence", [child], [log, pipe], (), 6.0, tools=EvidenceTools(hangs, hangs))
    assert f"process-trainer-rank0-{child.pid}.txt" in items
    assert any(item.startswith("nvidia-smi.txt: no") for item in items)
    assert any(item.startswith(f"stacks of pid {child.pid}: no") for item in items)
    assert any(item.startswith("last-lines-inference.log: no") for item in items)


def test_both_ranks_of_a_collective_that_hangs_show_where_they_stand(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    with started([sys.executable, str(_HUNG_RANKS), str(tmp_path), "leaves_out"], log, "hangs") as child:
        items = collect(tmp_path / "evidence", [child], [log], (), 30.0, tools=find_tools())
    stacks = [item for item in items if item.startswith("stacks-")]
    assert len(stacks) == 3  # the launcher and two ranks
    assert read_stuck_place(tmp_path / "evidence").startswith("trainer rank 1 (pid ")
    lines = (tmp_path / "evidence" / "where.txt").read_text().splitlines()
    assert "rank (" in lines[0]
    assert "the_collective_that_hangs (" in lines[1]
    text = "".join((tmp_path / "evidence" / item).read_text() for item in stacks)
    assert "the_collective_that_hangs" in text
    assert "all_reduce" in text


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="only root can give capabilities away")
def test_a_stranger_that_an_event_names_gets_no_signal(tmp_path: Path) -> None:
    """It handles SIGUSR1 in its own way, and has not the mark of the run."""
    log = tmp_path / "stranger.log"
    with sleeper(log, dumps=True) as child:
        collect(RunDir(tmp_path / "run").evidence(1), [child], [log], (), tools=EvidenceTools(without_ptrace()))
    assert "waits_for_ever" not in log.read_text(encoding="utf-8")


def test_without_ranks_the_trainer_is_before_the_server_that_it_waits_for(tmp_path: Path) -> None:
    """Its guard is left out: that waits in every attempt."""
    code = "print('waits', flush=True)\ndef {name}():\n    import time; time.sleep(3600)\n{name}()\n"
    served = add_guard((sys.executable, "-c", code.format(name="serves")))
    waits = (sys.executable, "-c", code.format(name="waits_for_an_answer"))
    with (
        started(served, tmp_path / "inference.log", "waits", {SUPERVISOR: f"{os.getpid()}:0"}) as server,
        started(waits, tmp_path / "trainer.log", "waits") as trainer,
    ):
        children = [replace(server, role="inference"), trainer]
        collect(tmp_path / "evidence", children, [], (), 30.0, tools=find_tools())
    lines = (tmp_path / "evidence" / "where.txt").read_text().splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["trainer", "inference"], lines
    assert "waits_for_an_answer (" in lines[0]
    assert "guard.py" not in (tmp_path / "evidence" / "processes.txt").read_text()
