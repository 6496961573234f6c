"""A sampler with real children: one that ends is followed by another, later and later, and never by two."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prime_train.supervise.watches.sampler import Sampler
from tests.unit.cli.commands import wait_until

# Writes its argument, and then lives until it is killed; without one it ends at once.
PROGRAM = """
import sys, time
if len(sys.argv) > 1:
    print('{"said": "' + sys.argv[1] + '"}', flush=True)
    time.sleep(600)
raise SystemExit(7)
"""


TORN = """
import time
print('{"said": "to')
print('\\x00')
print('{"said": "end"}', flush=True)
time.sleep(600)
"""


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


Begin = Callable[..., Sampler]


@pytest.fixture
def begin(tmp_path: Path, clock: Clock) -> Iterator[Begin]:
    begun: list[Sampler] = []

    def run(*arguments: str, program: str = PROGRAM) -> Sampler:
        file = tmp_path / "program.py"
        file.write_text(program, encoding="utf-8")
        sampler = Sampler(file, arguments, tmp_path / "watches" / "log", clock=clock)
        begun.append(sampler)
        sampler.begin()
        return sampler

    yield run
    for sampler in begun:
        sampler.end()
        assert sampler.processes() == ()


def reported(sampler: Sampler) -> str:
    """The next sample."""
    taken: list[dict[str, str]] = []

    def has_come() -> bool:
        taken.extend(sampler.take())
        return bool(taken)

    wait_until(has_come)
    return taken[0]["said"]


def assert_state(sampler: Sampler, *, failed: int | None, is_restarting: bool) -> None:
    assert (sampler.failed, sampler.is_restarting) == (failed, is_restarting)


def kill(sampler: Sampler) -> None:
    (child,) = sampler.processes()
    os.kill(child.pid, signal.SIGKILL)
    wait_until(lambda: sampler.ended is not None)


def test_a_child_that_ended_is_followed_by_another_one(begin: Begin, clock: Clock) -> None:
    sampler = begin("one")
    assert reported(sampler) == "one"
    sampler.keep()
    assert_state(sampler, failed=None, is_restarting=False)
    kill(sampler)
    sampler.arguments = ["two"]
    sampler.keep()
    assert_state(sampler, failed=-9, is_restarting=True)
    clock.now_s += 9
    sampler.keep()
    assert sampler.processes() == ()
    clock.now_s += 1
    sampler.keep()
    assert_state(sampler, failed=-9, is_restarting=False)  # the other one has not shown that it works
    assert reported(sampler) == "two"
    assert_state(sampler, failed=None, is_restarting=False)


def test_a_program_that_always_ends_is_started_less_and_less_often(begin: Begin, clock: Clock) -> None:
    sampler, begun_s = begin(), []
    for _ in range(6):
        wait_until(lambda: sampler.ended is not None)
        sampler.keep()
        while sampler.is_restarting:
            clock.now_s += 1
            sampler.keep()
            assert sampler.failed == 7
        begun_s.append(clock.now_s)
    assert [late - early for early, late in zip([1000.0, *begun_s], begun_s, strict=False)] == [
        10,
        20,
        40,
        80,
        160,
        300,
    ]


def test_a_child_that_lived_long_is_followed_soon(begin: Begin, clock: Clock) -> None:
    sampler = begin("one")
    for lived_s in (10.0, 3600.0):
        reported(sampler)
        clock.now_s += lived_s
        kill(sampler)
        sampler.keep()
        clock.now_s += 10
        sampler.keep()
        assert sampler.processes() != ()


def test_a_stuck_child_is_ended_before_another_one_starts(begin: Begin, clock: Clock) -> None:
    sampler = begin("one")
    reported(sampler)
    (first,) = sampler.processes()
    os.kill(first.pid, signal.SIGSTOP)
    sampler.keep(is_stuck=True)
    wait_until(lambda: sampler.ended is not None)
    clock.now_s += 10
    sampler.keep()
    (second,) = sampler.processes()
    assert not first.alive
    assert second.pid != first.pid


def test_nothing_starts_after_the_end(begin: Begin, clock: Clock) -> None:
    sampler = begin("one")
    reported(sampler)
    sampler.end()
    for _ in range(3):
        clock.now_s += 1000
        sampler.keep()
        assert sampler.processes() == ()
    assert sampler.failed == -9


def test_what_is_no_line_of_json_is_left_out(begin: Begin) -> None:
    assert reported(begin(program=TORN)) == "end"
