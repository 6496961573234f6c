from __future__ import annotations

import os
import sys
from pathlib import Path

from prime_train.facts.facts import NotKnown
from prime_train.facts.probe_process import NoAnswer, ProbeOutput, run_probe


def test_what_it_states_and_how_it_ends() -> None:
    program = "import sys; print(sys.stdin.read()); sys.exit('a fault')"
    answer = run_probe([sys.executable, "-c", program], 30.0, stdin="given")
    assert answer == ProbeOutput(1, "given\n", "a fault\n")
    assert answer.last_line == "a fault"


def test_one_that_hangs_is_ended_with_all_it_started(tmp_path: Path) -> None:
    fifo = tmp_path / "alive"
    os.mkfifo(fifo)
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    program = f"exec 3>{fifo}; sleep 1000 & wait"
    assert run_probe(["sh", "-c", program], 0.5) == NoAnswer("no answer within 0.5 s")
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""  # the end: nobody holds the other side any more
    os.close(reader)


def test_one_that_is_not_there() -> None:
    assert run_probe(["/no/such/program"], 1.0) == NotKnown(
        "/no/such/program does not start: No such file or directory"
    )


def test_its_environment() -> None:
    answer = run_probe(["sh", "-c", "echo $PRIME_TRAIN_ASKED"], 10.0, environment={"PRIME_TRAIN_ASKED": "yes"})
    assert isinstance(answer, ProbeOutput)
    assert answer.out == "yes\n"
