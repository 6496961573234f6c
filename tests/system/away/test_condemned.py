"""A rented machine with a GPU that the run has condemned is given back, a bounded number of times."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from prime_train import events
from prime_train.away.sky.condemned import MOST_REFUSALS, count_refusals, find_condemned
from prime_train.away.sky.job_end import ELSEWHERE
from prime_train.core.rundir import RunDir
from prime_train.events import Event, EventLog, MachineRefused
from prime_train.supervise.core.state import State

SOURCE = Path(__file__).parents[2] / "fakes" / "nvml.c"
OPENED = events.RunOpened("r", 1, 100, "0.1")
OUT = events.GpuLeftOut("GPU-bbbb", "drained by the policy")
FAILED = events.GpuTested("drain-1", "GPU-bbbb", False, "3 numbers are wrong", 1.0)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler for the stand-in of the driver")
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "libnvidia-ml.so.1", SOURCE], check=True)
    return folder


class Rented:
    """A machine with the GPUs GPU-aaaa and GPU-bbbb, and the events of a run in a bucket."""

    def __init__(self, library: Path, folder: Path) -> None:
        self.run_dir, self.library, self.driver = RunDir(folder / "run"), library, folder / "driver.txt"
        self.driver.write_text("")

    def happened(self, *history: Event) -> None:
        log = EventLog(self.run_dir.events, "supervisor")
        for event in history:
            log.append(event)

    def look(self) -> tuple[int, str]:
        """The exit code, and what is on stderr."""
        own = {"FAKE_NVML": str(self.driver), "LD_LIBRARY_PATH": str(self.library)}
        command = [sys.executable, "-P", "-m", "prime_train.away.sky.condemned", str(self.run_dir.path), "0"]
        done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    @property
    def refused(self) -> list[MachineRefused]:
        return [one.event for one in events.read(self.run_dir.events) if isinstance(one.event, MachineRefused)]


@pytest.fixture
def rented(library: Path, tmp_path: Path) -> Rented:
    return Rented(library, tmp_path)


def test_a_machine_with_a_condemned_gpu_is_given_back_some_times_and_then_used(rented: Rented) -> None:
    rented.happened(OPENED, events.LaunchAsked(1, 0), OUT, FAILED)
    for number in range(1, MOST_REFUSALS + 1):
        code, text = rented.look()
        assert code == ELSEWHERE, text
        assert all(
            part in text for part in ("where GPU-bbbb of ", "  what  ", "  why   ", f"refusal {number} of at most")
        )
    assert [(one.gpus, one.number) for one in rented.refused] == [(("GPU-bbbb",), number) for number in (1, 2, 3)]
    code, text = rented.look()
    assert (code, len(rented.refused)) == (0, MOST_REFUSALS)
    assert "is used after all" in text or "used after all" in text


def test_other_machines_are_used(rented: Rented) -> None:
    assert rented.look() == (0, "")  # the first machine of a run
    rented.happened(OPENED, events.GpuLeftOut("GPU-other", ""), OUT, events.GpuTested("1", "GPU-bbbb", True, "", 1.0))
    assert rented.look() == (0, "")  # another GPU is condemned, and a person keeps this one out
    rented.happened(FAILED, events.GpuReturned("GPU-bbbb", "by ada"))
    assert rented.look() == (0, "")
    rented.driver.write_text("init 9\n")  # no driver
    rented.happened(OUT)
    assert rented.look() == (0, "")
    assert rented.refused == []


def test_an_attempt_begins_the_count_again() -> None:
    refused = MachineRefused("h", ("GPU-1",), 1)
    assert count_refusals([refused, refused]) == 2
    assert count_refusals([refused, events.LaunchAsked(1, 0), refused]) == 1
    assert count_refusals([]) == 0


def test_only_what_is_left_out_is_condemned() -> None:
    state = State(left_out=("GPU-1", "GPU-3"))
    assert find_condemned(state, ("GPU-0", "GPU-1", "GPU-2")) == ("GPU-1",)
