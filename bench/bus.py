"""Measures how much the agent of the bus slows a training, with a bus that works, hangs, or is dead.

    python bench/bus.py [--rounds 20] [--seconds 20]

One run of a script whose step computes for some 20 ms. The agent is paused (SIGSTOP) and continued in turns, and the
step times of each paused block are compared with those of the next block. A server that hangs is paused, too. CPU time
is that of the agent, from /proc. Needs the extra `control`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path

import psutil
import record

from prime_train.bus.base import KEPT
from prime_train.bus.nats import NatsBus
from prime_train.bus.nats_server import NatsServer
from prime_train.bus.server_folder import CONTROLLER

PROGRAM = Path(sys.executable).with_name("prime-train")
BLOCK_STEPS = 20
WARM_UP_STEPS = 20
DEADLINE_S = 120.0
NOTICE_S = 10.0  # by then an agent has noticed that its server is gone
SCRIPT = """
import time
from prime_train import live

with open("steps.txt", "a", buffering=1) as file:
    for step in range(10**6):
        began = time.perf_counter()
        total = 0
        for number in range(200_000):
            total += number * number
        live.step(step + 1, loss=1.0)
        file.write(f"{time.perf_counter() - began}\\n")
        if live.should_stop():
            break
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="pairs of blocks for each state of the bus")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long to watch the agent's CPU time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, _serving(Path(folder) / "bus") as (server, bus):
        here = Path(folder)
        with _running(here, server) as agent:
            rows = [
                *_compare(here, agent, given.rounds, "a bus that works"),
                _cores(agent, given.seconds),
                record.emit("agent memory", [round(agent.memory_info().rss / 2**20, 1)], unit="MiB"),
            ]
            rows += _latency(bus, given.rounds)
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(NOTICE_S)
            rows += _compare(here, agent, given.rounds, "a bus that hangs")
            os.kill(server.pid, signal.SIGCONT)
            server.close()
            rows += _compare(here, agent, given.rounds, "a dead bus")
    record.write("bus", rows)


@contextlib.contextmanager
def _serving(folder: Path) -> Iterator[tuple[NatsServer, NatsBus]]:
    server = NatsServer(folder, ["m1"])
    server.start()
    bus = NatsBus(server.credentials(CONTROLLER), "bench")
    try:
        assert bus.wait_connected(DEADLINE_S)
        server.create_stream(bus.connection)
        yield server, bus
    finally:
        bus.close()
        server.close()


@contextlib.contextmanager
def _running(folder: Path, server: NatsServer) -> Iterator[psutil.Process]:
    """The agent of a run that trains until it is stopped."""
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    file = folder / "bus" / "credentials" / "m1.json"
    words = ["--run-name", "bench", "--bus", server.credentials("m1").address]
    words += ["--set", f"prime_train.bus.credentials_file={file}", "--", sys.executable, "train.py"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([PROGRAM, "run", *words], cwd=folder, stdout=quiet, stderr=quiet)
    try:
        _until(lambda: len(_steps(folder)) > WARM_UP_STEPS)  # by then the process that started the agent has ended
        [agent] = _find_agents(folder)
        yield agent
        agent.resume()
    finally:
        process.terminate()
        process.wait()
        for agent in _find_agents(folder):
            agent.terminate()  # it would try for a minute to send the last events


def _find_agents(folder: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            words = process.cmdline()
            if "prime_train.supervise.agent.program" in words and any(word.startswith(str(folder)) for word in words):
                found.append(process)
    return found


def _steps(folder: Path) -> list[float]:
    path = folder / "steps.txt"
    return [float(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


def _has_steps(folder: Path, count: int) -> bool:
    return len(_steps(folder)) >= count


def _until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + DEADLINE_S
    while not holds():
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"the run made no step in {DEADLINE_S:.0f} s")
        time.sleep(0.02)


def _compare(folder: Path, agent: psutil.Process, rounds: int, what: str) -> list[dict[str, object]]:
    blocks: dict[bool, list[list[float]]] = {False: [], True: []}
    for _ in range(rounds):
        for works in (False, True):
            (agent.resume if works else agent.suspend)()
            first = len(_steps(folder)) + 1  # the step in which it changed belongs to neither
            _until(partial(_has_steps, folder, first + BLOCK_STEPS))
            blocks[works].append(_steps(folder)[first : first + BLOCK_STEPS])
    pairs = zip(map(statistics.median, blocks[False]), map(statistics.median, blocks[True]), strict=True)
    ratios = [works / paused for paused, works in pairs]
    error = round(statistics.stdev(ratios) / len(ratios) ** 0.5, 6)
    return [
        record.emit(f"step with the agent paused, {what}", list(chain.from_iterable(blocks[False]))),
        record.emit(f"step with the agent, {what}", list(chain.from_iterable(blocks[True]))),
        record.emit(f"step time with the agent / paused, {what}", ratios, unit="ratio", standard_error=error),
    ]


def _cores(agent: psutil.Process, seconds: float) -> dict[str, object]:
    shares = []
    for _ in range(10):
        before, began_s = sum(agent.cpu_times()[:2]), time.monotonic()
        time.sleep(seconds / 10)
        shares.append((sum(agent.cpu_times()[:2]) - before) / (time.monotonic() - began_s))
    return record.emit("agent CPU", shares, unit="cores")


def _latency(bus: NatsBus, count: int) -> list[dict[str, object]]:
    """Seconds of a stored message, and of one write of a key."""
    keys = bus.kv("bench")
    found: dict[str, list[float]] = {"a kept message is stored": [], "a key is written": []}
    for number in range(10 * count):
        began_s = time.perf_counter()
        bus.publish(KEPT.replace("*", "bench"), {"n": number}, f"bench{number}")
        stored_s = time.perf_counter()
        keys.put("key", {"n": number})
        found["a kept message is stored"].append(stored_s - began_s)
        found["a key is written"].append(time.perf_counter() - stored_s)
    return [record.emit(what, samples) for what, samples in found.items()]


if __name__ == "__main__":
    main()
